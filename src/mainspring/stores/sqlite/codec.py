"""Values to columns and back.

Times are whole microseconds; payload, result, progress, upstream ids and attempts are JSON.
A page of rows comes up as one JSON text, in one step (bulk.py says why).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any, TypeVar

import msgspec

from mainspring.core import codec
from mainspring.core.clock import EPOCH
from mainspring.core.model import (
    Attempt,
    Job,
    Outcome,
    Owner,
    Progress,
    Run,
    Source,
    State,
    Webhook,
    replace,
)
from mainspring.core.policy import Policy
from mainspring.errors import InvalidInput
from mainspring.stores.codec import read_policy, read_schedule, read_webhook
from mainspring.stores.sqlite.row_batches import BulkSql, select
from mainspring.stores.unreadable_records import Salvage, report

__all__ = [
    "JOB_SELECT",
    "LANE_SQL",
    "RUN_INSERT",
    "RUN_SELECT",
    "SET_ASIDE",
    "change_column",
    "from_us",
    "job_row",
    "lane_of",
    "lane_parts",
    "name_list",
    "progress_text",
    "raise_unless_damage",
    "read_runs",
    "run_row",
    "runs_by_id",
    "runs_one_by_one",
    "select_jobs",
    "select_runs",
    "select_runs_by",
    "span_us",
    "to_us",
]

T = TypeVar("T")
_SEPARATOR = "\x1f"
_encode = json.JSONEncoder(separators=(",", ":")).encode
_quoted = json.encoder.encode_basestring_ascii
_DAY = 86_400_000_000
_NO_LIMIT = 2**31


def to_us(moment: datetime) -> int:
    """As `clock.to_us`, at half its cost."""
    span = moment - EPOCH
    return span.days * _DAY + span.seconds * 1_000_000 + span.microseconds


def from_us(us: int) -> datetime:
    return EPOCH + timedelta(0, us // 1_000_000, us % 1_000_000)


def span_us(span: timedelta) -> int:
    return span.days * _DAY + span.seconds * 1_000_000 + span.microseconds


# -- lanes ----------------------------------------------------------------------------------


def lane_of(run: Run, limited: bool) -> str:
    """Runs of one lane are claimed by the same claims, under the same limit and priority."""
    job = run.job_id if limited else ""
    lane = _SEPARATOR.join((run.queue, run.handler, job, str(run.priority)))
    if lane.count(_SEPARATOR) != 3:
        raise InvalidInput(
            "the character 0x1F is in no queue, handler or job:"
            f" {run.queue!r}, {run.handler!r}, {run.job_id!r}"
        )
    return lane


LANE_SQL = """
    queue || char(31) || handler || char(31) || CASE WHEN EXISTS (
        SELECT 1 FROM mainspring_jobs AS job
        WHERE job.id = mainspring_runs.job_id AND job.concurrency IS NOT NULL
    ) THEN job_id ELSE '' END || char(31) || priority
