"""Every transition of a run, as a pure function that gives a `Change`.

A change names what it expects to find (`expect`) and what it writes (`set`); a store applies
it only where all that is expected still stands. That is the fence: a worker whose lease was
taken over finds another token there, and loses. Stores know `commit` alone, so a new outcome
needs no store code.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct, field

from mainspring.core.clock import EPOCH, later
from mainspring.core.model import (
    FINISHED,
    MAX_ATTEMPTS_KEPT,
    Attempt,
    Job,
    Outcome,
    Run,
    Source,
    State,
    replace,
)
from mainspring.core.policy import Delivery
from mainspring.core.statistics import Ending, ending_of

MAX_LAPSES = 4
"""The lapse that ends a run: a run that kills its workers must not kill them all."""

SUSPECT_AFTER = 2
"""Lapses after which a run is a suspect: it may kill its workers, or it was beside one that does.
From then on it runs alone, and its begin is recorded first, so that a lapse tells which."""

EDIT_GRACE = timedelta(seconds=10)
"""Workers learn of an edit within a second, and clocks differ a little. A run claimed more than
this long after the last edit was begun under the stored definition."""


_change_ids: list[int] = []
os.register_at_fork(after_in_child=_change_ids.clear)


def _new_change_id() -> int:
    """Drawn from the system, so that two processes never draw the same, also after a fork. Many at
    once: each draw lets other threads take the interpreter lock, and then waits for it."""
    while True:
        try:
            return _change_ids.pop()
        except IndexError:
            drawn = struct.iter_unpack("Q", os.urandom(8 * 512))
            _change_ids.extend(number >> 1 for (number,) in drawn)


class Change(Struct, frozen=True, gc=False):
    """Write `set` to the run `id` if every field of `expect` still has the value given. `deletes`:
    delete the run instead.

    `change_id` is drawn when the change is made. The store keeps it with the run, so that it
    recognises a change that is sent again after its answer was lost. `ending` is what the store
    counts when it applies the change: None where the run does not end by it. `decided_at` is the
    time from which a new `run_at` was computed: a store whose clock was set back since then moves
    that `run_at` back by as much.
    """

    id: str
    expect: Mapping[str, Any]
    set: Mapping[str, Any]
    deletes: bool = False
    change_id: int = field(default_factory=_new_change_id)
    ending: Ending | None = None
    decided_at: datetime | None = None

    def after(self, run: Run) -> Run:
        return replace(run, **self.set)


class Failure(Struct, frozen=True):
    """What went wrong in an attempt, in a form that can be kept."""

    error: str
    traceback: str | None = None
    outcome: Outcome = Outcome.FAILED


class AttemptDetails(Struct, frozen=True, gc=False):
    """What the record of an attempt holds besides its outcome (see `Attempt`)."""

    log: tuple[str, ...] = ()
    detail: Any = None
    cpu_seconds: float | None = None
    peak_memory: int | None = None


NO_DETAILS = AttemptDetails()


def succeeded(run: Run, now: datetime, result: Any, details: AttemptDetails = NO_DETAILS) -> Change:
    return _ending_change(
        run,
        _mine(run),
        {
            **_ended(run, now, State.SUCCEEDED),
            **_without_reason(run),
            "result": result,
            "error": None,
            "attempts": _with_attempt(run, now, Outcome.SUCCEEDED, details=details),
        },
    )


def retrying(
    run: Run,
    now: datetime,
    failure: Failure,
    run_at: datetime,
    details: AttemptDetails = NO_DETAILS,
) -> Change:
    """The attempt failed and another follows at `run_at`."""
    return Change(
        run.id,
        _mine(run),
        {
            **_pending(run, run_at),
            "failures": run.failures + 1,
            "error": failure.error,
            "attempts": _with_attempt(run, now, failure.outcome, failure, details),
        },
        decided_at=now,
    )


def deleted(run: Run) -> Change:
    """Delete a finished run. The store refuses it while the run's dedupe key is held."""
    return Change(run.id, {"state": run.state, "token": run.token}, {}, deletes=True)


