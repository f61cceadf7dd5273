"""Runs and jobs as rows, by the tables of `stores/codec.py`.

Each field is a column. Payloads, results, progress, lists of names and attempts are JSON text, and
times are microseconds since 1970: what other stores keep, so that one codec serves all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Generic, TypeVar

from mainspring.core.model import Job, Run, replace
from mainspring.stores.codec import JOB, RUN, Table, read_parts, row_reader, row_writer
from mainspring.stores.postgresql.database import Transaction
from mainspring.stores.sql import LIMIT_COLUMNS, limit_columns

V = TypeVar("V", Run, Job)
_encode = json.JSONEncoder(separators=(",", ":")).encode


ADAPTED: Mapping[str, Mapping[str, Any]] = {
    "names": {"write": _encode, "read": json.loads},
}


class Rows(Generic[V]):
    """The columns of a table, and the values that its rows are."""

    def __init__(self, table: Table[V], more: Sequence[str] = ()) -> None:
        self.table: Table[V] = table
        self.names: tuple[str, ...] = tuple(table.fields)
        self._read: Callable[[Iterable[Any]], V] = row_reader(table, self.names)
        self.columns: str = ", ".join([*more, *(f'"{name}"' for name in self.names)])
        brief: list[str] = ["NULL" if n in table.not_brief else f'"{n}"' for n in self.names]
        self.brief_columns = ", ".join([*more, *brief])

    def read(self, row: Sequence[Any]) -> V:
        """Its value; with `unreadable` set where it cannot be read."""
        try:
            return self._read(row)
        except Exception:  # a damaged value may raise anything
            raw = dict(zip(self.names, row, strict=True))
            return read_parts(self.table, raw.get, raw["id"])


_RUN = RUN.adapted(**ADAPTED)
RUNS = Rows(_RUN, ["seq"])
_write_run = row_writer(_RUN, tuple(RUN.fields))
_FLAGS = frozenset(
    {"cancel_requested", "after_any", "began", "enabled", "stated_enabled", "follows"}
)
_FLAGS |= {"done", "set_aside"}
_TEXT_KINDS = frozenset(
    {"text", "free_text", "enum", "value", "names", "attempts", "progress", "schedule", "policy"}
)


def array_type(name: str, table: Table[Any] = _RUN) -> str:
    """The type of the array that carries a column's values of many rows."""
    if name in _FLAGS:
        return "boolean[]"
    field = table.fields.get(name)
    if field is None:
        return {"concurrency": "bigint[]"}.get(name, "text[]")
    return "text[]" if field.kind.name in {*_TEXT_KINDS, "webhook"} else "bigint[]"


def arrays(rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """The columns of these rows, as the parameters of an `unnest`."""
    return [list(column) for column in zip(*rows, strict=True)]


def unnest(types: Sequence[str]) -> str:
    return f"unnest({', '.join(f'%s::{each}' for each in types)})"


INSERTED = (*RUN.fields, "done")
_QUOTED = ", ".join(f'"{name}"' for name in INSERTED)
INSERT_RUNS = (
    f"INSERT INTO mainspring.runs ({_QUOTED})"
    f" SELECT * FROM {unnest([array_type(name) for name in INSERTED])}"
    " ON CONFLICT DO NOTHING"
)


def run_row(run: Run) -> list[Any]:
    return [*_write_run(run), run.finished]


async def select_runs(
    tx: Transaction, where: str, parameters: Sequence[Any] = (), *, brief: bool = False
) -> list[tuple[int, Run]]:
    """The runs that `where` selects, each with its number."""
    columns = RUNS.brief_columns if brief else RUNS.columns
    rows = await tx.rows(f"SELECT {columns} FROM mainspring.runs {where}", parameters)
    return [(row[0], _as_listed(RUNS.read(row[1:]), brief=brief)) for row in rows]


def _as_listed(run: Run, *, brief: bool) -> Run:
    return replace(run, brief=True) if brief else run


async def runs_by_id(tx: Transaction, ids: Iterable[str], *, brief: bool = False) -> dict[str, Run]:
    runs = await select_runs(tx, "WHERE id = ANY(%s)", [list(ids)], brief=brief)
    return {run.id: run for _, run in runs}


@cache
def change_column(field: str) -> tuple[str, Callable[[Any], Any] | None, str]:
    """The column of a run's field, the function that encodes its value, and its array's type."""
    return f'"{field}"', _RUN.field(field).encoder, array_type(field)


# -- jobs -----------------------------------------------------------------------------------

_JOB = JOB.adapted(**ADAPTED)
JOBS = Rows(_JOB)
_write_job = row_writer(_JOB, tuple(JOB.fields))
JOB_COLUMNS = (*JOB.fields, *LIMIT_COLUMNS)
PUT_JOBS = (
    f"INSERT INTO mainspring.jobs ({', '.join(JOB_COLUMNS)})"
    f" SELECT * FROM {unnest([array_type(name, _JOB) for name in JOB_COLUMNS])}"
    " ON CONFLICT (id) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in JOB_COLUMNS[1:])
)


def job_row(job: Job) -> list[Any]:
    return [*_write_job(job), *limit_columns(job)]


async def select_jobs(tx: Transaction, where: str, parameters: Sequence[Any] = ()) -> list[Job]:
    rows = await tx.rows(f"SELECT {JOBS.columns} FROM mainspring.jobs {where}", parameters)
    return [JOBS.read(row) for row in rows]
