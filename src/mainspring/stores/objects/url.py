"""Parses the URL of a store on object storage.

    s3://bucket/prefix?region=eu-central-1&profile=work
    s3://bucket/prefix?endpoint=http://127.0.0.1:9000&path_style=true
    gs://bucket/prefix
    az://container/prefix?account=name
    file:///absolute/directory

Credentials come from environment variables, files and instance roles. An S3 URL may have them too
(`s3://KEY:SECRET@bucket/prefix`), with a warning: others can see a URL.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from msgspec import Struct

from mainspring.core.durations import duration
from mainspring.errors import InvalidInput, UnknownOption
from mainspring.stores.url import without_password

SCHEMES: Final = ("s3", "gs", "az", "file")
DEFAULT_TIMEOUT: Final = 15.0

_OPTIONS: Final[Mapping[str, frozenset[str]]] = {
    "s3": frozenset({"endpoint", "path_style", "profile", "region", "timeout"}),
    "gs": frozenset({"endpoint", "timeout"}),
    "az": frozenset({"account", "endpoint", "timeout"}),
    "file": frozenset(),
}
_CREDENTIALS: Final = {
    "s3": "the environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY), a profile or a role",
    "gs": "the environment (GOOGLE_APPLICATION_CREDENTIALS) or the machine's service account",
    "az": "the environment (AZURE_STORAGE_ACCOUNT_KEY, for example) or a managed identity",
    "file": "nowhere: a directory needs none",
}
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,220}[A-Za-z0-9]")
_PREFIX: Final = re.compile(r"[A-Za-z0-9_=+@.~-]+(/[A-Za-z0-9_=+@.~-]+)*")
_SECRET_NAME: Final = re.compile(r"(?i)key|secret|token|password|credential|sas|signature")
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


class Credentials(Struct, frozen=True):
    """The keys in a URL. Never shown."""

    access_key_id: str
    secret_access_key: str

    def __repr__(self) -> str:
        return f"Credentials({self.access_key_id!r}, …)"


class Address(Struct, frozen=True, kw_only=True):
    """What a URL says. `bucket` is the directory of a `file` URL."""

    scheme: str
    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None
    profile: str | None = None
    account: str | None = None
    path_style: bool | None = None
    timeout: float = DEFAULT_TIMEOUT
    credentials: Credentials | None = None

    @classmethod
    def of(cls, url: str) -> Address:
        scheme, _, rest = url.partition("://")
        place, _, query = rest.partition("?")
        if scheme not in _OPTIONS:
            raise InvalidInput(f"{scheme}:// names no object storage; {', '.join(SCHEMES)} do")
        credentials = None
        if scheme != "file":
            credentials, place = _split_credentials(scheme, place, url)
        options = _parse_options(scheme, query)
        if credentials is not None and "profile" in options:
            raise InvalidInput(
                f"{without_password(url)!r} has keys and a profile: give one of them",
                field="profile",
            )
        if scheme == "file":
            if not place.startswith("/") or place == "/":
                raise InvalidInput(f"{url!r} names no directory; write file:///absolute/directory")
            return cls(scheme=scheme, bucket=unquote(place))
        bucket, _, prefix = place.partition("/")
        prefix = unquote(prefix).strip("/")
        example = "az://container/prefix" if scheme == "az" else f"{scheme}://bucket/prefix"
        if not _BUCKET.fullmatch(bucket):
            raise InvalidInput(
                f"write {example}, not {without_password(url)!r}: a bucket's name has at least 3"
                " letters, digits, dots, hyphens or underscores"
            )
        if prefix and (not _PREFIX.fullmatch(prefix) or {".", ".."} & set(prefix.split("/"))):
            raise InvalidInput(
                f"a prefix has letters, digits and _ = + @ . ~ - in parts between slashes,"
                f" not {prefix!r}"
            )
        return cls(
            scheme=scheme,
            bucket=bucket,
            prefix=prefix,
            endpoint=parse_endpoint(options.get("endpoint")),
            region=options.get("region"),
            profile=options.get("profile"),
            account=options.get("account"),
            path_style=_parse_flag("path_style", options.get("path_style")),
            timeout=_parse_timeout(options.get("timeout")),
            credentials=credentials,
        )

    @property
    def location(self) -> str:
        """The URL, without the keys and the options that do not say where the store is."""
        if self.scheme == "file":
            return f"file://{quote(self.bucket)}"
        place = f"{self.bucket}/{self.prefix}" if self.prefix else self.bucket
        parts = {"endpoint": self.endpoint, "account": self.account}
        options = "&".join(f"{name}={value}" for name, value in parts.items() if value)
        return f"{self.scheme}://{place}" + (f"?{options}" if options else "")


def _split_credentials(scheme: str, place: str, url: str) -> tuple[Credentials | None, str]:
    """The keys in front of the bucket, and what comes behind them. A secret may have slashes."""
    login, at, rest = place.partition("@")
    key, colon, secret = login.partition(":")
    if not at or ("/" in login and not colon):
        return None, place  # the prefix may have an @
    if scheme != "s3" or not key or not secret:
        raise InvalidInput(
            f"{without_password(url)!r} has a user in it. Credentials come from"
            f" {_CREDENTIALS[scheme]}"
            + ("; or write s3://KEY:SECRET@bucket/prefix" if scheme == "s3" else ", not the URL")
        )
    return Credentials(unquote(key), unquote(secret)), rest


def _parse_options(scheme: str, query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for option in filter(None, query.split("&")):
        name, _, value = option.partition("=")
        options[name] = unquote(value)
    if options and not _OPTIONS[scheme]:
        raise InvalidInput(f"a {scheme}:// URL has no options: leave out {sorted(options)[0]!r}")
    if unknown := options.keys() - _OPTIONS[scheme]:
        error = UnknownOption(unknown, _OPTIONS[scheme], f"{scheme} option")
        if any(_SECRET_NAME.search(name) for name in unknown):
            error.add_advice(f"credentials come from {_CREDENTIALS[scheme]}, never from the URL")
        raise error
    return options


def parse_endpoint(given: str | None, what: str = "endpoint") -> str | None:
    """An address without a user, a password or options. `what`: where it was given."""
    if given is None:
        return None
    parts = urlsplit(given)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or "@" in given:
        raise InvalidInput(
            f"{what} is an address such as http://127.0.0.1:9000, without a user and without"
            f" options, not {without_password(given)!r}",
            field="endpoint",
        )
    return given.rstrip("/")


def _parse_flag(name: str, given: str | None) -> bool | None:
    if given is None:
        return None
    if given.lower() in (*_TRUE, *_FALSE):
        return given.lower() in _TRUE
    raise InvalidInput(f"{name} is true or false, not {given!r}", field=name, given=given)


def _parse_timeout(given: str | None) -> float:
    if given is None:
        return DEFAULT_TIMEOUT
    seconds = _seconds(given)
    if not 0.1 <= seconds <= 300:
        raise InvalidInput(
            f"timeout is between 0.1 and 300 seconds, not {given!r}", field="timeout", given=given
        )
    return seconds


def _seconds(given: str) -> float:
    with contextlib.suppress(ValueError):
        return float(given)
    return duration(given, what="timeout").total_seconds()