def failed(
    run: Run,
    now: datetime,
    failure: Failure,
    details: AttemptDetails = NO_DETAILS,
    reason: str | None = None,
) -> Change:
    """The last attempt failed: the run joins the dead letters."""
    return _ending_change(
        run,
        _mine(run),
        {
            **_ended(run, now, State.FAILED),
            "failures": run.failures + 1,
            "error": failure.error,
            "reason": reason,
            "attempts": _with_attempt(run, now, failure.outcome, failure, details),
        },
    )


def request_cancel(run: Run, reason: str) -> Change:
    """Ask the worker that holds the run to stop it; its lease stands until it has."""
    return Change(run.id, _mine(run), {"cancel_requested": True, "reason": reason})


def cancelled_or_requested(run: Run, now: datetime, reason: str) -> Change:
    """Cancel a live run: at once, or by asking its handler where it runs."""
    if run.state is State.RUNNING:
        return request_cancel(run, reason)
    return cancelled(run, now, reason)


def cancelled(
    run: Run, now: datetime, reason: str | None, details: AttemptDetails = NO_DETAILS
) -> Change:
    """End a run that nobody holds, or that its own worker has stopped."""
    put = {**_ended(run, now, State.CANCELLED), "reason": reason}
    if run.state is State.RUNNING:
        put["attempts"] = _with_attempt(run, now, Outcome.CANCELLED, details=details)
    return _ending_change(run, {"state": run.state, "token": run.token}, _known(run, put))


def skipped(run: Run, now: datetime, reason: str) -> Change:
    """End a run that will not be tried, and keep why."""
    over = _known(run, {**_ended(run, now, State.SKIPPED), "reason": reason})
    if run.state is State.RUNNING:  # claimed, but too late to start
        return _ending_change(run, _mine(run), {**over, **_unstarted(run)})
    return _ending_change(run, {"state": run.state, "token": run.token}, over)


def is_suspect(run: Run) -> bool:
    """Whether its workers died so often that it runs alone from now on."""
    return run.lapses >= SUSPECT_AFTER


def records_begin(run: Run, job: Job) -> bool:
    """Whether a worker records that the handler begins before it begins it.

    Only where somebody has to know: it is one more commit. An at-most-once run that did not begin
    may be claimed again, a lapse of a suspect that did not begin does not count, and a start
    deadline holds until the handler first begins.
    """
    return (
        run.start_by is not None or job.policy.delivery is Delivery.AT_MOST_ONCE or is_suspect(run)
    )


def began(run: Run) -> Change:
    """Record that the handler is about to begin: from now on no start deadline ends the run.
    Refused where the run is to be cancelled, or is no longer the caller's."""
    deadline = {} if run.start_by is None else {"start_by": None}
    return Change(run.id, _mine(run), {"began": True, **deadline})


def never_began(run: Run, job: Job | None) -> bool:
    """Whether the handler of a lapsed run certainly did not begin: its worker would have recorded
    that first, and there is no record. After a recent edit the worker may have known another
    policy, under which it records nothing."""
    if run.began is not False:
        return False
    if is_suspect(run) or run.start_by is not None:
        return True
    if job is None or run.started_at is None or not records_begin(run, job):
        return False
    if job.updated_at == job.created_at <= run.created_at:  # it was never edited
        return True
    return job.updated_at + EDIT_GRACE < run.started_at