"""


SET_ASIDE = _SEPARATOR * 3 + "0"
"""The lane of pending runs that could not be read: no handler has an empty name, so no claim
takes from it."""


def lane_parts(lane: str) -> tuple[str, str, str, int] | None:
    """Queue, handler, job (empty where it has no limit), priority; None where it is damaged."""
    try:
        queue, handler, job, priority = lane.split(_SEPARATOR)
        return queue, handler, job, int(priority)
    except ValueError:
        return None


# -- runs -----------------------------------------------------------------------------------

_PLAIN = (
    "seq", "id", "job_id", "handler", "queue", "priority", "source", "state", "attempt",
    "failures", "lapses", "token", "cancel_requested", "after_any", "created_at",
    "scheduled_at", "run_at", "start_by", "started_at", "finished_at", "lease_until", "worker",
    "error", "reason", "dedupe_key", "dedupe_until", "began",
)  # fmt: skip
_JSON = ("payload", "result", "progress", '"after"', "attempts")
_INSERTED = (*_PLAIN[1:], "lane", *_JSON)

# The JSON columns are pasted as they are: SQLite need not parse them, and Python reads the
# whole page in one pass of its C decoder.
RUN_SELECT = (
    f"SELECT group_concat(json_array({', '.join(_PLAIN)})"
    + "".join(f" || ',' || coalesce({name}, 'null')" for name in _JSON)
    + ") FROM mainspring_runs"
)
_NOT_BRIEF = ("payload", "result", "attempts")
BRIEF_SELECT = (
    f"SELECT group_concat(json_array({', '.join(_PLAIN)})"
    + "".join(
        " || ',null'" if name in _NOT_BRIEF else f" || ',' || coalesce({name}, 'null')"
        for name in _JSON
    )
    + ") FROM mainspring_runs"
)
"""The same for lists: payload, result and attempts are not even read from the disk."""

RUN_INSERT = (
    f"INSERT INTO mainspring_runs ({', '.join(_INSERTED)}) SELECT * FROM (VALUES ",
    ") WHERE column1 IS NOT NULL ON CONFLICT (id) DO NOTHING",
    len(_INSERTED),
)
_STRIDE = 1 + len(_JSON)

_STATES = {str(s): s for s in State}
_SOURCES = {str(s): s for s in Source}
_OUTCOMES = {str(o): o for o in Outcome}


def run_row(run: Run, lane: str, payload: str | None) -> tuple[Any, ...]:
    """The run as `_INSERTED` names its columns; the payload is encoded already."""
    return (
        run.id,
        run.job_id,
        run.handler,
        run.queue,
        run.priority,
        run.source,
        run.state,
        run.attempt,
        run.failures,
        run.lapses,
        run.token,
        run.cancel_requested,
        run.after_any,
        to_us(run.created_at),
        to_us(run.scheduled_at),
        to_us(run.run_at),
        _time(run.start_by),
        _time(run.started_at),
        _time(run.finished_at),
        _time(run.lease_until),
        run.worker,
        _text(run.error),
        _text(run.reason),
        run.dedupe_key,
        _time(run.dedupe_until),
        run.began,
        lane,
        payload,
        None if run.result is None else codec.encode(run.result, what="result"),
        progress_text(run.progress),
        _json(run.after),
        _attempts(run.attempts),
    )


def read_runs(text: str | None, *, brief: bool = False) -> list[tuple[int, Run]]:
    """What `RUN_SELECT` (or `BRIEF_SELECT`) gave, as (seq, run), in no order that can be relied
    on. Raises where any of the runs cannot be read."""
    if text is None:
        return []
    flat = codec.decode(f"[{text}]")
    moments = _Moments({None: None})
    return [
        (flat[at][0], _run(moments, brief, *flat[at : at + _STRIDE]))
        for at in range(0, len(flat), _STRIDE)
    ]


def select_runs(
    connection: sqlite3.Connection, where: str, *parameters: Any, brief: bool = False
) -> list[tuple[int, Run]]:
    """The runs that the rest of a statement chooses, as (seq, run), in no order. Runs that cannot
    be read are given with `unreadable` set."""
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
# A page is read in one step, and one damaged value spoils the whole page. Only then its rows are
# read one by one, and each of them part by part.

_CONTENT = ("Could not decode to UTF-8", "JSON cannot hold BLOB", "malformed JSON")


def raise_unless_damage(error: Exception) -> None:
    """Raise errors of the database itself again; what is wrong with a row is handled here."""
    if isinstance(error, sqlite3.Error) and not str(error).startswith(_CONTENT):
        raise error


def runs_one_by_one(
    connection: sqlite3.Connection, seqs: Iterable[int], *, brief: bool = False
) -> list[tuple[int, Run]]:
    rows = _raw_rows(connection, _ONE_BRIEF if brief else _ONE_RUN, seqs)
    runs = [(row["seq"], _salvaged_run(row)) for row in rows]
    return [(seq, replace(run, brief=True)) for seq, run in runs] if brief else runs


_ONE_RUN = f"SELECT {', '.join((*_PLAIN, *_JSON))} FROM mainspring_runs WHERE seq = ?"
_SHOWN = (f"NULL AS {name}" if name in _NOT_BRIEF else name for name in (*_PLAIN, *_JSON))
_ONE_BRIEF = f"SELECT {', '.join(_SHOWN)} FROM mainspring_runs WHERE seq = ?"


def _raw_rows(
    connection: sqlite3.Connection, sql: str, keys: Iterable[Any]
) -> list[dict[str, Any]]:
    """Rows by column, with text as bytes: it may be no Unicode."""
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
    salvage = Salvage()
    part = salvage.part

    def text(name: str) -> str:
        return part(name, lambda: _as_text(row[name]), "")

    def text_or_none(name: str) -> str | None:
        return None if row[name] is None else text(name)

    def number(name: str) -> int:
        return part(name, lambda: _as_number(row[name]), 0)

    def moment(name: str) -> datetime:
        return part(name, lambda: from_us(_as_number(row[name])), EPOCH)

    def moment_or_none(name: str) -> datetime | None:
        return None if row[name] is None else moment(name)

    def value(name: str) -> Any:
        return part(name, lambda: codec.decode(_as_text_or_none(row[name])), None)

    def values(name: str, read: Callable[[list[Any]], T], otherwise: T) -> T:
        if row[name] is None:
            return otherwise
        return part(name, lambda: read(_as_list(codec.decode(_as_text(row[name])))), otherwise)

    run = Run(
        id=part("id", lambda: _as_text(row["id"]), repr(row["id"])),
        job_id=text("job_id"),
        handler=text("handler"),
        created_at=moment("created_at"),
        scheduled_at=moment("scheduled_at"),
        run_at=moment("run_at"),
        source=part("source", lambda: Source(_as_text(row["source"])), Source.ENQUEUE),
        queue=text("queue"),
        priority=number("priority"),
        payload=value("payload"),
        # An unknown state counts as not over: what comes after the run waits.
        state=part("state", lambda: State(_as_text(row["state"])), State.WAITING),
        attempt=number("attempt"),
        failures=number("failures"),
        lapses=number("lapses"),
        token=number("token"),
        start_by=moment_or_none("start_by"),
        started_at=moment_or_none("started_at"),
        finished_at=moment_or_none("finished_at"),
        worker=text_or_none("worker"),
        lease_until=moment_or_none("lease_until"),
        cancel_requested=bool(number("cancel_requested")),
        began=None if row["began"] is None else bool(number("began")),
        result=value("result"),
        error=text_or_none("error"),
        reason=text_or_none("reason"),
        progress=values("progress", lambda given: Progress(*given), None),
        dedupe_key=text_or_none("dedupe_key"),
        dedupe_until=moment_or_none("dedupe_until"),
        after=values("after", tuple, ()),
        after_any=bool(number("after_any")),
        attempts=values("attempts", lambda given: tuple(map(_attempt, given)), ()),
    )
    if salvage.problem is None:
        return run
    run = replace(run, unreadable=salvage.problem)
    report(run)
    return run


def _as_text(value: Any) -> str:
    if not isinstance(value, bytes):
        raise ValueError(f"{value!r} is no text")
    return value.decode()


def _as_text_or_none(value: Any) -> str | None:
    return None if value is None else _as_text(value)


def _as_number(value: Any) -> int:
    if not isinstance(value, int):
        raise ValueError(f"{value!r} is no whole number")
    return value


def _as_list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{str(value)[:80]!r} is no list")
    return value


class _Moments(dict[int | None, datetime | None]):
    """The runs of a page share many moments: each is made once."""

    def __missing__(self, us: int) -> datetime:
        made = self[us] = from_us(us)
        return made


def _run(
    moments: Mapping[Any, Any],
    brief: bool,
    plain: list[Any],
    payload: Any,
    result: Any,
    progress: list[Any] | None,
    after: list[str] | None,
    attempts: list[list[Any]] | None,
) -> Run:
    (
        _, id, job_id, handler, queue, priority, source, state, attempt, failures, lapses, token,
        cancel_requested, after_any, created_at, scheduled_at, run_at, start_by, started_at,
        finished_at, lease_until, worker, error, reason, dedupe_key, dedupe_until, began,
    ) = plain  # fmt: skip
    return Run(
        id=id,
        job_id=job_id,
        handler=handler,
        created_at=moments[created_at],
        scheduled_at=moments[scheduled_at],
        run_at=moments[run_at],
        source=_SOURCES[source],
        queue=queue,
        priority=priority,
        payload=payload,
        state=_STATES[state],
        attempt=attempt,
        failures=failures,
        lapses=lapses,
        token=token,
        began=None if began is None else bool(began),
        start_by=moments[start_by],
        started_at=moments[started_at],
        finished_at=moments[finished_at],
        worker=worker,
        lease_until=moments[lease_until],
        cancel_requested=bool(cancel_requested),
        result=result,
        error=error,
        reason=reason,
        progress=None if progress is None else Progress(*progress),
        dedupe_key=dedupe_key,
        dedupe_until=moments[dedupe_until],
        after=tuple(_as_list(after)) if after else (),
        after_any=bool(after_any),
        attempts=tuple(map(_attempt, attempts)) if attempts else (),
        brief=brief,
    )


_TIMES = tuple(
    at for at, name in enumerate(_PLAIN) if name.endswith(("_at", "_until")) or name == "start_by"
)


# -- fields of a change ---------------------------------------------------------------------


def _time(moment: datetime | None) -> int | None:
    return None if moment is None else to_us(moment)


def _text(text: str | None) -> str | None:
    """Free text may hold lone surrogates (file names do), which SQLite's UTF-8 has none for."""
    if text is None or text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode()


