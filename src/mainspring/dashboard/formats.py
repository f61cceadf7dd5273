"""Times, durations, numbers and addresses as people read them. The filters of the templates."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote, urlencode

from markupsafe import Markup, escape

from mainspring.core.model import Run, State
from mainspring.core.plurals import plural as with_noun
from mainspring.core.schedules.zones import zone_named

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
SHORT_ID = 20
LONGEST_JSON = 32 * 1024
"""Characters of a payload or a result that a page shows. A live page is read again and again."""

_SLOT = re.compile(r"(\d{8}T\d{6}(?:\.\d{1,3})?)\d*Z")
_NO_TIME = Markup('<span class="none">—</span>')
_NARROW_SPACE = "\N{NARROW NO-BREAK SPACE}"


def address(root: str, path: str, query: Mapping[str, Any] | None = None) -> str:
    """An address of this service. Query values that are None or empty are left out; a list gives
    one parameter for each item."""
    given = {
        name.rstrip("_"): value
        for name, value in (query or {}).items()
        if value not in (None, "", [], False)
    }
    text = urlencode(given, doseq=True)
    return f"{root}/{quote(path)}" + (f"?{text}" if text else "")


def sentence(text: str) -> str:
    """The text with a capital at its beginning and a full stop at its end."""
    text = text.strip()
    if not text:
        return text
    return text[0].upper() + text[1:] + ("" if text[-1] in ".!?:" else ".")


def number(value: float | None) -> str:
    """1 234 567; — where there is none."""
    if value is None:
        return "—"
    return f"{value:,.0f}".replace(",", _NARROW_SPACE)


def percent(share: float | None) -> str:
    if share is None:
        return "—"
    shown = f"{share * 100:.1f}".removesuffix(".0")
    if shown == "100" and share < 1:
        shown = "99.9"
    return f"{shown}{_NARROW_SPACE}%"


def span(seconds: float | timedelta | None) -> str:
    """0.2 ms, 340 ms, 2.4 s, 3 min 20 s, 2 h 5 min, 4 d 3 h."""
    if seconds is None:
        return "—"
    if isinstance(seconds, timedelta):
        seconds = seconds.total_seconds()
    if 0 < seconds < 0.00095:
        return f"{max(seconds * 1000, 0.1):.1f}{_NARROW_SPACE}ms"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f}{_NARROW_SPACE}ms"
    if seconds < 10:
        return f"{seconds:.1f}{_NARROW_SPACE}s"
    left = round(seconds)
    parts: list[str] = []
    for size, unit in _UNITS:
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{_NARROW_SPACE}{unit}")
        if len(parts) == 2 or (parts and not count):
            break
    return " ".join(parts)


def size(count: float | None) -> str:
    """Bytes: 512 B, 1.4 KB, 230 MB."""
    if count is None:
        return "—"
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return (
                f"{count:.0f}{_NARROW_SPACE}{unit}"
                if count >= 10
                else f"{count:.1f}{_NARROW_SPACE}{unit}"
            )
        count /= 1000
    raise AssertionError


def relative(moment: datetime, now: datetime) -> str:
    """in 5 min, 3 h ago, now."""
    seconds = (moment - now).total_seconds()
    if abs(seconds) < 1:
        return "now"
    text = _longest_unit(abs(seconds))
    return f"in {text}" if seconds > 0 else f"{text} ago"


def _longest_unit(seconds: float) -> str:
    for size, unit in _UNITS:
        if seconds >= size * (2 if unit == "d" else 1):
            return f"{seconds // size:.0f}{_NARROW_SPACE}{unit}"
    return f"0{_NARROW_SPACE}s"


def time_tag(moment: datetime | None, now: datetime, zone: str | None = None) -> Markup:
    """A `<time>` that shows how far away the moment is. Its tooltip shows the moment in UTC; a
    script adds the browser's zone, and keeps the text up to date."""
    return _NO_TIME if moment is None else _tag(moment, zone, relative(moment, now))


def clock_tag(moment: datetime | None, zone: str | None = None) -> Markup:
    """A `<time>` that shows the moment itself, in UTC; a script shows it in the browser's zone."""
    return _NO_TIME if moment is None else _tag(moment, zone, absolute(moment), "data-clock ")


def wall_tag(moment: datetime, now: datetime, zone: str) -> Markup:
    """A `<time>` that shows the moment as `wall_time` does, in UTC; a script shows it in the
    browser's zone."""
    return _tag(moment, zone, wall_time(moment, now, "UTC"), 'data-clock="wall" ')


def _tag(moment: datetime, zone: str | None, text: str, attribute: str = "") -> Markup:
    iso = moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return Markup('<time datetime="{}" data-zone="{}" {}title="{}">{}</time>').format(
        iso, zone or "", Markup(attribute), absolute(moment), text
    )


