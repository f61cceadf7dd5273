"""Runs and jobs as documents, made from the tables of `stores/codec.py`.

A job's document is its record. So is a run's, with these exceptions:

    _id                 in place of id
    lane                {r: 9 - priority, g: job id, q: queue, h: handler, p: which part, by the
                        run's id}; also job_id and priority are fields of the document
    leased_at, lease    in place of lease_until: stamped by the server, and microseconds
    nonce               which claim took it last
    evicted             another run may have taken its capacity under a limit (limits.py)
    transaction         the session of its handler's transaction (handler_transaction.py)

Payloads, results and attempts are JSON text. So every value is stored unchanged (keys with `$` and
dots, NUL, big numbers), and MongoDB never interprets a key as an operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NoReturn
from zlib import crc32

from bson import MaxKey

from mainspring.core.model import LIVE, Job, Run, State, replace
from mainspring.core.policy import MAX_PRIORITY
from mainspring.errors import InvalidInput
from mainspring.stores.codec import (
    JOB,
    RUN,
    from_us,
    read_parts,
    record_reader,
    record_writer,
    to_us,
)
from mainspring.stores.limits import rate_limit
from mainspring.stores.mongodb.database import Document, read_moment, until

LANE_PARTS = 4
"""The runs of a job are spread over this many lanes, so that several clients can claim each from
its own. A client that claims alone has to walk through all of them."""

SET_ASIDE = -1
"""The part of a lane that holds pending runs that could not be read. No claim takes from it."""

STATES = tuple(str(state) for state in State)
LIVE_STATES = tuple(str(state) for state in State if state in LIVE)

STATE_OF = {str(state): state for state in State}


def _time(kept: Any) -> datetime:
    """A time of a document. It raises for what is not one."""
    if kept.__class__ is int:  # most are; a time that a server has stamped is a date
        return from_us(kept)
    if not isinstance(kept, int | datetime):
        raise ValueError(f"{str(kept)[:80]!r} is not a time")
    moment = read_moment(kept)
    assert moment is not None
    return moment


TIMES = {"read": _time}
# The driver gives large numbers as a class of its own, which other stores cannot encode.
NUMBERS = {"read": lambda kept: int(kept) if isinstance(kept, int) else kept}
_RUN = RUN.adapted(time=TIMES, number=NUMBERS)
_JOB = JOB.adapted(time=TIMES, number=NUMBERS)


def lane_of(run: Run) -> Document:
    """The same claims may take all runs of a lane, under the same limits. Lanes are sorted as
    claims take from them: from the highest priority down, then by job."""
    return {
        "r": MAX_PRIORITY - run.priority,
        "g": run.job_id,
        "q": run.queue,
        "h": run.handler,
        "p": lane_part(run.id),
    }


def lane_priority(lane: Document) -> int:
    priority: int = MAX_PRIORITY - lane["r"]
    return priority


def lanes_from_turn(turns: Mapping[int, str]) -> list[Document]:
    """Conditions for lanes, in the order of the turns that a claim takes from them. A shorter lane
    sorts before those that begin with it, and `MaxKey` behind all other values."""
    ranges = []
    low: Document = {}
    for priority, job_id in sorted(turns.items(), reverse=True):
        level = {"r": MAX_PRIORITY - priority}
        behind = {**level, "g": job_id, "q": MaxKey()}
        end = {**level, "g": MaxKey()}
        ranges += [(low, level), (behind, end), (level, behind)]
        low = end
    return [{"$gt": low, "$lt": high} for low, high in [*ranges, (low, {"r": MaxKey()})]]


def lane_part(run_id: str) -> int:
    return crc32(run_id.encode()) % LANE_PARTS


def is_lane(kept: Any) -> bool:
    """Whether this is a lane, and nothing in it is damaged."""
    return (
        isinstance(kept, dict)
        and all(isinstance(kept.get(name), str) for name in ("q", "h", "g"))
        and all(isinstance(kept.get(name), int) for name in ("r", "p"))
    )


def is_moment(kept: Any) -> bool:
    """Whether this is a number of microseconds that a datetime can hold. Another program may have
    written it as a double."""
    return isinstance(kept, _NUMBER) and abs(kept) < _END_OF_TIME


_NUMBER = (int, float)
_END_OF_TIME = 253_402_300_800_000_000 - 86_400_000_000


def has_numbers(kept: Document) -> bool:
    """Whether the fields that a claim sorts by or increments are numbers."""
    get = kept.get
    return (
        isinstance(get("priority"), _NUMBER)
        and isinstance(get("attempt"), _NUMBER)
        and isinstance(get("token"), _NUMBER)
        and is_moment(get("run_at"))
    )


_ELSEWHERE = ("handler", "queue", "lease_until")
"""Fields that a document has in `lane`, and in `leased_at` and `lease`."""

_run_document = record_writer(_RUN, leave_out=("id", "payload", *_ELSEWHERE))


def run_document(run: Run, payload: str | None) -> Document:
    """The document of a run whose payload is encoded already. Fields that are None are left out."""
    document = {"_id": run.id, "lane": lane_of(run), **_run_document(run)}
    if payload is not None:
        document["payload"] = payload
    if run.lease_until is not None:
        document |= _lease(run.lease_until)
    return document


def read_run(kept: Document, *, brief: bool = False) -> Run:
    """The run of a document. If not all of it can be read, `unreadable` is set and the other fields
    are read. `brief`: the document was read with `BRIEF`."""
    try:
        _check(kept)
        lane = kept["lane"]
        lease = _lease_until(kept)
        run = _read_run(kept, handler=lane["h"], queue=lane["q"], lease_until=lease)
    except Exception:  # a damaged document may raise anything
        run = _salvaged_run(kept)
    return replace(run, brief=True) if brief else run


def _check(kept: Document) -> None:
    """Raise if a field is damaged that claims need. Other fields are only shown."""
    if not has_numbers(kept):
        raise ValueError("a number is missing or of another type")
    lane = kept["lane"]
    names_are_text = (
        isinstance(kept["job_id"], str)
        and isinstance(lane["h"], str)
        and isinstance(lane["q"], str)
    )
    if not names_are_text:
        raise ValueError("a name is missing or not text")


def _lease_until(kept: Document) -> datetime | None:
    leased = kept.get("leased_at")
    return None if leased is None else _time(leased) + timedelta(microseconds=kept["lease"])


_read_run = record_reader(_RUN, {"id": "_id"}, leave_out=_ELSEWHERE)


def _salvaged_run(kept: Document) -> Run:
    """Read each field by itself, for a run that cannot be read as a whole."""
    lane: Document = kept["lane"] if isinstance(kept.get("lane"), dict) else {}

    def raw(name: str) -> Any:
        if name in ("handler", "queue"):
            return lane.get(name[0])
        if name == "lease_until":
            return _lease_until(kept)
        return kept.get("_id" if name == "id" else name)

    return read_parts(_RUN, raw, str(kept["_id"]))


RUN_FIELDS = (
    "lane", "leased_at", "lease", *(n for n in RUN.fields if n not in ("id", *_ELSEWHERE))
)  # fmt: skip
"""The fields that `read_run` reads, beside the id."""

BRIEF = dict.fromkeys((name for name in RUN_FIELDS if name not in RUN.not_brief), 1)
"""The fields of a brief list: no payload, result and attempts."""


def _lease(until: datetime | None) -> Document:
    return {
        "leased_at": None if until is None else to_us(until),
        "lease": None if until is None else 0,
    }


_NAMES = {"queue": "lane.q", "handler": "lane.h"}
_ENCODERS = {
    name: (_NAMES.get(name, name), field.encoder)
    for name, field in _RUN.fields.items()
    if name != "id"
}


def _unknown(name: str) -> NoReturn:
    raise InvalidInput(f"a run has no stored field {name!r}")


def encode_fields(fields: Mapping[str, Any]) -> Document:
    """A run's fields as its document keeps them."""
    encoded: Document = {}
    for name, value in fields.items():
        if name == "lease_until":
            encoded |= _lease(value)
            continue
        key, encode = _ENCODERS.get(name) or _unknown(name)
        encoded[key] = value if encode is None or value is None else encode(value)
    return encoded


