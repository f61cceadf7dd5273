"""The URL of a PostgreSQL store: that of libpq, with a few options of Mainspring's own."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from psycopg.conninfo import conninfo_to_dict

from mainspring.errors import InvalidInput
from mainspring.stores.url import without_password

DEFAULT_SCHEMA = "mainspring"
_OWN = ("schema", "listen", "listen_url", "prepare", "skip_locked", "pool_size")
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,47}")
_POOL_SIZE = 10


class PostgresUrl(NamedTuple):
    """`conninfo` is what libpq connects with; `listen_url` where hints are heard (None: nowhere).

    `prepare`: whether statements may be prepared on the server, which some poolers forbid.
    `skip_locked`: whether a claim passes over rows that another claim has locked, or waits for it.
    """

    url: str
    conninfo: str
    schema: str = DEFAULT_SCHEMA
    listen_url: str | None = None
    prepare: bool = True
    skip_locked: bool = True
    pool_size: int = _POOL_SIZE

    @property
    def location(self) -> str:
        return without_password(self.url)

    @property
    def place(self) -> tuple[str, str, str, str]:
        """What two names of one store have in common, as far as names tell."""
        options = conninfo_to_dict(self.conninfo)
        parts = [str(options.get(name) or "") for name in ("host", "port", "dbname")]
        return parts[0], parts[1] or "5432", parts[2], self.schema

    @classmethod
    def of(cls, url: str) -> PostgresUrl:
        parts = urlsplit(url)
        if parts.netloc.count("@") > 1 or "@" in parts.path or parts.fragment:
            raise InvalidInput(
                "the password in the URL holds a character that ends it: write @ as %40, # as %23"
                " and / as %2F",
                field="url",
            )
        given = parse_qsl(parts.query, keep_blank_values=True)
        own = {name: value for name, value in given if name in _OWN}
        # A space is %20: libpq does not know the + of forms.
        rest = urlencode([pair for pair in given if pair[0] not in _OWN], quote_via=quote)
        path = f"postgresql://{parts.netloc}{parts.path}"
        conninfo = f"{path}?{rest}" if rest else path
        schema = own.get("schema", DEFAULT_SCHEMA)
        if _SCHEMA.fullmatch(schema) is None:
            raise InvalidInput(
                f"schema={schema!r} is no name for a schema: lower-case letters, digits and _, at"
                " most 48 of them",
                field="schema",
            )
        listen = _flag(own, "listen", default=True)
        return cls(
            url,
            conninfo,
            schema,
            own.get("listen_url", conninfo) if listen else None,
            _flag(own, "prepare", default=True),
            _flag(own, "skip_locked", default=True),
            _number(own, "pool_size", _POOL_SIZE),
        )


def _flag(options: dict[str, str], name: str, *, default: bool) -> bool:
    value = options.get(name, str(default)).lower()
    if value not in ("true", "false", "1", "0"):
        raise InvalidInput(f"{name} is true or false, not {value!r}", field=name)
    return value in ("true", "1")


def _number(options: dict[str, str], name: str, default: int) -> int:
    value = options.get(name, str(default))
    if not value.isdecimal() or not 1 <= int(value) <= 1000:
        raise InvalidInput(f"{name} is a number from 1 to 1000, not {value!r}", field=name)
    return int(value)
