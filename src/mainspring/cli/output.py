"""Prints results: tables and colour on a terminal, plain columns in a pipe, or JSON."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from mainspring.cli import time_format
from mainspring.cli.table_layout import Column, fit_table
from mainspring.core.clock import utcnow
from mainspring.core.documents import to_document

if TYPE_CHECKING:
    from rich.console import Console

    from mainspring.core.model import Page

__all__ = [
    "Column",
    "Output",
    "json_text",
    "printable",
    "progress_bar",
    "when",
    "when_short",
]

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