def lane_changes(put: Mapping[str, Any]) -> Document:
    """What a change of these fields changes in the lane, beside the queue and the handler."""
    changes: Document = {}
    if "priority" in put:
        changes["lane.r"] = MAX_PRIORITY - put["priority"]
    if "job_id" in put:
        changes["lane.g"] = put["job_id"]
    return changes


def expecting(expect: Mapping[str, Any]) -> Document:
    """The filter that finds a run only if its fields are as expected."""
    plain = {name: value for name, value in expect.items() if name != "lease_until"}
    where: Document = {name: {"$eq": value} for name, value in encode_fields(plain).items()}
    if "lease_until" in expect:
        seen = expect["lease_until"]
        if seen is None:
            where["leased_at"] = {"$eq": None}
        else:
            where["$expr"] = {"$eq": [until("leased_at", "lease"), to_us(seen)]}
    return where


_job_document = record_writer(_JOB, leave_out=("id",))


def job_document(job: Job) -> Document:
    """The document of a job."""
    document = {"_id": job.id, **_job_document(job)}
    if job.policy.after:
        document["follows"] = True
    if (limit := _limit(job)) is not None:
        document["limit"] = limit
    return document


def _limit(job: Job) -> Document | None:
    policy, rate = job.policy, rate_limit(job)
    if policy.concurrency is None and rate is None:
        return None
    key = policy.concurrency_key
    limit = {"most": policy.concurrency, "key": f"job:{job.id}" if key is None else f"key:{key}"}
    return limit if rate is None else {**limit, "rate": list(rate)}


_read_job = record_reader(_JOB, {"id": "_id"})


def read_job(kept: Document) -> Job:
    """The job of a document. `unreadable` is set if it cannot be read as a whole."""
    try:
        return _read_job(kept)
    except Exception:  # a damaged document may raise anything
        return read_parts(
            _JOB, lambda name: kept.get("_id" if name == "id" else name), str(kept["_id"])
        )