def rescued(
    run: Run,
    now: datetime,
    delivery: Delivery,
    *,
    unbegun: bool = False,
    blameless: bool = False,
    seen: Mapping[str, datetime] = {},
) -> Change:
    """Take a run back from a worker whose lease has lapsed.

    The lapse is guarded by the lease seen: an owner that renewed in between keeps its run.
    So are the wish to cancel and the record of a begin: one that came in between is found by the
    next rescue.

    `unbegun`: its handler certainly did not begin (`never_began`). Then no attempt is counted and
    no lapse, and an at-most-once run may be given again. `blameless`: the handler may have begun,
    but it is known that something else ended its worker, so the lapse does not count. `seen`: when
    workers were last seen alive. The last lapse is not `poison` but `lapsed` if a worker has
    survived one: the run does not kill its workers, they were frozen or cut off.
    """
    expect = {
        "state": State.RUNNING,
        "token": run.token,
        "lease_until": run.lease_until,
        "cancel_requested": run.cancel_requested,
    }
    if unbegun:  # its owner may record the begin in between
        expect["began"] = False
    died = Failure(f"the worker {run.worker} died or lost its lease while it held the run")
    attempts = run.attempts if unbegun else _with_attempt(run, now, Outcome.LOST, died)
    lapses = run.lapses + (0 if unbegun or blameless else 1)
    if run.cancel_requested:
        end = {**_ended(run, now, State.CANCELLED), "reason": run.reason}
    elif unbegun:
        end = _pending(run, _was_due(run, now))
    elif delivery is Delivery.AT_MOST_ONCE:
        end = {
            **_ended(run, now, State.FAILED),
            "reason": LOST,
            "error": died.error,
        }
    elif lapses >= MAX_LAPSES:
        end = {
            **_ended(run, now, State.FAILED),
            "reason": LAPSED if _has_survivor(attempts, seen) else POISON,
            "error": died.error,
        }
    else:
        end = _pending(run, _was_due(run, now))
    if unbegun:
        end |= _unstarted(run)
    put = _known(run, {**end, "lapses": lapses, "attempts": attempts})
    return replace(_ending_change(run, expect, put), decided_at=now)


def _has_survivor(attempts: tuple[Attempt, ...], seen: Mapping[str, datetime]) -> bool:
    """Whether a worker that lost the run is alive, or has held the run again since."""
    lost = [attempt for attempt in attempts if attempt.outcome is Outcome.LOST]
    if len({attempt.worker for attempt in lost}) < len(lost):
        return True
    return any(seen.get(end.worker, EPOCH) >= (end.finished_at or EPOCH) for end in lost)


def aborted(
    run: Run,
    now: datetime,
    failure: Failure,
    run_at: datetime,
    details: AttemptDetails = NO_DETAILS,
) -> Change:
    """Give back a run whose transaction was rolled back by no fault of its handler."""
    attempts = _with_attempt(run, now, Outcome.RELEASED, failure, details)
    put = {**_pending(run, run_at), "attempts": attempts}
    return Change(run.id, _mine(run), put, decided_at=now)


def released(
    run: Run, now: datetime, *, began: bool, details: AttemptDetails = NO_DETAILS
) -> Change:
    """Give back a run that this worker holds but will not finish (it is draining)."""
    put = _pending(run, _was_due(run, now))
    if began:
        put["attempts"] = _with_attempt(run, now, Outcome.RELEASED, details=details)
    else:
        put |= _unstarted(run)
    return Change(run.id, _mine(run), put, decided_at=now)


def snoozed(
    run: Run, now: datetime, until: datetime, reason: str | None = None, *, began: bool = False
) -> Change:
    """Give a run back until a later time; the attempt does not count (its job cannot be read, say,
    or its handler asked for it: `began`). The reason is kept while the run is pending."""
    put = {**_pending(run, until), **_unstarted(replace(run, start_by=None) if began else run)}
    if reason is not None:
        put["reason"] = reason
    return Change(run.id, _mine(run), put, decided_at=now)


def revived(run: Run, now: datetime, *, waits_for: tuple[str, ...] = ()) -> Change:
    """Try a failed or cancelled run again: the same run, its failures forgotten. It waits for these
    runs first (`awaited_again`). Its token grows then: what was decided about it while it waited
    before is refused."""
    waiting: dict[str, Any] = {"token": run.token + 1} if waits_for else {}
    if waits_for and waits_for != run.after:
        waiting["after"] = waits_for
    return Change(
        run.id,
        {"state": run.state, "token": run.token},
        {
            **waiting,
            "state": State.WAITING if waits_for else State.PENDING,
            "run_at": now,
            "start_by": None,
            "failures": 0,
            "lapses": 0,
            "finished_at": None,
            "result": None,
            "error": None,
            "reason": None,
            "progress": None,
            "cancel_requested": False,
        },
        decided_at=now,
    )


