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
from mainspring.stores.url_redaction import without_password

__all__ = ["MongoUrl"]

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
        if not _PREFIX.fullmatch(prefix):
            raise InvalidInput(
                f"{OPTION} is a letter or _ and then at most 63 letters, digits, _ . or -,"
                f" not {prefix!r}"
            )
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


def driver_defaults(url: str) -> dict[str, Any]:
    """Options for the driver that the URL does not set."""
    given = {option.partition("=")[0].lower() for option in url.partition("?")[2].split("&")}
    ours = {
        "w": "majority",
        "timeoutMS": 5_000,
        "appname": "mainspring",
        "tz_aware": True,
    }
    return {name: value for name, value in ours.items() if name.lower() not in given}