def _json(value: Sequence[Any]) -> str | None:
    return _encode(value) if value else None


def name_list(names: Iterable[str]) -> str:
    """For `json_each`. That ends a text at a NUL, and so would find what bears another name; no
    name here holds one (`check_key`)."""
    return json.dumps([name for name in names if "\0" not in name])


def progress_text(progress: Progress | None) -> str | None:
    if progress is None:
        return None
    return _json((progress.done, progress.total, progress.message))


def _attempts(attempts: Sequence[Attempt]) -> str | None:
    """Every run that ends passes here, mostly with one attempt: text by hand is twice as fast."""
    return f"[{','.join(map(_attempt_text, attempts))}]" if attempts else None


def _attempt_text(attempt: Attempt) -> str:
    error = "null" if attempt.error is None else _quoted(attempt.error)
    traceback = "null" if attempt.traceback is None else _quoted(attempt.traceback)
    log = _encode(attempt.log) if attempt.log else "[]"
    detail = "" if attempt.detail is None else f",{_detail(attempt.detail)}"
    return (
        f"[{attempt.number},{_quoted(attempt.worker)},{to_us(attempt.started_at)},"
        f'{to_us(attempt.finished_at)},"{attempt.outcome}",{error},{traceback},{log}{detail}]'
    )


def _attempt(row: list[Any]) -> Attempt:
    number, worker, started, finished, outcome, error, traceback, log, *detail = row
    return Attempt(
        number, worker, from_us(started), from_us(finished), _OUTCOMES[outcome], error, traceback,
        tuple(log), *detail,
    )  # fmt: skip


