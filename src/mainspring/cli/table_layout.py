"""Fits a table into the width of a terminal, one line for each row where the columns allow it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Column", "TableLayout", "fit_table", "shortest_prefixes"]

T = TypeVar("T")

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
