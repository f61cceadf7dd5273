"""Prints results: tables and colour on a terminal, plain columns in a pipe, or JSON. Times are for
people (local zone, words) or for programs (ISO 8601, UTC)."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from msgspec import structs

from mainspring.core import codec
from mainspring.core.clock import utcnow
from mainspring.core.codec import to_document
from mainspring.core.model import Job, Run
from mainspring.webhooks.service import masked_webhook

if TYPE_CHECKING:
    from rich.console import Console

    from mainspring.core.model import Page

T = TypeVar("T")

STYLES = {
    "waiting": "cyan",
    "pending": "cyan",
    "running": "blue",
    "succeeded": "green",
    "failed": "red",
    "cancelled": "yellow",
    "skipped": "yellow",
    "timed_out": "red",
    "lost": "red",
    "released": "yellow",
    "paused": "yellow",
    "no worker": "red",
    "ok": "green",
    "warn": "yellow",
    "fail": "bold red",
}

GAP = 2
"""Blanks between two columns."""

SHORTEST_PREFIX = 12
"""Characters of an id that are shown at least: an enqueued run's id begins with its time."""


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """`plain` formats a cell for pipes, `pretty` for terminals. A `whole` cell is never wrapped.

    The other fields say how a table becomes narrower than its texts: a
    column with `by_prefix` holds ids that commands also take by their beginning, so they are cut to
    where they still differ; columns with `hide` are left out, the highest number first; a column
    with `least` is cut to no fewer than so many characters, with …. Columns without any of these
    wrap.
    """

    title: str
    plain: Callable[[T], str]
    pretty: Callable[[T], str] | None = None
    whole: bool = False
    state: bool = False
    least: int | None = None
    by_prefix: bool = False
    hide: int = 0


def time_column(title: str, moment: Callable[[T], datetime | None], *, hide: int = 0) -> Column[T]:
    return Column(
        title,
        lambda row: iso_seconds(moment(row)),
        lambda row: _ago(moment(row)),
        whole=True,
        hide=hide,
    )