def _detail(value: Any) -> str:
    """It was bounded, and made plain JSON, where it was given; only what looks like a tag of the
    codec's takes its slower way."""
    text = msgspec.json.encode(value).decode()
    return codec.encode(value, what="detail", limit=_NO_LIMIT) if '"$' in text else text


def _result(value: Any) -> str | None:
    return None if value is None else codec.encode(value, what="result")


def _payload(value: Any) -> str | None:
    return None if value is None else codec.encode(value)


_ENCODERS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys((name for at, name in enumerate(_PLAIN) if at in _TIMES), _time),
    "error": _text,
    "reason": _text,
    "worker": _text,
    "payload": _payload,
    "result": _result,
    "progress": progress_text,
    "after": _json,
    "attempts": _attempts,
}
_NAMES = frozenset({*_PLAIN[1:], "payload", "result", "progress", "after", "attempts"})


@cache
def change_column(field: str) -> tuple[str, Callable[[Any], Any] | None]:
    """The column that keeps a run's field, and what makes its value (None: it is kept as is)."""
    if field not in _NAMES:
        raise InvalidInput(f"a run has no stored field {field!r}")
    return f'"{field}"', _ENCODERS.get(field)


# -- jobs -----------------------------------------------------------------------------------

JOB_SELECT = (
    "SELECT group_concat(json_array(id, version, enabled, next_run_at, last_run_at)"
    " || ',' || body || ',' || coalesce(payload, 'null') || ',' || coalesce(metadata, 'null')"
    " || ',' || json_quote(webhook))"
    " FROM mainspring_jobs"
)


def job_row(job: Job) -> dict[str, Any]:
    policy = job.policy
    key = policy.concurrency_key
    limit_key = f"job:{job.id}" if key is None else f"key:{key}"
    body = [
        job.handler,
        to_us(job.created_at),
        to_us(job.updated_at),
        job.schedule and json.dumps(job.schedule.to_dict()),
        json.dumps(policy.to_dict()),
        job.owner,
        job.description,
        job.tags,
        policy.after,
    ]
    return {
        "id": job.id,
        "version": job.version,
        "enabled": job.enabled,
        "next_run_at": _time(job.next_run_at),
        "last_run_at": _time(job.last_run_at),
        "concurrency": policy.concurrency,
        "limit_key": None if policy.concurrency is None else limit_key,
        "body": _encode(body),
        "payload": _payload(job.payload),
        "metadata": codec.encode(dict(job.metadata), what="metadata") if job.metadata else None,
        "webhook": None if job.webhook is None else msgspec.json.encode(job.webhook).decode(),
    }


