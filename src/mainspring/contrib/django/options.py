"""Reads `settings.MAINSPRING`: the options of the scheduler, and what is wrong with them."""

from __future__ import annotations

import difflib
import inspect
from typing import Any

from django.conf import settings
from django.core.checks import Error
from django.db import connections

from mainspring.scheduler import Scheduler
from mainspring.stores import STORE_OF_ENVIRONMENT, open_store

ENGINES = ("postgresql", "sqlite")
_KNOWN = {
    "DATABASE",
    *(name.upper() for name in inspect.signature(Scheduler).parameters),
} - {"UNKNOWN", "INLINE"}
DOTTED = ("around", "default_handler", "resources", "webhooks", "clock")
"""Options that may be the dotted path of an object: settings can rarely import it. The scheduler
does, when the apps are ready."""


def given() -> dict[str, Any]:
    """The settings as they are now, or none where they are no mapping."""
    value = getattr(settings, "MAINSPRING", None)
    return value if isinstance(value, dict) else {}


def read_options() -> tuple[dict[str, Any], list[Error]]:
    """The options of the scheduler without its store, and all mistakes."""
    if not isinstance(getattr(settings, "MAINSPRING", None), dict):
        return {}, [_no_settings()]
    mistakes = [*_store_mistakes()]
    options: dict[str, Any] = {"timezone": settings.TIME_ZONE}
    for key, value in given().items():
        if key not in _KNOWN:
            mistakes.append(_unknown(key))
        elif key not in ("STORE", "DATABASE"):
            try:
                if key.lower() not in DOTTED or not isinstance(value, str):
                    Scheduler("memory://", **{key.lower(): value})
            except Exception as error:
                mistakes.append(wrong(key, error))
            else:
                options[key.lower()] = value
    return options, mistakes


def _store_mistakes() -> list[Error]:
    options = given()
    if "DATABASE" in options:
        alias = options["DATABASE"]
        if "STORE" in options:
            return [wrong("STORE", "it is given next to 'DATABASE': remove one of them")]
        if not isinstance(alias, str) or alias not in connections.settings:
            known = ", ".join(map(repr, connections.settings))
            hint = f"Name one of DATABASES: {known}."
            why = f"MAINSPRING['DATABASE'] is {alias!r}, and DATABASES has no such alias."
            return [Error(why, hint, id="mainspring.E004")]
        if (vendor := connections[alias].vendor) not in ENGINES:
            why = f"MAINSPRING['DATABASE'] is {alias!r}, a database of {vendor}."
            hint = "Name one of PostgreSQL or SQLite, or a STORE of its own: 'sqlite:///jobs.db'."
            return [Error(why, hint, id="mainspring.E004")]
        return []
    store = options.get("STORE", STORE_OF_ENVIRONMENT)
    try:
        if store != STORE_OF_ENVIRONMENT and not hasattr(store, "claim"):  # a store itself
            open_store(store)
    except Exception as error:
        return [wrong("STORE", error)]
    return []


def _no_settings() -> Error:
    value = getattr(settings, "MAINSPRING", None)
    why = "is missing" if value is None else f"is {value!r}, and not a dict"
    hint = 'Add MAINSPRING = {"DATABASE": "default"}, or name a store: {"STORE": "sqlite:///…"}.'
    return Error(f"The setting MAINSPRING {why}.", hint, id="mainspring.E001")


def _unknown(key: Any) -> Error:
    near = difflib.get_close_matches(str(key).upper(), _KNOWN, n=1)
    meant = f"Did you mean {near[0]!r}? " if near else ""
    hint = f"{meant}Allowed are {', '.join(sorted(_KNOWN))}."
    return Error(f"MAINSPRING has no option {key!r}.", hint, id="mainspring.E002")


def wrong(key: str, why: object) -> Error:
    hint = f"The reference of Scheduler describes {key.lower()!r}."
    return Error(f"MAINSPRING[{key!r}] cannot be used: {why}", hint, id="mainspring.E003")