def awaited_again(run: Run, upstream: Mapping[str, State]) -> tuple[str, ...]:
    """The runs that a run waits for when it is tried again, given the states of those that it comes
    after. None, if they have ended as it demands. A deleted one has ended: it is not waited for."""
    states = [upstream[name] for name in run.after if name in upstream]
    if any(state not in FINISHED for state in states):
        return run.after
    done = run.after_any or all(state is State.SUCCEEDED for state in states)
    return () if done else run.after


NODE_GONE = "its node is gone"
"""The reason of a node run whose worker ended before it took the run."""


def node_gone(run: Run, now: datetime) -> Change:
    """End a node run that waits for a worker that is gone: nobody else may take it. It failed if it
    was tried before; otherwise it is skipped."""
    if not run.attempt:
        return skipped(run, now, NODE_GONE)
    error = "its worker ended, and no other worker may take the run"
    put = _known(run, {**_ended(run, now, State.FAILED), "reason": LOST, "error": error})
    return _ending_change(run, {"state": run.state, "token": run.token}, put)


LOST = "lost"
"""The reason of a failed run whose worker died, and that no other worker may start again."""

POISON = "poison"
"""The reason of a failed run whose workers died, until no further try was allowed."""

LAPSED = "lapsed"
"""The same, if one of those workers lives on: it was frozen, or cut off from the store."""

MEMORY = "memory"
"""The reason of a failed run that ran when its process reached its memory limit."""

JOB_REMOVED = "job removed"
"""The reason of a run that was cancelled because its job was removed."""

EXPIRED = "expired"
"""The reason of a run that was skipped because its start deadline had passed."""

MISFIRE = "misfire"
"""The reason of a skipped run that records slots which were missed."""

STARTED_TOGETHER = "another node started too"
"""The reason of a skipped run at the start of a node that shares the run of another node."""

JOB_PAUSED = "job paused"
"""The reason of a skipped run that records slots which were due when somebody paused their job."""

PAUSED = "paused"
"""The reason of a skipped run that records slots which passed while all firing was paused."""

OVERLAP = "overlap"
"""The reason of a slot that was skipped because an earlier slot's run had not ended."""

UPSTREAM_SKIPPED = "upstream skipped"
"""The reason of a run that comes after a slot which was skipped because of an overlap."""

UPSTREAM_FAILED = "upstream failed"
"""The reason of a run that was skipped because one that it comes after did not succeed."""


UPSTREAM_DELETED = "upstream deleted"
"""The reason of a run that was skipped because one that it comes after is gone: how that one ended,
and its result, are not known. No store deletes a run that an unfinished run comes after; it was
deleted by somebody else, or before the run was tried again."""


def waiting_again(run: Run) -> Change:
    """Let a run wait for one that is tried again: it was skipped because that one failed, or it
    still waits. Its token grows, so that a skip which was decided before the retry is refused."""
    put: dict[str, Any] = {"token": run.token + 1}
    if run.state is State.SKIPPED:
        put |= {"state": State.WAITING, "finished_at": None, "reason": None}
    return Change(run.id, {"state": run.state, "token": run.token}, put)


