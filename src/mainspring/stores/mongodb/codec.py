"""Values to documents and back.

Payloads and results are kept as the codec's JSON text: keys with `$` and dots, NUL, big numbers
and every other value survive, and nothing in them can be taken for an operator. So are attempts,
progress, schedules, policies and webhooks. What a query looks at are fields of their own.

A run's document has its fields under the names of `Run`, with these exceptions:

    lane                {q: queue, h: handler, g: job id if the job is limited, else "",
                        p: which part, by the run's id (0 if the job is limited)}
    leased_at, lease    in place of lease_until: stamped by the server, and microseconds
    nonce               which claim took it last
    fence, evicted      see limits.py
    intent              see reserved.py
    transaction         see transactions.py
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar
from zlib import crc32

import msgspec

from mainspring.core import codec
from mainspring.core.clock import EPOCH
from mainspring.core.model import (
    LIVE,
    Attempt,
    Job,
    Owner,
    Progress,
    Run,
    Source,
    State,
    replace,
)
from mainspring.core.policy import Policy
from mainspring.errors import InvalidInput
from mainspring.stores.codec import read_policy, read_schedule, read_webhook
from mainspring.stores.mongodb.collections import Document
from mainspring.stores.mongodb.server_clock import read_moment, until
from mainspring.stores.unreadable_records import Salvage, report

__all__ = [
    "BRIEF",
    "LANE_PARTS",
    "LIVE_STATES",
    "RESERVED",
    "RUN_FIELDS",
    "SET_ASIDE",
    "STATES",
    "STATE_OF",
    "encode_fields",
    "expecting",
    "has_numbers",
    "is_lane",
    "is_moment",
    "job_document",
    "lane_part",
    "progress_text",
    "read_job",
    "read_run",
    "run_document",
    "to_us",
]

T = TypeVar("T")

RESERVED = "reserved"
"""The state of a run that is half made: no query but ours sees it."""

LANE_PARTS = 4
"""Runs that no limit holds together lie in so many lanes, so that several clients can claim each
from its own. More of them would be more walks for who claims alone."""

SET_ASIDE = -1
"""The part of a lane for pending runs that could not be read: no claim takes from it."""

STATES = tuple(str(state) for state in State)
LIVE_STATES = tuple(str(state) for state in State if state in LIVE)

STATE_OF = {str(state): state for state in State}
_SOURCE = {str(source): source for source in Source}
_DAY = 86_400_000_000
_SURROGATE = re.compile("[\ud800-\udfff]")


def to_us(moment: datetime) -> int:
    span = moment - EPOCH
    return span.days * _DAY + span.seconds * 1_000_000 + span.microseconds


def _time(moment: datetime | None) -> int | None:
    return None if moment is None else to_us(moment)


def _text(text: str | None) -> str | None:
    """Free text may hold lone surrogates (file names do), for which UTF-8 has none."""
    if text is None or text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode()


def _payload(value: Any) -> str | None:
    return None if value is None else codec.encode(value)


def _result(value: Any) -> str | None:
    return None if value is None else codec.encode(value, what="result")


def _json(value: Any) -> str:
    """JSON of our own values; at C speed unless some text is no Unicode."""
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        text = json.dumps(msgspec.to_builtins(value), ensure_ascii=False)
        return _SURROGATE.sub(lambda found: rf"\\u{ord(found[0]):04x}", text)


def progress_text(progress: Progress | None) -> str | None:
    return None if progress is None else _json(progress)


def _attempts(attempts: Sequence[Attempt]) -> str | None:
    return _json(attempts) if attempts else None


_read_attempts = msgspec.json.Decoder(tuple[Attempt, ...]).decode
_read_progress = msgspec.json.Decoder(Progress).decode


# -- runs -----------------------------------------------------------------------------------


def _lane(run: Run, limited: bool) -> Document:
    made = {"q": run.queue, "h": run.handler}
    if limited:
        return {**made, "g": run.job_id, "p": 0}
    return {**made, "g": "", "p": lane_part(run.id)}


def lane_part(run_id: str) -> int:
    return crc32(run_id.encode()) % LANE_PARTS


def is_lane(kept: Any) -> bool:
    """Whether this is a lane, and nothing in it is damaged."""
    return (
        isinstance(kept, dict)
        and all(isinstance(kept.get(name), str) for name in ("q", "h", "g"))
        and isinstance(kept.get("p"), int)
    )


def is_moment(kept: Any) -> bool:
    """Whether this is a number of microseconds that a datetime can hold. (A program of the user's
    may have written it as a double.)"""
    return isinstance(kept, int | float) and abs(kept) < _END_OF_TIME


_END_OF_TIME = 253_402_300_800_000_000 - 86_400_000_000
_NUMBERS = ("priority", "attempt", "token")


def has_numbers(kept: Document) -> bool:
    """Whether what a claim goes by, and counts up, is there and a number."""
    return all(isinstance(kept.get(name), int | float) for name in _NUMBERS) and is_moment(
        kept.get("run_at")
    )


def run_document(run: Run, payload: str | None, *, limited: bool) -> Document:
    """The run as it is inserted; its payload is encoded already. What is None is left out."""
    made = {
        "_id": run.id,
        "lane": _lane(run, limited),
        "job_id": run.job_id,
        "priority": run.priority,
        "source": str(run.source),
        "state": str(run.state),
        "attempt": run.attempt,
        "failures": run.failures,
        "lapses": run.lapses,
        "token": run.token,
        "began": run.began,
        "cancel_requested": run.cancel_requested,
        "created_at": to_us(run.created_at),
        "scheduled_at": to_us(run.scheduled_at),
        "run_at": to_us(run.run_at),
        "payload": payload,
        "dedupe_key": run.dedupe_key,
        "dedupe_until": _time(run.dedupe_until),
        "start_by": _time(run.start_by),
        "after": list(run.after) or None,
        "after_any": run.after_any or None,
    }
    if run.state is not State.PENDING or run.attempt:
        made |= encode_fields(
            {
                name: getattr(run, name)
                for name in (
                    "started_at", "finished_at", "lease_until", "worker", "result", "error",
                    "reason", "progress", "attempts",
                )
            }
        )  # fmt: skip
    return {name: value for name, value in made.items() if value is not None}


def read_run(kept: Document, *, brief: bool = False) -> Run:
    """The run of a document; with `unreadable` set, and what can be read of it, where that is not
    all. `brief`: the document was read with `BRIEF`."""
    try:
        run = _read_run(kept)
    except Exception:  # a damaged document may raise anything
        run = _salvaged_run(kept)
    return replace(run, brief=True) if brief else run


def _read_run(kept: Document) -> Run:
    get = kept.get
    if not has_numbers(kept) or not isinstance(get("fence", 0), int):
        raise ValueError("a number is none")
    lane = kept["lane"]
    if not all(isinstance(name, str) for name in (kept["job_id"], lane["h"], lane["q"])):
        raise ValueError("a name is no text")
    leased, progress, attempts = get("leased_at"), get("progress"), get("attempts")
    lease_until = None
    if leased is not None:
        since = read_moment(leased)
        assert since is not None
        lease_until = since + timedelta(microseconds=kept["lease"])
    return Run(
        id=kept["_id"],
        job_id=kept["job_id"],
        handler=lane["h"],
        created_at=_moment(kept["created_at"]),
        scheduled_at=_moment(kept["scheduled_at"]),
        run_at=_moment(kept["run_at"]),
        source=_SOURCE[kept["source"]],
        queue=lane["q"],
        priority=kept["priority"],
        payload=codec.decode(get("payload")),
        state=STATE_OF[kept["state"]],
        attempt=kept["attempt"],
        failures=kept["failures"],
        lapses=kept["lapses"],
        token=kept["token"],
        began=get("began"),
        start_by=read_moment(get("start_by")),
        started_at=read_moment(get("started_at")),
        finished_at=read_moment(get("finished_at")),
        worker=get("worker"),
        lease_until=lease_until,
        cancel_requested=kept["cancel_requested"],
        result=codec.decode(get("result")),
        error=get("error"),
        reason=get("reason"),
        progress=None if progress is None else _read_progress(progress),
        dedupe_key=get("dedupe_key"),
        dedupe_until=read_moment(get("dedupe_until")),
        after=_names(get("after")),
        after_any=bool(get("after_any")),
        attempts=() if attempts is None else _read_attempts(attempts),
    )


def _names(kept: Any) -> tuple[str, ...]:
    if kept is not None and not isinstance(kept, list):
        raise ValueError(f"{str(kept)[:80]!r} is no list")
    return tuple(kept or ())


def _salvaged_run(kept: Document) -> Run:
    """Part by part: what can be read of a run that cannot be read as a whole."""
    salvage = Salvage()
    part, get = salvage.part, kept.get
    part("fence", lambda: _of_kind(get("fence", 0), int), 0)
    lane: Document = kept["lane"] if isinstance(get("lane"), dict) else {}

    def plain(name: str, kind: type[T], otherwise: T, given: Document = kept) -> T:
        return part(name, lambda: _of_kind(given.get(name), kind), otherwise)

    def plain_or_none(name: str, kind: type[T]) -> T | None:
        return None if get(name) is None else part(name, lambda: _of_kind(get(name), kind), None)

    def moment(name: str) -> datetime:
        return part(name, lambda: _moment(_of_kind(get(name), int)), EPOCH)

    def moment_or_none(name: str) -> datetime | None:
        return part(name, lambda: read_moment(get(name)), None)

    def value(name: str) -> Any:
        return part(name, lambda: codec.decode(get(name)), None)

    def lease_until() -> datetime | None:
        since = read_moment(get("leased_at"))
        return None if since is None else since + timedelta(microseconds=kept["lease"])

    progress, attempts = get("progress"), get("attempts")
    run = Run(
        id=str(kept["_id"]),
        job_id=plain("job_id", str, ""),
        handler=plain("h", str, "", lane),
        created_at=moment("created_at"),
        scheduled_at=moment("scheduled_at"),
        run_at=moment("run_at"),
        source=part("source", lambda: _SOURCE[kept["source"]], Source.ENQUEUE),
        queue=plain("q", str, "", lane),
        priority=plain("priority", int, 0),
        payload=value("payload"),
        # An unknown state counts as not over: what comes after the run waits.
        state=part("state", lambda: State(kept["state"]), State.WAITING),
        attempt=plain("attempt", int, 0),
        failures=plain("failures", int, 0),
        lapses=plain("lapses", int, 0),
        token=plain("token", int, 0),
        start_by=moment_or_none("start_by"),
        started_at=moment_or_none("started_at"),
        finished_at=moment_or_none("finished_at"),
        worker=plain_or_none("worker", str),
        lease_until=part("lease", lease_until, None),
        cancel_requested=plain("cancel_requested", bool, False),
        began=plain_or_none("began", bool),
        result=value("result"),
        error=plain_or_none("error", str),
        reason=plain_or_none("reason", str),
        progress=part(
            "progress", lambda: None if progress is None else _read_progress(progress), None
        ),
        dedupe_key=plain_or_none("dedupe_key", str),
        dedupe_until=moment_or_none("dedupe_until"),
        after=part("after", lambda: _names(get("after")), ()),
        after_any=bool(get("after_any")),
        attempts=part("attempts", lambda: () if attempts is None else _read_attempts(attempts), ()),
    )
    run = replace(run, unreadable=salvage.problem or "it cannot be read as a whole")
    report(run)
    return run


def _of_kind(value: Any, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise ValueError(f"{str(value)[:80]!r} is not {kind.__name__}")
    return value


RUN_FIELDS = (
    "lane", "job_id", "created_at", "scheduled_at", "run_at", "source", "priority", "payload",
    "state", "attempt", "failures", "lapses", "token", "began", "start_by", "started_at",
    "finished_at", "worker", "leased_at", "lease", "cancel_requested", "result", "error", "reason",
    "progress", "dedupe_key", "dedupe_until", "after", "after_any", "attempts",
)  # fmt: skip
"""What `read_run` reads, beside the id."""

BRIEF = dict.fromkeys((n for n in RUN_FIELDS if n not in ("payload", "result", "attempts")), 1)
"""What lists show, for `find`: without payload, result and attempts."""


def _moment(us: int) -> datetime:
    return EPOCH + timedelta(0, us // 1_000_000, us % 1_000_000)


# -- changes --------------------------------------------------------------------------------


def _lease_until(moment: datetime | None) -> Document:
    return {"leased_at": _time(moment), "lease": None if moment is None else 0}


_ENCODERS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(
        (
            "created_at", "scheduled_at", "run_at", "start_by", "started_at", "finished_at",
            "dedupe_until",
        ),
        _time,
    ),
    **dict.fromkeys(("error", "reason", "worker"), _text),
    **dict.fromkeys(("state", "source"), str),
    "payload": _payload,
    "result": _result,
    "progress": progress_text,
    "attempts": _attempts,
    "after": lambda ids: list(ids) or None,
}  # fmt: skip
_NAMES = {"queue": "lane.q", "handler": "lane.h"}
_FIELDS = frozenset(Run.__struct_fields__) - {"id", "duplicate", "unreadable", "brief"}


def encode_fields(fields: Mapping[str, Any]) -> Document:
    """A run's fields as its document keeps them."""
    made: Document = {}
    for name, value in fields.items():
        if name == "lease_until":
            made |= _lease_until(value)
            continue
        if name not in _FIELDS:
            raise InvalidInput(f"a run has no stored field {name!r}")
        encode = _ENCODERS.get(name)
        made[_NAMES.get(name, name)] = value if encode is None else encode(value)
    return made


