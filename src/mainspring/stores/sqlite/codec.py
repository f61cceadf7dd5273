"""Converts runs and jobs to rows and back, by the tables of `stores/codec.py`.

Each field is a column. Payloads, results, progress, lists of names and attempts are JSON text. A
page of rows is read as one JSON text, in one step (statements.py says why).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import cache, lru_cache
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from mainspring.core.model import Job, Run, replace
from mainspring.core.policy import MAX_PRIORITY
from mainspring.errors import InvalidInput
from mainspring.stores.codec import JOB, RUN, Table, from_us, read_parts, row_reader, row_writer
from mainspring.stores.limits import concurrency_limit, rate_limit
from mainspring.stores.sqlite.statements import BulkSql, one_value, select

V = TypeVar("V", Run, Job)

_SEPARATOR = "\x1f"
_encode = json.JSONEncoder(separators=(",", ":")).encode
_DAY = 86_400_000_000


def span_us(span: timedelta) -> int:
    return span.days * _DAY + span.seconds * 1_000_000 + span.microseconds


# -- lanes ----------------------------------------------------------------------------------


def lane_of(run: Run) -> str:
    """The lane of a run: the same claims may take all runs of a lane, under the same limits. Lanes
    are sorted as claims take from them: from the highest priority down, then by job."""
    lane = _SEPARATOR.join((str(MAX_PRIORITY - run.priority), run.job_id, run.queue, run.handler))
    if lane.count(_SEPARATOR) != 3:
        raise InvalidInput(
            "a queue, handler or job name may not contain the character 0x1F:"
            f" {run.queue!r}, {run.handler!r}, {run.job_id!r}"
        )
    return lane


LANE_SQL = f"""
    ({MAX_PRIORITY} - priority) || char(31) || job_id || char(31) || queue || char(31) || handler
