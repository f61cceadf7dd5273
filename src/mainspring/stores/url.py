"""Removes passwords from store URLs before they are shown in messages, logs or on a screen."""

from __future__ import annotations

import re

_SECRET = re.compile(r"(?i)password|passphrase|secret|token|authMechanismProperties")


def without_password(url: str) -> str:
    """The URL without anything that could be a password, even if the password was not escaped:
    everything between the user's name and the last `@`, and the values of secret options."""
    head, separator, rest = url.partition("://")
    if not separator:
        head, rest = "", url
    login, at, place = rest.rpartition("@")
    if at:
        user, colon, _ = login.partition(":")
        login = f"{user}:…" if colon else user
    path, sign, query = place.partition("?")
    options = "&".join(map(_shown, query.split("&")))
    return f"{head}{separator}{login}{at}{path}{sign}{options}"


def _shown(option: str) -> str:
    name, sign, _ = option.partition("=")
    return f"{name}=…" if sign and _SECRET.search(name) else option