def expecting(expect: Mapping[str, Any]) -> Document:
    """The filter that finds a run only while all this stands."""
    plain = {name: value for name, value in expect.items() if name != "lease_until"}
    found: Document = {name: {"$eq": value} for name, value in encode_fields(plain).items()}
    if "lease_until" in expect:
        seen = expect["lease_until"]
        if seen is None:
            found["leased_at"] = {"$eq": None}
        else:
            found["$expr"] = {"$eq": [until("leased_at", "lease"), to_us(seen)]}
    return found


# -- jobs -----------------------------------------------------------------------------------


def job_document(job: Job) -> Document:
    """The job as it will be kept."""
    policy = job.policy
    made = {
        "_id": job.id,
        "version": job.version,
        "handler": job.handler,
        "created_at": to_us(job.created_at),
        "updated_at": to_us(job.updated_at),
        "payload": _payload(job.payload),
        "schedule": None if job.schedule is None else json.dumps(job.schedule.to_dict()),
        "policy": json.dumps(policy.to_dict()),
        "enabled": job.enabled,
        "next_run_at": _time(job.next_run_at),
        "last_run_at": _time(job.last_run_at),
        "owner": str(job.owner),
        "description": _text(job.description),
        "tags": list(job.tags) or None,
        "follows": bool(policy.after) or None,
        "metadata": codec.encode(dict(job.metadata), what="metadata") if job.metadata else None,
        "limit": _limit(job),
        "webhook": None if job.webhook is None else _json(job.webhook),
    }
    return {name: value for name, value in made.items() if value is not None}