"""

SET_ASIDE = _SEPARATOR * 3
"""The lane of pending runs that could not be read. It has no priority, so no claim reads it."""


class Lane(NamedTuple):
    priority: int
    job_id: str
    queue: str
    handler: str

    @classmethod
    def parse(cls, text: str) -> Lane | None:
        """None: the lane is damaged, or that of runs that were set aside."""
        try:
            priority, job_id, queue, handler = text.split(_SEPARATOR)
            return cls(MAX_PRIORITY - int(priority), job_id, queue, handler)
        except ValueError:
            return None


ALL_LANES = ("/", ":")
"""Between these names lie all lanes with a priority: the characters before "0" and behind "9"."""


def lanes_from_turn(turns: Mapping[int, str]) -> list[tuple[str, str]]:
    """The names between which lie the lanes that a claim takes from, in the order of the turns."""
    ranges = []
    low, last = ALL_LANES
    for priority, job_id in sorted(turns.items(), reverse=True):
        level = str(MAX_PRIORITY - priority)
        behind = f"{level}{_SEPARATOR}{job_id} "  # a space comes behind the separator
        ranges += [(low, level), (behind, f"{level}~"), (level, behind)]
        low = f"{level}~"
    return [*ranges, (low, last)]


# -- rows -----------------------------------------------------------------------------------

ADAPTED: Mapping[str, Mapping[str, Any]] = {
    "enum": {"write": None},
    "flag": {"read": bool},
    "names": {"write": _encode, "read": json.loads},
    "time": {"read": lru_cache(maxsize=4096)(from_us)},  # the runs of a page share many
}
"""What rows hold otherwise than the records of other stores."""


class _Rows(Generic[V]):
    """The rows of a table as one JSON text: a list of lists of the columns."""

    def __init__(self, table: Table[V], number: str) -> None:
        self._table: Table[V] = table
        self._names = tuple(table.fields)
        self._read: Callable[[Iterable[Any]], V] = row_reader(table, self._names)
        columns = [f'"{name}"' for name in self._names]
        brief = ["NULL" if n in table.not_brief else f'"{n}"' for n in self._names]
        self.select = f"SELECT json_group_array(json_array({number}, {', '.join(columns)}))"
        self.select_brief = f"SELECT json_group_array(json_array({number}, {', '.join(brief)}))"

    def read(self, text: str) -> list[tuple[int, V]]:
        """What `select` returned, as (number, value), in no fixed order. Records that cannot be
        read have `unreadable` set."""
        return [(number, self._value(row)) for number, *row in msgspec.json.decode(text)]

    def _value(self, row: list[Any]) -> V:
        try:
            return self._read(row)
        except Exception:  # a damaged value may raise anything
            raw = dict(zip(self._names, row, strict=True))
            return read_parts(self._table, raw.get, raw["id"])


# -- runs -----------------------------------------------------------------------------------

_RUN = RUN.adapted(**ADAPTED)
_RUN_ROWS = _Rows(_RUN, "seq")
_WRITTEN = tuple(name for name in RUN.fields if name != "payload")
_INSERTED = (*(f'"{name}"' for name in _WRITTEN), "lane", "payload")
_run_columns = row_writer(_RUN, _WRITTEN)

RUN_SELECT = f"{_RUN_ROWS.select} FROM mainspring_runs"
BRIEF_SELECT = f"{_RUN_ROWS.select_brief} FROM mainspring_runs"
"""The same for lists. Payload, result and attempts are not read from the disk."""

RUN_INSERT = (
    f"INSERT INTO mainspring_runs ({', '.join(_INSERTED)}) SELECT * FROM (VALUES ",
    ") WHERE column1 IS NOT NULL ON CONFLICT (id) DO NOTHING",
    len(_INSERTED),
)


def run_row(run: Run, lane: str, payload: str | None) -> list[Any]:
    """The row of a run, its lane and its encoded payload, in the order of `_INSERTED`."""
    return [*_run_columns(run), lane, payload]


def read_runs(text: str, *, brief: bool = False) -> list[tuple[int, Run]]:
    """Decode what `RUN_SELECT` (or `BRIEF_SELECT`) returned, as (seq, run), in no fixed order. Runs
    that cannot be read have `unreadable` set."""
    runs = _RUN_ROWS.read(text)
    return [(seq, replace(run, brief=True)) for seq, run in runs] if brief else runs


def select_runs(
    connection: sqlite3.Connection, where: str, *parameters: Any, brief: bool = False
) -> list[tuple[int, Run]]:
    """The runs that `where` selects, as `read_runs` gives them."""
    sql = f"{BRIEF_SELECT if brief else RUN_SELECT} {where}"
    return read_runs(one_value(connection, sql, parameters), brief=brief)


def select_runs_by(
    connection: sqlite3.Connection,
    where: BulkSql,
    rows: Sequence[Sequence[Any]],
    *after: Any,
    brief: bool = False,
) -> list[tuple[int, Run]]:
    """The same for a statement with many rows of parameters."""
    head, tail, width = where
    sql = (f"{BRIEF_SELECT if brief else RUN_SELECT} {head}", tail, width)
    texts = select(connection, sql, rows, *after)
    return [run for text in texts for run in read_runs(text, brief=brief)]


def runs_by_id(
    connection: sqlite3.Connection, ids: Iterable[str], *, brief: bool = False
) -> dict[str, Run]:
    rows = [(run_id,) for run_id in ids]
    return {run.id: run for _, run in select_runs_by(connection, _BY_ID, rows, brief=brief)}


_BY_ID = ("WHERE id IN (VALUES ", ")", 1)


def name_list(names: Iterable[str]) -> str:
    """A JSON list for `json_each`, which ends a text at a NUL and so would find another name. No
    stored name contains a NUL (`check_key` sees to it)."""
    return json.dumps([name for name in names if "\0" not in name])


@cache
def change_column(field: str) -> tuple[str, Callable[[Any], Any] | None]:
    """The column of a run's field, and the function that encodes its value (None: unchanged)."""
    return f'"{field}"', _RUN.field(field).encoder


# -- jobs -----------------------------------------------------------------------------------

_JOB = JOB.adapted(**ADAPTED)
_JOB_ROWS = _Rows(_JOB, "rowid")
_JOB_SELECT = f"{_JOB_ROWS.select} FROM mainspring_jobs"
_JOB_FIELDS = tuple(JOB.fields)
_job_columns = row_writer(_JOB, _JOB_FIELDS)

JOB_COLUMNS = (*_JOB_FIELDS, "concurrency", "limit_key", "rate", "queue", "follows")
"""The columns that `job_row` gives, the id first."""


def job_row(job: Job) -> list[Any]:
    limit, rate = concurrency_limit(job), rate_limit(job)
    return [
        *_job_columns(job),
        None if limit is None else limit.most,
        None if limit is None else limit.key,
        None if rate is None else _encode(rate),
        job.policy.queue,
        bool(job.policy.after),
    ]


def select_jobs(connection: sqlite3.Connection, where: str, *parameters: Any) -> list[Job]:
    """Jobs in no fixed order. Jobs that cannot be read have `unreadable` set."""
    text = one_value(connection, f"{_JOB_SELECT} {where}", parameters)
    return [job for _, job in _JOB_ROWS.read(text)]
