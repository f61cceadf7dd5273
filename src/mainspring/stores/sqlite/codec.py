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
from typing import Any, Generic, TypeVar

import msgspec

from mainspring.core.model import Job, Run, replace
from mainspring.core.policy import MAX_PRIORITY
from mainspring.stores.codec import JOB, RUN, Table, from_us, read_parts, row_reader, row_writer
from mainspring.stores.sql import LIMIT_COLUMNS, SEPARATOR, limit_columns
from mainspring.stores.sqlite.statements import BulkSql, bulk, one_value, select

V = TypeVar("V", Run, Job)

_encode = json.JSONEncoder(separators=(",", ":")).encode
_DAY = 86_400_000_000


def span_us(span: timedelta) -> int:
    return span.days * _DAY + span.seconds * 1_000_000 + span.microseconds


LANE_SQL = f"""
    ({MAX_PRIORITY} - priority) || char(31) || job_id || char(31) || queue || char(31) || handler
"""

SET_ASIDE = SEPARATOR * 3
"""The lane of pending runs that could not be read. It has no priority, so no claim reads it."""


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
_OWN = (
    *("id", "job_id", "handler", "queue", "priority", "created_at", "scheduled_at", "run_at"),
    *("start_by", "dedupe_key", "after"),
)
_SHARED = tuple(name for name in RUN.fields if name not in (*_OWN, "payload"))
_own_columns = row_writer(_RUN, _OWN)
_shared_columns = row_writer(_RUN, _SHARED)
"""The columns that a new run mostly has in common with the others of its batch. They are compared
as they are stored: 1 and True are equal, and their JSON is not."""

RUN_SELECT = f"{_RUN_ROWS.select} FROM mainspring_runs"
BRIEF_SELECT = f"{_RUN_ROWS.select_brief} FROM mainspring_runs"
"""The same for lists. Payload, result and attempts are not read from the disk."""

_COLUMNS = [f'"{name}"' for name in (*_OWN, "lane", "payload", *_SHARED)]
_INSERT = (
    f"INSERT INTO mainspring_runs ({', '.join(_COLUMNS)}) SELECT * FROM (VALUES ",
    ") AS run WHERE run.column1 IS NOT NULL ON CONFLICT (id) DO NOTHING",
    len(_COLUMNS),
)
_INSERT_ALIKE = (
    _INSERT[0],
    f") AS run CROSS JOIN (SELECT {', '.join('?' * len(_SHARED))})"
    " WHERE run.column1 IS NOT NULL ON CONFLICT (id) DO NOTHING",
    len(_OWN) + 2,
)
"""The same for runs with the same shared columns, which are bound once. To bind them for each run
took a tenth of the time of an enqueue in bulk."""


def insert_runs(connection: sqlite3.Connection, runs: Sequence[tuple[Run, str, str | None]]) -> int:
    """Insert runs, each with its lane and its encoded payload; return how many are new."""
    own = [[*_own_columns(run), lane, payload] for run, lane, payload in runs]
    shared = [_shared_columns(run) for run, _, _ in runs]
    if all(columns == shared[0] for columns in shared):
        return bulk(connection, _INSERT_ALIKE, own, *(shared[0] if shared else ()))
    return bulk(connection, _INSERT, [[*o, *s] for o, s in zip(own, shared, strict=True)])


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

JOB_COLUMNS = (*_JOB_FIELDS, *LIMIT_COLUMNS)
"""The columns that `job_row` gives, the id first."""


def job_row(job: Job) -> list[Any]:
    return [*_job_columns(job), *limit_columns(job)]


def select_jobs(connection: sqlite3.Connection, where: str, *parameters: Any) -> list[Job]:
    """Jobs in no fixed order. Jobs that cannot be read have `unreadable` set."""
    text = one_value(connection, f"{_JOB_SELECT} {where}", parameters)
    return [job for _, job in _JOB_ROWS.read(text)]
