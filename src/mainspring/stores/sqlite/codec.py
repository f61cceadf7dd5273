"""Converts runs and jobs to rows and back, by the tables of `stores/codec.py`.

Each field of a run is a column. Payload, result, progress, upstream ids and attempts are columns of
JSON text. A job has columns for the fields that queries use, and one JSON list for the rest. A page
of rows is read as one JSON text, in one step (row_batches.py says why).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import cache, lru_cache
from typing import Any, NamedTuple

import msgspec

from mainspring.core import codec
from mainspring.core.model import Attempt, Job, Outcome, Owner, Progress, Run, replace
from mainspring.core.policy import MAX_PRIORITY
from mainspring.errors import InvalidInput
from mainspring.stores.codec import (
    ATTEMPT,
    JOB,
    RUN,
    as_list,
    from_us,
    read_parts,
    row_reader,
    row_writer,
)
from mainspring.stores.rates import rate_limit
from mainspring.stores.sqlite.row_batches import BulkSql, select

_SEPARATOR = "\x1f"
_encode = json.JSONEncoder(separators=(",", ":")).encode
_quoted = json.encoder.encode_basestring_ascii
_DAY = 86_400_000_000
_NO_LIMIT = 2**31


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


# -- values that rows store in a special form -----------------------------------------------


def progress_text(progress: Progress | None) -> str | None:
    if progress is None:
        return None
    return _encode((progress.done, progress.total, progress.message))


def _detail_text(value: Any) -> str:
    """The detail of an attempt. It is plain JSON of limited size already, so only a value that
    looks like a tag of the codec needs the slower encoder."""
    text = msgspec.json.encode(value).decode()
    return codec.encode(value, what="detail", limit=_NO_LIMIT) if '"$' in text else text


# An attempt is a list of its fields in order.
# Every run that ends is written here, mostly with one attempt. Formatting the text like this takes
# half as long as a JSON encoder.
_PARTS = ATTEMPT.adapted(
    text={"write": _quoted},
    outcome={"write": {outcome: f'"{outcome}"' for outcome in Outcome}.__getitem__},
    free_text={"write": _quoted},
    names={"write": _encode},
    value={"write": _detail_text, "fast_read": None},
    number={"write": str},
    decimal={"write": repr},
)
_PART_NAMES = tuple(_PARTS.fields)
_attempt_parts = row_writer(
    _PARTS,
    _PART_NAMES,
    dict.fromkeys(("error", "traceback", "detail", "cpu_seconds", "peak_memory"), "null")
    | {"log": "[]"},
)
_ATTEMPT_TEXT = f"[{','.join(['%s'] * len(_PART_NAMES))}]"
_attempt = row_reader(_PARTS, _PART_NAMES)


def _attempts(attempts: Sequence[Attempt]) -> str:
    return f"[{','.join([_ATTEMPT_TEXT % (*_attempt_parts(attempt),) for attempt in attempts])}]"


def _read_list(text: str) -> list[Any]:
    return as_list(codec.decode(text))


_ROWS = RUN.adapted(
    source={"write": None},
    state={"write": None},
    time={"fast_read": lru_cache(maxsize=4096)(from_us)},  # the runs of a page share many
    flag={"fast_read": bool},
    value={"fast_read": None},
    progress={
        "write": progress_text,
        "read": lambda text: Progress(*_read_list(text)),
        "fast_read": lambda parts: Progress(*parts),
    },
    names={"write": _encode, "read": lambda text: tuple(_read_list(text))},
    attempts={
        "write": _attempts,
        "read": lambda text: tuple(map(_attempt, _read_list(text))),
        "fast_read": lambda attempts: tuple(map(_attempt, attempts)),
    },
)


# -- runs -----------------------------------------------------------------------------------

_JSON_KINDS = ("value", "progress", "names", "attempts")
_FIELDS = RUN.fields.values()
_PLAIN = ("seq", *(f.name for f in _FIELDS if f.kind.name not in _JSON_KINDS))
_JSON_FIELDS = tuple(f.name for f in _FIELDS if f.kind.name in _JSON_KINDS)
_JSON = tuple(f'"{name}"' for name in _JSON_FIELDS)
_WRITTEN = tuple(name for name in RUN.fields if name != "payload")
_INSERTED = (*(f'"{name}"' for name in _WRITTEN), "lane", "payload")

# The JSON columns are inserted unchanged: SQLite need not parse them, and Python reads the whole
# page in one pass of its C decoder.
RUN_SELECT = (
    f"SELECT group_concat(json_array({', '.join(_PLAIN)})"
    + "".join(f" || ',' || coalesce({name}, 'null')" for name in _JSON)
    + ") FROM mainspring_runs"
)
_NOT_BRIEF = frozenset(f'"{name}"' for name in RUN.not_brief)
BRIEF_SELECT = (
    f"SELECT group_concat(json_array({', '.join(_PLAIN)})"
    + "".join(
        " || ',null'" if name in _NOT_BRIEF else f" || ',' || coalesce({name}, 'null')"
        for name in _JSON
    )
    + ") FROM mainspring_runs"
)
"""The same for lists. Payload, result and attempts are not read from the disk."""

RUN_INSERT = (
    f"INSERT INTO mainspring_runs ({', '.join(_INSERTED)}) SELECT * FROM (VALUES ",
    ") WHERE column1 IS NOT NULL ON CONFLICT (id) DO NOTHING",
    len(_INSERTED),
)
_STRIDE = 1 + len(_JSON)


_run_columns = row_writer(_ROWS, _WRITTEN)


def run_row(run: Run, lane: str, payload: str | None) -> list[Any]:
    """The row of a run, its lane and its encoded payload, in the order of `_INSERTED`."""
    return [*_run_columns(run), lane, payload]


_run = row_reader(_ROWS, (*_PLAIN[1:], *_JSON_FIELDS, "brief"))


def read_runs(text: str | None, *, brief: bool = False) -> list[tuple[int, Run]]:
    """Decode what `RUN_SELECT` (or `BRIEF_SELECT`) returned, as (seq, run), in no fixed order.
    Raises if any of the runs cannot be read."""
    if text is None:
        return []
    flat = codec.decode(f"[{text}]")
    return [
        (flat[at][0], _run((*flat[at][1:], *flat[at + 1 : at + _STRIDE], brief)))
        for at in range(0, len(flat), _STRIDE)
    ]


def select_runs(
    connection: sqlite3.Connection, where: str, *parameters: Any, brief: bool = False
) -> list[tuple[int, Run]]:
    """The runs that `where` selects, as (seq, run), in no fixed order. Runs that cannot be read
    have `unreadable` set."""
    select_them = BRIEF_SELECT if brief else RUN_SELECT
    try:
        sql = f"{select_them} {where}"
        return read_runs(connection.execute(sql, parameters).fetchone()[0], brief=brief)
    except Exception as error:
        raise_unless_damage(error)
    seqs = json.loads(connection.execute(f"{_SEQ_SELECT} {where}", parameters).fetchone()[0])
    return runs_one_by_one(connection, seqs, brief=brief)


def select_runs_by(
    connection: sqlite3.Connection,
    where: BulkSql,
    rows: Sequence[Sequence[Any]],
    *after: Any,
    brief: bool = False,
) -> list[tuple[int, Run]]:
    """The same for a statement with many rows of parameters."""
    head, tail, width = where
    select_them = BRIEF_SELECT if brief else RUN_SELECT
    try:
        texts = select(connection, (f"{select_them} {head}", tail, width), rows, *after)
        return [found for text in texts for found in read_runs(text, brief=brief)]
    except Exception as error:
        raise_unless_damage(error)
    found = select(connection, (f"{_SEQ_SELECT} {head}", tail, width), rows, *after)
    seqs = [seq for text in found for seq in json.loads(text)]
    return runs_one_by_one(connection, seqs, brief=brief)


_SEQ_SELECT = "SELECT json_group_array(seq) FROM mainspring_runs"


def runs_by_id(
    connection: sqlite3.Connection, ids: Iterable[str], *, brief: bool = False
) -> dict[str, Run]:
    rows = [(run_id,) for run_id in ids]
    found = select_runs_by(connection, _BY_ID, rows, brief=brief)
    return {run.id: run for _, run in found}


_BY_ID = ("WHERE id IN (VALUES ", ")", 1)


# -- records that cannot be read ------------------------------------------------------------
#
# A page is read in one step, and one damaged value makes the whole page unreadable. Then its rows
# are read one by one, and each row part by part.

_CONTENT = ("Could not decode to UTF-8", "malformed JSON")


def raise_unless_damage(error: Exception) -> None:
    """Raise errors of the database again. Errors in the content of a row are handled here."""
    if isinstance(error, sqlite3.Error) and not str(error).startswith(_CONTENT):
        raise error


def runs_one_by_one(
    connection: sqlite3.Connection, seqs: Iterable[int], *, brief: bool = False
) -> list[tuple[int, Run]]:
    rows = _raw_rows(connection, _ONE_BRIEF if brief else _ONE_RUN, seqs)
    runs = [(row["seq"], _salvaged_run(row)) for row in rows]
    return [(seq, replace(run, brief=True)) for seq, run in runs] if brief else runs


_ONE_RUN = f"SELECT {', '.join((*_PLAIN, *_JSON))} FROM mainspring_runs WHERE seq = ?"
_BRIEF_COLUMNS = (f"NULL AS {name}" if name in _NOT_BRIEF else name for name in (*_PLAIN, *_JSON))
_ONE_BRIEF = f"SELECT {', '.join(_BRIEF_COLUMNS)} FROM mainspring_runs WHERE seq = ?"


def _raw_rows(
    connection: sqlite3.Connection, sql: str, keys: Iterable[Any]
) -> list[dict[str, Any]]:
    """Rows as dicts, with text as bytes, because it may not be valid Unicode."""
    kept, connection.text_factory = connection.text_factory, bytes
    try:
        found = []
        for key in keys:
            cursor = connection.execute(sql, (key,))
            names = [column[0] for column in cursor.description]
            found += [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        return found
    finally:
        connection.text_factory = kept


def _salvaged_run(row: Mapping[str, Any]) -> Run:
    return read_parts(_ROWS, lambda name: _raw(row, name), repr(row["id"]))


def _raw(row: Mapping[str, Any], name: str) -> Any:
    """A column's value, text decoded; raises if it is not valid Unicode."""
    value = row[name]
    return value.decode() if isinstance(value, bytes) else value