class Output:
    """Prints for people, or with `as_json` one document on stdout and nothing else: a command gives
    both the document and the lines, and one of them is printed."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        self.pretty = not as_json and sys.stdout.isatty()

    def document(self, value: Any) -> None:
        if self.as_json:
            sys.stdout.write(json_text(value) + "\n")
            sys.stdout.flush()

    async def item_pages(
        self, pages: AsyncIterable[Page[T]], shape: Callable[[T], dict[str, Any]]
    ) -> None:
        """Print one document, `{"items": […], "cursor": …}`, page by page, so that only one page
        is held in memory. Nothing is printed before the first page was read."""
        before, cursor = '{\n  "items": [', None
        async for page in pages:
            for item in page.items:
                text = json_text(shape(item)).replace("\n", "\n    ")
                sys.stdout.write(f"{before}\n    {text}")
                before = ","
            cursor = page.cursor
        end = "\n  ]" if before == "," else f"{before}]"
        sys.stdout.write(f'{end},\n  "cursor": {json_text(cursor)}\n}}\n')

    def line(self, text: str = "", *, style: str = "") -> None:
        text = printable(text)
        if self.pretty:
            # Soft: the terminal wraps a long line, so that an id or a key can be copied whole.
            self._console.print(
                text, style=style or None, markup=False, highlight=False, soft_wrap=True
            )
        elif not self.as_json:
            sys.stdout.write(text + "\n")

    def moment(self, moment: datetime | None) -> str:
        """A time: in words for people, in UTC for a pipe."""
        return when(moment) if self.pretty else iso_seconds(moment)

    def note(self, text: str) -> None:
        """Print a remark on stderr, so that a pipe gets only the result."""
        if not self.as_json:
            sys.stderr.write(printable(text) + "\n")

    def greeting(self, name: str, place: str, *lines: str) -> None:
        """Print on stderr what a process does that has started. A path with [brackets] stays as it
        is."""
        if self.as_json:
            return
        from rich.console import Console
        from rich.text import Text

        console = Console(stderr=True, highlight=False, soft_wrap=True)
        console.print(Text.assemble((name, "bold"), f" on {printable(place)}"))
        for line in lines[:-1]:
            console.print(Text(f"  {printable(line)}"))
        console.print(Text(f"  {lines[-1]}", style="dim"))

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Show a spinner on a terminal while the block runs."""
        if self.as_json or not sys.stderr.isatty():
            yield
            return
        from rich.console import Console
        from rich.text import Text

        with Console(stderr=True).status(Text(printable(text))):
            yield

    def table(self, columns: Sequence[Column[T]], rows: Iterable[T]) -> None:
        if self.pretty:
            self._pretty_table(columns, rows)
        elif not self.as_json:
            self._plain_table(columns, rows)

    def fields(self, pairs: Iterable[tuple[str, str | None]]) -> None:
        """Print names and values, one on each line, without those that have no value."""
        shown = [(name, printable(value)) for name, value in pairs if value]
        width = max((len(name) for name, _ in shown), default=0)
        if not self.pretty:
            for name, value in shown:
                self.line(f"{name + ':':{width + 1}} {value}")
            return
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(overflow="fold")
        for name, value in shown:
            grid.add_row(name, Text(value, style=STYLES.get(value, "")))
        self._console.print(grid)

    def _plain_table(self, columns: Sequence[Column[T]], rows: Iterable[T]) -> None:
        lines = [[_heading(column.title) for column in columns]]
        lines += [[_one_line(column.plain(row)) or "-" for column in columns] for row in rows]
        widths = [max(len(line[n]) for line in lines) for n in range(len(columns))]
        for line in lines:
            cells = (f"{cell:{width}}" for cell, width in zip(line, widths, strict=True))
            sys.stdout.write("  ".join(cells).rstrip() + "\n")

    def _pretty_table(self, columns: Sequence[Column[T]], rows: Iterable[T]) -> None:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        shown = _fit(columns, list(rows), self._console.width)
        table = Table(
            box=SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
            padding=(0, 1, 0, 0),
            header_style="bold",
        )
        for column, _, width in shown:
            is_cut = column.whole or column.state or column.least is not None
            overflow: Literal["ellipsis", "fold"] = "ellipsis" if is_cut else "fold"
            table.add_column(column.title, width=width, overflow=overflow, no_wrap=is_cut)
        for texts in zip(*(texts for _, texts, _ in shown), strict=True):
            table.add_row(
                *(
                    Text(text, style=STYLES.get(text, "") if column.state else "")
                    for (column, _, _), text in zip(shown, texts, strict=True)
                )
            )
        self._console.print(table)
        titles = {column.title for column, _, _ in shown}
        if hidden := [column.title for column in columns if column.title not in titles]:
            self.note(
                f"left out of this narrow table: {', '.join(hidden)}. A wider terminal or --json"
                " has them"
            )

    @cached_property
    def _console(self) -> Console:
        from rich.console import Console

        return Console()


def when(moment: datetime | None) -> str:
    """A time for a terminal: `09:30:00 (in 5 minutes)`."""
    if moment is None:
        return "-"
    now = utcnow()
    return f"{local(moment, now)} ({relative(moment, now)})"


def _ago(moment: datetime | None) -> str:
    """The same for a table: `in 5 minutes`."""
    return "-" if moment is None else relative(moment, utcnow())


def _heading(title: str) -> str:
    """A title in capitals, but the name of a time zone as it is."""
    return title.upper() if title.islower() else title


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))


def printable(text: str) -> str:
    """The text with control characters escaped, but for new lines and tabs. A terminal would obey
    them: stored text could clear the screen, set the title or write to the clipboard. Lone
    surrogates, as in names of files that are not UTF-8, are escaped because nothing can encode
    them."""
    return (
        _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
        .encode("utf-8", "backslashreplace")
        .decode()
    )


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def json_text(value: Any, *, indent: int | None = 2) -> str:
    document = to_document(value, time=iso)
    text = json.dumps(document, ensure_ascii=False, indent=indent)
    if printable(text) == text:
        return text
    # The same JSON in ASCII. Python escapes all but DEL, which only texts contain.
    return json.dumps(document, indent=indent).replace("\x7f", "\\u007f")