def unblocked(run: Run, now: datetime, upstream: Mapping[str, State | None]) -> Change | None:
    """What becomes of a waiting run, given the states of the runs it waits for.

    How a run ended that is gone is not known. It does not count as succeeded: a run that needs its
    success is skipped.
    """
    known = {run_id: upstream.get(run_id) or State.FAILED for run_id in run.after}
    states = known.values()
    if not run.after_any and any(s in FINISHED and s is not State.SUCCEEDED for s in states):
        bad = [name for name, s in known.items() if s in FINISHED and s is not State.SUCCEEDED]
        gone = all(upstream.get(name) is None for name in bad)
        return skipped(run, now, UPSTREAM_DELETED if gone else UPSTREAM_FAILED)
    if not all(s in FINISHED for s in states):
        return None
    expect = {"state": State.WAITING, "token": run.token}
    run_at = max(run.run_at, now)
    put: dict[str, Any] = {"state": State.PENDING, "run_at": run_at}
    if run.start_by is not None and run.source is not Source.SCHEDULE:
        # The deadline of a follower counts from now on; that of a queued slot, from the slot.
        put["start_by"] = later(run_at, run.start_by - run.run_at)
    return Change(run.id, expect, put, decided_at=now if run_at == now else None)


def waiting_for_earlier_slot(run: Run, earlier: tuple[str, ...]) -> Change:
    """Let a queued slot wait for these too, because the slot that it waited for ended before its
    turn. If that one is retried, this one waits for it again."""
    after = tuple(dict.fromkeys((*run.after, *earlier)))
    return Change(run.id, {"state": State.WAITING, "token": run.token}, {"after": after})


def _ending_change(run: Run, expect: dict[str, Any], put: dict[str, Any]) -> Change:
    """A change that may end the run, with what is counted then."""
    return Change(run.id, expect, put, ending=ending_of(run, put))


def _mine(run: Run) -> dict[str, Any]:
    """What a worker expects of a run it holds. If the run was cancelled first, the cancel wins."""
    return {"state": State.RUNNING, "token": run.token, "cancel_requested": False}


def _ended(run: Run, now: datetime, state: State) -> dict[str, Any]:
    return {
        "state": state,
        "started_at": run.started_at,
        "finished_at": now,
        "lease_until": None,
        "progress": run.progress,
    }


def _known(run: Run, put: dict[str, Any]) -> dict[str, Any]:
    """What may be written to the run. If it is unreadable, fields that depend on an unreadable
    field stay unchanged."""
    if run.unreadable is None:
        return put
    return {name: value for name, value in put.items() if name not in _UNREADABLE_DEPENDENT}


_UNREADABLE_DEPENDENT = frozenset({"attempts", "progress", "started_at", "run_at", "lapses"})


def _was_due(run: Run, now: datetime) -> datetime:
    """When a claimed run fell due: never later than now, even if the clock was set back since."""
    return min(run.run_at, now)


def _pending(run: Run, run_at: datetime) -> dict[str, Any]:
    later = {
        "state": State.PENDING,
        "run_at": run_at,
        "lease_until": None,
        "worker": None,
        "began": None,
    }
    return {**later, **_without_reason(run)}


def _without_reason(run: Run) -> dict[str, Any]:
    """Why a run was pending is over. Most runs have no reason, and then nothing is written."""
    return {} if run.reason is None else {"reason": None}


def _unstarted(run: Run) -> dict[str, Any]:
    last = run.attempts[-1].started_at if run.attempts else None
    unstarted = {"attempt": run.attempt - 1, "started_at": last}
    # Its begin may be on record all the same, and that took the deadline away.
    return unstarted if run.start_by is None else {**unstarted, "start_by": run.start_by}


def _with_attempt(
    run: Run,
    now: datetime,
    outcome: Outcome,
    failure: Failure | None = None,
    details: AttemptDetails = NO_DETAILS,
) -> tuple[Attempt, ...]:
    if run.brief:  # it would overwrite the attempts that were not read
        raise ValueError(f"run {run.id} was read without its attempts; read it whole first")
    cpu_seconds = details.cpu_seconds
    attempt = Attempt(
        number=run.attempt,
        worker=run.worker or "",
        started_at=run.started_at or now,
        finished_at=now,
        outcome=outcome,
        error=failure.error if failure else None,
        traceback=failure.traceback if failure else None,
        log=details.log,
        detail=details.detail,
        cpu_seconds=None if cpu_seconds is None else round(cpu_seconds, 6),
        peak_memory=details.peak_memory,
    )
    return (*run.attempts, attempt)[-MAX_ATTEMPTS_KEPT:]
