"""Parses a URL: the servers, the database, and the prefix of the collections in it.

    mongodb://user:password@host1,host2/database?replicaSet=rs&mainspringPrefix=app_

Everything but `mainspringPrefix` is MongoDB's own and goes to the driver as it is: users, TLS,
replica set, time-outs.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple
from urllib.parse import unquote

from mainspring.errors import InvalidInput
from mainspring.stores.url import without_password

DEFAULT_DATABASE = "mainspring"
DEFAULT_PREFIX = "mainspring_"
OPTION = "mainspringPrefix"
_PREFIX = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_ESCAPE = "; in a password write / ? # @ : % as %2F %3F %23 %40 %3A %25"
_DATABASE = re.compile(r'[^/\\. "$*<>:|?\x00]{1,63}')


class MongoUrl(NamedTuple):
    url: str
    """For the driver."""
    database: str
    prefix: str

    @classmethod
    def of(cls, url: str) -> MongoUrl:
        head, _, query = url.partition("?")
        prefix = DEFAULT_PREFIX
        options = []
        for option in filter(None, query.split("&")):
            name, _, value = option.partition("=")
            if name.lower() == OPTION.lower():
                prefix = unquote(value)
            else:
                options.append(option)
        _check_prefix(prefix)
        hosts, separator, path = head.partition("://")[2].partition("/")
        database = unquote(path) or DEFAULT_DATABASE
        if not hosts or not _DATABASE.fullmatch(database):
            raise InvalidInput(
                f"write mongodb://host/database, not {without_password(url)!r}: a database has"
                ' 1 to 63 characters, and none of / \\ . space " $ * < > : | ?'
                + (_ESCAPE if "@" in url else "")
            )
        head = head if separator else f"{head}/"
        return cls("?".join(filter(None, (head, "&".join(options)))), database, prefix)

    @classmethod
    def of_client(cls, client: Any, database: str, prefix: str) -> MongoUrl:
        """The servers that a client of the driver was made for, without its user and options."""
        _check_prefix(prefix)
        if not _DATABASE.fullmatch(database):
            raise InvalidInput(f"{database!r} cannot be the name of a database", field="database")
        given = _constructor_arguments(client)
        hosts, port = given["host"] or "localhost", given["port"]
        servers = [
            host.partition("://")[2] or (host if port is None else f"{host}:{port}")
            for host in ([hosts] if isinstance(hosts, str) else hosts)
        ]
        named = ",".join(re.split("[/?]", server.rpartition("@")[2])[0] for server in servers)
        return cls(f"mongodb://{named}/{database}", database, prefix)


def _check_prefix(prefix: str) -> None:
    if not _PREFIX.fullmatch(prefix):
        raise InvalidInput(
            f"{OPTION} is a letter or _ and then at most 63 letters, digits, _ . or -,"
            f" not {prefix!r}"
        )


def client_options(client: Any) -> dict[str, Any]:
    """The arguments for another client like this one, without encryption in the client: that does
    not allow all commands of the store."""
    given = _constructor_arguments(client)
    hosts = given["host"] or ()
    urls = [hosts] if isinstance(hosts, str) else hosts
    set_here = {name.lower() for name in given}
    defaults = driver_defaults("&".join(map(str, urls)))
    ours = {name: value for name, value in defaults.items() if name.lower() not in set_here}
    return {**given, **ours, "auto_encryption_opts": None}


def _constructor_arguments(client: Any) -> dict[str, Any]:
    """What the client was made with. The driver keeps it to make copies of a client itself."""
    arguments: dict[str, Any] = client._init_kwargs
    return arguments


def driver_defaults(url: str) -> dict[str, Any]:
    """Options for the driver that the URL does not set."""
    options = url.partition("?")[2].replace("?", "&")
    given = {option.partition("=")[0].lower() for option in options.split("&")}
    ours = {
        "w": "majority",
        "timeoutMS": 5_000,
        "appname": "mainspring",
        "tz_aware": True,
    }
    return {name: value for name, value in ours.items() if name.lower() not in given}