@contextmanager
def progress_bar(*, quiet: bool) -> Iterator[Callable[[int, int | None], None]]:
    """A bar on a terminal's stderr; elsewhere nothing. Gives a function that sets how many items
    are done, and of how many."""
    if quiet or not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _fit(
    columns: Sequence[Column[T]], rows: Sequence[T], width: int
) -> list[tuple[Column[T], list[str], int]]:
    """The columns with their texts and widths, made as narrow as the terminal: ids by their
    beginning, then fewer columns, then cut texts, the last column first."""
    from rich.cells import cell_len

    def need(column: Column[T], *, cut: bool) -> int:
        widest = max(map(cell_len, (column.title, *texts[column.title])))
        if not cut or column.least is None:
            return widest
        return min(widest, max(column.least, len(column.title)))

    def excess(*, cut: bool) -> int:
        return sum(need(column, cut=cut) + GAP for column in shown) - GAP - width

    shown = list(columns)
    texts = {
        column.title: [_one_line((column.pretty or column.plain)(row)) or "-" for row in rows]
        for column in shown
    }
    if excess(cut=True) > 0:
        texts |= {c.title: _shortest_prefixes(texts[c.title]) for c in shown if c.by_prefix}
    while excess(cut=True) > 0 and any(column.hide for column in shown):
        shown.remove(max(shown, key=lambda column: column.hide))
    over, widths = max(0, excess(cut=False)), dict[str, int]()
    for column in reversed(shown):
        widest = need(column, cut=False)
        widths[column.title] = max(widest - over, need(column, cut=True))
        over -= widest - widths[column.title]
    return [(column, texts[column.title], widths[column.title]) for column in shown]


def _shortest_prefixes(ids: Sequence[str]) -> list[str]:
    """The ids up to where all still differ, with … for the rest."""
    kinds = len(set(ids))
    length = next(n for n in count(SHORTEST_PREFIX) if len({text[:n] for text in ids}) == kinds)
    return [text if len(text) <= length + 1 else f"{text[:length]}…" for text in ids]


# Times

_UNITS = (
    ("second", 1, 60),
    ("minute", 60, 60),
    ("hour", 3_600, 24),
    ("day", 86_400, math.inf),
)


def iso(moment: datetime | None) -> str | None:
    """`2026-11-15T09:30:00Z`, with a fraction where there is one."""
    return None if moment is None else moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def iso_seconds(moment: datetime | None) -> str:
    """The same to the second, for columns; `-` for none."""
    return "-" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def span(length: float) -> str:
    """Seconds, short and without spaces: `0.42s`, `12s`, `3m05s`, `2h10m`."""
    whole = round(length)
    if length < 10:
        return f"{length:.2f}s"
    if whole < 60:
        return f"{whole}s"
    if whole < 3_600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3_600}h{whole % 3_600 // 60:02}m"


def relative(moment: datetime, now: datetime) -> str:
    """`in 5 minutes`, `3 hours ago`, `now`: one unit, rounded."""
    distance = (moment - now) / timedelta(seconds=1)
    for word, size, limit in _UNITS:
        count = round(abs(distance) / size)
        if count == 0:
            return "now"
        if count < limit:
            words = f"{count} {word}{'s' if count != 1 else ''}"
            return f"in {words}" if distance > 0 else f"{words} ago"
    raise AssertionError("days have no limit")


def local(moment: datetime, now: datetime, zone: tzinfo | None = None) -> str:
    """Wall time in a zone (the machine's own unless given), no longer than is needed."""
    here, today = moment.astimezone(zone), now.astimezone(zone)
    if here.date() == today.date():
        return f"{here:%H:%M:%S}"
    if here.year == today.year:
        return f"{here:%a %d %b %H:%M:%S}"
    return f"{here:%a %d %b %Y %H:%M}"


# Documents: jobs and runs with the fields of the Python API


def run_document(run: Run) -> dict[str, Any]:
    fields = structs.asdict(run)
    del fields["brief"]
    values = {"payload": plain_json(run.payload), "result": plain_json(run.result)}
    return {**fields, **values, "duration": run.duration}


def job_document(job: Job) -> dict[str, Any]:
    schedule = job.schedule
    return {
        **structs.asdict(job),
        "payload": plain_json(job.payload),
        "metadata": plain_json(job.metadata),
        "schedule": None
        if schedule is None
        else {**schedule.to_dict(), "description": schedule.describe()},
        "policy": job.policy.to_dict(),
        "origins": job.policy_origins(),
        "webhook": None if job.webhook is None else masked_webhook(job.webhook),
    }


def plain_json(value: Any) -> Any:
    """A payload or result in JSON's own types; what JSON lacks is tagged, as it is stored."""
    return json.loads(codec.encode(value, limit=2**31))