def name_list(names: Iterable[str]) -> str:
    """A JSON list for `json_each`, which ends a text at a NUL and so would find another name. No
    stored name contains a NUL (`check_key` sees to it)."""
    return json.dumps([name for name in names if "\0" not in name])


# -- fields of a change ---------------------------------------------------------------------


@cache
def change_column(field: str) -> tuple[str, Callable[[Any], Any] | None]:
    """The column of a run's field, and the function that encodes its value (None: unchanged)."""
    return f'"{field}"', _ROWS.field(field).encoder


# -- jobs -----------------------------------------------------------------------------------

_BODY = (
    "handler", "created_at", "updated_at", "schedule", "policy", "owner", "description", "tags",
)  # fmt: skip
"""The fields in the list `body`, in the order that stored files have. The last element of the list
names the jobs that this job comes after. All other fields are columns, and so is each new one."""

_JOB_ROWS = JOB.adapted(
    flag={"fast_read": bool},
    value={"fast_read": None},
    mapping={"fast_read": None},
    free_text={"write": None},
)
_JOB_COLUMNS = tuple(name for name in JOB.fields if name not in _BODY)
JOB_COLUMNS = (*_JOB_COLUMNS, "concurrency", "limit_key", "rate", "body")
"""The columns that `job_row` gives, the id first."""