def select_jobs(connection: sqlite3.Connection, where: str, *parameters: Any) -> list[Job]:
    """Jobs in no order. Those that cannot be read are given with `unreadable` set."""
    try:
        text = connection.execute(f"{JOB_SELECT} {where}", parameters).fetchone()[0]
        return _read_jobs(text)
    except Exception as error:
        raise_unless_damage(error)
    sql = f"SELECT json_group_array(rowid) FROM mainspring_jobs {where}"
    rowids = json.loads(connection.execute(sql, parameters).fetchone()[0])
    return [_salvaged_job(row) for row in _raw_rows(connection, _ONE_JOB, rowids)]


_ONE_JOB = (
    "SELECT id, version, enabled, next_run_at, last_run_at, body, payload, metadata, webhook"
    " FROM mainspring_jobs WHERE rowid = ?"
)


def _read_jobs(text: str | None) -> list[Job]:
    if text is None:
        return []
    flat = codec.decode(f"[{text}]")
    return [_job(*flat[at : at + 5]) for at in range(0, len(flat), 5)]


def _salvaged_job(row: Mapping[str, Any]) -> Job:
    salvage = Salvage()
    part = salvage.part
    columns = ("id", "version", "enabled", "next_run_at", "last_run_at")
    id, version, enabled, next_run_at, last_run_at = (row[name] for name in columns)

    def number(name: str, value: Any) -> int:
        return part(name, lambda: _as_number(value), 0)

    def moment(name: str, us: Any) -> datetime:
        return part(name, lambda: from_us(_as_number(us)), EPOCH)

    def value(name: str) -> Any:
        return part(name, lambda: codec.decode(_as_text_or_none(row[name])), None)

    body = part("definition", lambda: _job_body(_as_text(row["body"])), _NO_BODY)
    handler, created_at, updated_at, schedule, policy, owner, description, tags, _ = body
    job = Job(
        id=part("id", lambda: _as_text(id), repr(id)),
        handler=handler,
        created_at=moment("created_at", created_at),
        updated_at=moment("updated_at", updated_at),
        payload=value("payload"),
        schedule=part(
            "schedule", lambda: None if schedule is None else read_schedule(schedule), None
        ),
        policy=part("policy", lambda: read_policy(policy), Policy()),
        enabled=bool(number("enabled", enabled)),
        next_run_at=None if next_run_at is None else moment("next_run_at", next_run_at),
        last_run_at=None if last_run_at is None else moment("last_run_at", last_run_at),
        version=number("version", version),
        owner=part("owner", lambda: Owner(owner), Owner.API),
        description=description,
        tags=part("tags", lambda: tuple(tags), ()),
        metadata=value("metadata") or {},
        webhook=part("webhook", lambda: _webhook(row["webhook"]), None),
    )
    if salvage.problem is None:
        return job
    job = replace(job, unreadable=salvage.problem)
    report(job)
    return job


def _job_body(text: str) -> list[Any]:
    body = _as_list(codec.decode(text))
    if len(body) != len(_NO_BODY):
        raise ValueError(f"it has {len(body)} parts, this version knows {len(_NO_BODY)}")
    return body


_NO_BODY: list[Any] = ["", 0, 0, None, "{}", Owner.API, "", [], []]


def _webhook(kept: bytes | None) -> Webhook | None:
    return None if kept is None else read_webhook(_as_text(kept))


def _job(
    columns: list[Any],
    body: list[Any],
    payload: Any,
    metadata: Mapping[str, Any],
    webhook: str | None,
) -> Job:
    id, version, enabled, next_run_at, last_run_at = columns
    handler, created_at, updated_at, schedule, policy, owner, description, tags, _ = body
    return Job(
        id=id,
        handler=handler,
        created_at=from_us(created_at),
        updated_at=from_us(updated_at),
        payload=payload,
        schedule=None if schedule is None else read_schedule(schedule),
        policy=read_policy(policy),
        enabled=bool(enabled),
        next_run_at=None if next_run_at is None else from_us(next_run_at),
        last_run_at=None if last_run_at is None else from_us(last_run_at),
        version=version,
        owner=Owner(owner),
        description=description,
        tags=tuple(tags),
        metadata=metadata or {},
        webhook=None if webhook is None else read_webhook(webhook),
    )
