"""Prints results: tables and colour on a terminal, plain columns in a pipe, or JSON."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from mainspring.cli import time_format
from mainspring.core.clock import utcnow
from mainspring.core.documents import to_document

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

    The other fields say how a table becomes narrower than its texts, in the order in which that is
    done: `short` is a shorter text; a column with `least` is cut to so many characters, with …; a
    column with `by_prefix` holds ids that commands also take by their beginning, so they are cut to
    where they still differ; columns with `hide` are left out, the highest number first. Columns
    without any of these wrap.
    """

    title: str
    plain: Callable[[T], str]
    pretty: Callable[[T], str] | None = None
    whole: bool = False
    state: bool = False
    short: Callable[[T], str] | None = None
    least: int | None = None
    by_prefix: bool = False
    hide: int = 0


class Output:
    """Prints for people, or with `as_json` one document on stdout and nothing else."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        self.pretty = not as_json and sys.stdout.isatty()

    def document(self, value: Any) -> None:
        sys.stdout.write(json_text(value) + "\n")

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
        else:
            sys.stdout.write(text + "\n")

    def note(self, text: str) -> None:
        """Print a remark on stderr, so that a pipe gets only the result."""
        sys.stderr.write(printable(text) + "\n")

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
        else:
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

        layout = fit_table(columns, list(rows), self._console.width, _one_line)
        table = Table(
            box=SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
            padding=(0, 1, 0, 0),
            header_style="bold",
        )
        for column, width in zip(layout.columns, layout.widths, strict=True):
            keeps_line = column.whole or column.state or column.least is not None
            table.add_column(
                column.title,
                width=width,
                overflow="ellipsis" if keeps_line else "fold",
                no_wrap=keeps_line,
            )
        for line in layout.lines:
            table.add_row(
                *(
                    Text(text, style=STYLES.get(text, "") if column.state else "")
                    for column, text in zip(layout.columns, line, strict=True)
                )
            )
        self._console.print(table)
        if layout.hidden:
            titles = ", ".join(column.title for column in layout.hidden)
            self.note(
                f"left out of this narrow table: {titles}. A wider terminal or --json has them"
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
    return f"{time_format.local(moment, now)} ({time_format.relative(moment, now)})"


def when_short(moment: datetime | None) -> str:
    """The same for a narrow terminal: `09:30:00`, or `18 Nov 09:30` on another day."""
    return "-" if moment is None else time_format.local_short(moment, utcnow())


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
    document = to_document(value, time=time_format.iso)
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


# How a table becomes as narrow as a terminal


@dataclass(frozen=True, slots=True)
class TableLayout(Generic[T]):
    """What is printed. A width of None is left to the table: its columns wrap."""

    columns: list[Column[T]]
    lines: list[list[str]]
    widths: list[int | None]
    hidden: list[Column[T]]


def fit_table(
    columns: Sequence[Column[T]], rows: Sequence[T], width: int, clean: Callable[[str], str]
) -> TableLayout[T]:
    """The first of these that fits: the whole texts, short ones, cut ones, ids by their beginning,
    fewer columns. `clean` makes a text fit to print in one line."""
    shown, hidden = list(columns), list[Column[T]]()

    def texts_of(formats: Callable[[T], str]) -> list[str]:
        return [clean(formats(row)) or "-" for row in rows]

    whole = [texts_of(column.pretty or column.plain) for column in shown]
    widths = _widths(shown, whole)
    if _total(widths) <= width:
        return _layout(shown, whole, widths, hidden)
    short = {
        column.title: texts if column.short is None else texts_of(column.short)
        for column, texts in zip(shown, whole, strict=True)
    }
    by_prefix = {
        column.title: shortest_prefixes(short[column.title]) for column in shown if column.by_prefix
    }
    choices = [short] if not by_prefix else [short, {**short, **by_prefix}]
    while True:
        for texts in choices:
            cells = [texts[column.title] for column in shown]
            cut = _cut(shown, _widths(shown, cells), width)
            if cut is not None:
                return _layout(shown, cells, cut, hidden)
        least_wanted = max(shown, key=lambda column: column.hide)
        if not least_wanted.hide:
            return TableLayout(shown, _lines(cells), [None] * len(shown), hidden)
        shown.remove(least_wanted)
        hidden.append(least_wanted)


def shortest_prefixes(ids: Sequence[str]) -> list[str]:
    """Each id up to where it differs from all others, with … for the rest."""
    ordered = sorted(set(ids))
    lengths: dict[str, int] = {}
    for at, one in enumerate(ordered):
        beside = ordered[max(at - 1, 0) : at] + ordered[at + 1 : at + 2]
        shared = max((_shared(one, other) for other in beside), default=0)
        lengths[one] = max(shared + 1, SHORTEST_PREFIX)
    return [one if len(one) <= lengths[one] + 1 else f"{one[: lengths[one]]}…" for one in ids]


def _shared(one: str, other: str) -> int:
    """How many characters two texts have in common at their beginning."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _widths(columns: Sequence[Column[T]], cells: Sequence[Sequence[str]]) -> list[int]:
    from rich.cells import cell_len

    return [
        max(map(cell_len, (column.title, *texts)))
        for column, texts in zip(columns, cells, strict=True)
    ]


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _cut(columns: Sequence[Column[T]], widths: list[int], width: int) -> list[int] | None:
    """The widths after columns with `least` were cut, the last first. None: that is not enough."""
    excess = _total(widths) - width
    for at in range(len(columns) - 1, -1, -1):
        least = columns[at].least
        if excess > 0 and least is not None:
            taken = min(excess, max(widths[at] - max(least, len(columns[at].title)), 0))
            widths[at] -= taken
            excess -= taken
    return None if excess > 0 else widths


def _layout(
    columns: list[Column[T]],
    cells: list[list[str]],
    widths: Sequence[int],
    hidden: list[Column[T]],
) -> TableLayout[T]:
    return TableLayout(columns, _lines(cells), [*widths], hidden)


def _lines(cells: Sequence[Sequence[str]]) -> list[list[str]]:
    return [list(line) for line in zip(*cells, strict=True)]