def wall_time(moment: datetime, now: datetime, zone: str) -> str:
    """Tue 17 Nov 09:00, by the clocks of a zone; with seconds if there are some, and with the year
    if it is another one."""
    there = moment.astimezone(zone_named(zone))
    year = "" if there.year == now.astimezone(zone_named(zone)).year else " %Y"
    seconds = ":%S" if there.second else ""
    return there.strftime(f"%a %d %b{year} %H:%M{seconds}")


def absolute(moment: datetime | None) -> str:
    """2026-11-17 09:00:05 UTC."""
    return "—" if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def pretty_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def short_json(value: Any) -> tuple[str, bool]:
    """A value as JSON, and whether that is only its beginning. A text stays as it is."""
    text = value if isinstance(value, str) else pretty_json(value)
    return text[:LONGEST_JSON], len(text) > LONGEST_JSON


def plural(count: float, word: str, words: str | None = None) -> str:
    """3 jobs, 1 job."""
    return with_noun(count, word, words).replace(",", _NARROW_SPACE)


def first_line(text: str | None, most: int = 160) -> str:
    line = (text or "").strip().split("\n", 1)[0]
    return line if len(line) <= most else line[: most - 1] + "…"


STATE_ICONS = {
    "waiting": "M8 2.5a5.5 5.5 0 1 0 0 11 5.5 5.5 0 0 0 0-11M8 5v3.2l2 1.3",
    "pending": "M8 2.5a5.5 5.5 0 1 0 0 11 5.5 5.5 0 0 0 0-11",
    "running": "M5.5 4l6 4-6 4z",
    "succeeded": "M3.5 8.5l3 3 6-7",
    "failed": "M4 4l8 8M12 4l-8 8",
    "cancelled": "M3 8h10",
    "skipped": "M4 4l4 4-4 4M9 4l4 4-4 4",
}


TONES = {
    "succeeded": "green",
    "failed": "red",
    "timed_out": "red",
    "running": "blue",
    "lost": "amber",
    "released": "amber",
    "skipped": "amber",
}
"""The colours of states and outcomes; the others are grey."""

OUTCOME_STATES = {"timed_out": "failed", "lost": "skipped", "released": "skipped"}
"""The state whose sign and colour the outcome of an attempt has, where they differ."""


def state_tag(state: str) -> Markup:
    """The state of a run, or the outcome of an attempt, as a coloured label with a sign: it can be
    read without the colour."""
    name = str(state)
    drawn_as = OUTCOME_STATES.get(name, name)
    return Markup(
        '<span class="state state-{}"><svg viewBox="0 0 16 16" aria-hidden="true">'
        '<path d="{}"/></svg>{}</span>'
    ).format(drawn_as, STATE_ICONS.get(drawn_as, "M8 8h.01"), name.replace("_", " "))


def short_id(run: Run) -> str:
    """What tells a run from the others of its job: its slot, or the end of its random id."""
    name = run.id.removeprefix(f"{run.job_id}@")
    if (slot := _SLOT.fullmatch(name)) is not None:
        return f"{slot[1]}Z"  # to the millisecond: no interval is shorter
    return name if len(name) <= SHORT_ID else f"…{name[-8:]}"


def short_worker(worker: str | None) -> str:
    """The host and the process of a worker, without the number that tells its restarts apart."""
    return "—" if worker is None else worker.rpartition(":")[0] or worker


def attempt_seconds(run: Run, now: datetime) -> float | None:
    """Seconds of the last attempt, also of one that goes on."""
    if run.state == State.RUNNING and run.started_at is not None:
        return max(0.0, (now - run.started_at).total_seconds())
    return run.duration if run.attempt else None


def lateness(run: Run, now: datetime) -> float | None:
    """Seconds from when a run was due to its first attempt, or to now while it waits for a worker.
    None where it is not known: a retry moves the time at which the run is due."""
    if run.attempt == 0 and run.state == State.PENDING and run.run_at <= now:
        return (now - run.run_at).total_seconds()
    if run.attempt == 1 and run.started_at is not None and run.state != State.PENDING:
        return max(0.0, (run.started_at - run.run_at).total_seconds())
    return None


def health_tag(status: str) -> Markup:
    return Markup('<span class="health health-{}">{}</span>').format(
        status, escape(status.replace("_", " "))
    )


FILTERS: dict[str, Callable[..., Any]] = {
    "clock": clock_tag,
    "first_line": first_line,
    "health": health_tag,
    "lateness": lateness,
    "number": number,
    "percent": percent,
    "plural": plural,
    "sentence": sentence,
    "short_id": short_id,
    "short_json": short_json,
    "short_worker": short_worker,
    "size": size,
    "span": span,
    "state": state_tag,
    "time": time_tag,
    "took": attempt_seconds,
    "wall": wall_time,
    "wall_here": wall_tag,
}