def _limit(job: Job) -> Document | None:
    policy = job.policy
    if policy.concurrency is None:
        return None
    key = policy.concurrency_key
    return {"most": policy.concurrency, "key": f"job:{job.id}" if key is None else f"key:{key}"}


def read_job(kept: Document) -> Job:
    """The job of a document; with `unreadable` set where it cannot be read as a whole."""
    try:
        return _read_job(kept)
    except Exception:  # a damaged document may raise anything
        return _salvaged_job(kept)


def _salvaged_job(kept: Document) -> Job:
    salvage = Salvage()
    part, get = salvage.part, kept.get
    schedule, webhook = get("schedule"), get("webhook")

    def moment(name: str) -> datetime:
        return part(name, lambda: _moment(_of_kind(get(name), int)), EPOCH)

    job = Job(
        id=str(kept["_id"]),
        handler=part("handler", lambda: _of_kind(get("handler"), str), ""),
        created_at=moment("created_at"),
        updated_at=moment("updated_at"),
        payload=part("payload", lambda: codec.decode(get("payload")), None),
        schedule=part(
            "schedule", lambda: None if schedule is None else read_schedule(schedule), None
        ),
        policy=part("policy", lambda: read_policy(kept["policy"]), Policy()),
        enabled=bool(get("enabled")),
        next_run_at=part("next_run_at", lambda: read_moment(get("next_run_at")), None),
        last_run_at=part("last_run_at", lambda: read_moment(get("last_run_at")), None),
        version=part("version", lambda: _of_kind(get("version"), int), 0),
        owner=part("owner", lambda: Owner(kept["owner"]), Owner.API),
        description=part("description", lambda: _of_kind(get("description"), str), ""),
        tags=part("tags", lambda: _names(get("tags")), ()),
        metadata=part("metadata", lambda: codec.decode(get("metadata")), {}) or {},
        webhook=part("webhook", lambda: None if webhook is None else read_webhook(webhook), None),
    )
    job = replace(job, unreadable=salvage.problem or "it cannot be read as a whole")
    report(job)
    return job


def _read_job(kept: Document) -> Job:
    get = kept.get
    schedule, metadata, webhook = get("schedule"), get("metadata"), get("webhook")
    return Job(
        id=kept["_id"],
        handler=kept["handler"],
        created_at=_moment(kept["created_at"]),
        updated_at=_moment(kept["updated_at"]),
        payload=codec.decode(get("payload")),
        schedule=None if schedule is None else read_schedule(schedule),
        policy=read_policy(kept["policy"]),
        enabled=kept["enabled"],
        next_run_at=read_moment(get("next_run_at")),
        last_run_at=read_moment(get("last_run_at")),
        version=kept["version"],
        owner=Owner(kept["owner"]),
        description=kept["description"],
        tags=tuple(get("tags") or ()),
        metadata=codec.decode(metadata) if metadata else {},
        webhook=None if webhook is None else read_webhook(webhook),
    )