_JOB_TEXTS = tuple(
    name for name in _JOB_COLUMNS if JOB.fields[name].kind.name in ("value", "mapping", "webhook")
)
_JOB_PLAIN = tuple(name for name in _JOB_COLUMNS if name not in _JOB_TEXTS)

JOB_SELECT = (
    f"SELECT group_concat(json_array({', '.join(_JOB_PLAIN)}) || ',' || body"
    + "".join(
        f" || ',' || json_quote({name})"
        if JOB.fields[name].kind.name == "webhook"
        else f" || ',' || coalesce({name}, 'null')"
        for name in _JOB_TEXTS
    )
    + ") FROM mainspring_jobs"
)
_JOB_STRIDE = 2 + len(_JOB_TEXTS)

_job_columns = row_writer(_JOB_ROWS, _JOB_COLUMNS)
_job_body = row_writer(_JOB_ROWS, _BODY[:-1])
_job = row_reader(_JOB_ROWS, (*_JOB_PLAIN, *_BODY, *_JOB_TEXTS))


def job_row(job: Job) -> dict[str, Any]:
    policy = job.policy
    key = policy.concurrency_key
    limit_key = f"job:{job.id}" if key is None else f"key:{key}"
    return {
        **dict(zip(_JOB_COLUMNS, _job_columns(job), strict=True)),
        "concurrency": policy.concurrency,
        "limit_key": None if policy.concurrency is None else limit_key,
        "rate": None if (rate := rate_limit(job)) is None else _encode(rate),
        "body": _encode([*_job_body(job), job.tags, policy.after]),
    }


def select_jobs(connection: sqlite3.Connection, where: str, *parameters: Any) -> list[Job]:
    """Jobs in no fixed order. Jobs that cannot be read have `unreadable` set."""
    try:
        text = connection.execute(f"{JOB_SELECT} {where}", parameters).fetchone()[0]
        return decode_jobs(text)
    except Exception as error:
        raise_unless_damage(error)
    sql = f"SELECT json_group_array(rowid) FROM mainspring_jobs {where}"
    rowids = json.loads(connection.execute(sql, parameters).fetchone()[0])
    return [_salvaged_job(row) for row in _raw_rows(connection, _ONE_JOB, rowids)]


_ONE_JOB = f"SELECT {', '.join(_JOB_COLUMNS)}, body FROM mainspring_jobs WHERE rowid = ?"


def decode_jobs(text: str | None) -> list[Job]:
    if text is None:
        return []
    flat = codec.decode(f"[{text}]")
    return [
        _job((*flat[at], *flat[at + 1][:-1], *flat[at + 2 : at + _JOB_STRIDE]))
        for at in range(0, len(flat), _JOB_STRIDE)
    ]


def _salvaged_job(row: Mapping[str, Any]) -> Job:
    def body() -> list[Any]:
        parts = _read_list(row["body"].decode())
        if len(parts) != len(_NO_BODY):
            raise ValueError(f"it has {len(parts)} parts, this version knows {len(_NO_BODY)}")
        return parts

    try:
        parts = body()
    except Exception:  # `checks` below says why
        parts = _NO_BODY
    found = dict(zip(_BODY, parts, strict=False))

    def raw(name: str) -> Any:
        return found[name] if name in found else _raw(row, name)

    return read_parts(_JOB_ROWS, raw, repr(row["id"]), checks={"definition": body})


_NO_BODY: list[Any] = ["", 0, 0, None, "{}", str(Owner.API), "", [], []]
