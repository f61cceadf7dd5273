"""Time zones by name."""

from __future__ import annotations

import difflib
import re
from datetime import UTC, tzinfo
from functools import lru_cache
from importlib.resources import files
from zoneinfo import ZoneInfo

from mainspring.errors import InvalidSchedule

_LONGEST = 64
_OF_THE_MACHINE = ("localtime", "posixrules", "factory")
"""Files beside the zones, in lower case. What is in them depends on the machine."""
_NO_NAME = re.compile(r"[A-Z]{2,5}|(UTC|GMT)?[+-]\d{1,2}(:?\d\d)?")
"""Abbreviations and offsets, such as IST and +05:30."""


@lru_cache(maxsize=1024)
def zone_named(name: str) -> tzinfo:
    """The zone of an IANA name; `InvalidSchedule` with the nearest known names otherwise."""
    zone = _load(name)
    if zone is not None:
        return zone
    shown = repr(name[:_LONGEST])
    raise InvalidSchedule(f"unknown timezone {shown}: {_advice(name)}", field="timezone")


def zone_name(zone: object) -> str:
    """The name of a zone that was given as a text, a `ZoneInfo` or `datetime.UTC`."""
    if zone is UTC:
        return "UTC"
    name = zone.key if isinstance(zone, ZoneInfo) else zone
    if not isinstance(name, str):
        why = f"a timezone is an IANA name such as Europe/Berlin, or a ZoneInfo, not {zone!r}"
        raise InvalidSchedule(why, field="timezone")
    return name


def check_zone(zone: object) -> str:
    """The name, if there is such a zone; `InvalidSchedule` otherwise."""
    name = zone_name(zone)
    zone_named(name)
    return name


def _load(name: str) -> tzinfo | None:
    if name in ("UTC", "Etc/UTC"):
        return UTC  # `timezone.utc` itself: arithmetic with it is several times faster
    # ZoneInfo opens whatever file has this name: also those under `right/`, which count leap
    # seconds, and on some systems names in any case.
    if _known().get(name.casefold()) != name:
        return None
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError):
        return None


def _advice(name: str) -> str:
    known = _known()
    wanted = name[:_LONGEST].strip().replace(" ", "_").casefold()
    # The zones of Etc/ have the opposite sign: Etc/GMT+1 is an hour behind UTC.
    cities = (fold for fold in known if not fold.startswith("etc/"))
    near = [fold for fold in cities if wanted and fold.split("/")[-1] == wanted]
    if not near and _NO_NAME.fullmatch(name.strip()):
        return (
            "abbreviations and offsets do not say when clocks change: use a name such as"
            " Asia/Kolkata or Europe/Berlin, or UTC"
        )
    if wanted in _OF_THE_MACHINE:
        return "it depends on the machine: give an IANA name such as Europe/Berlin, or UTC"
    names = [
        known[fold]
        for fold in (near or difflib.get_close_matches(wanted, known, n=1, cutoff=0.7))[:3]
    ]
    if not names:
        return "give an IANA name such as Europe/Berlin, or UTC"
    return f"did you mean {' or '.join(names)}?"


@lru_cache(maxsize=1)
def _known() -> dict[str, str]:
    """The IANA names, by their form in lower case."""
    # From tzdata's own list: `available_timezones` opens every file of the system's database.
    names = (files("tzdata") / "zones").read_text().split()
    return {name.casefold(): name for name in names if name != "Factory"}
