"""Every error that Mainspring raises on purpose, under one root.

    MainspringError
    ├── InvalidInput (ValueError)      an argument cannot be used; carries field, given, allowed
    │   ├── InvalidSchedule              a schedule that cannot be read, or can never fire; part
    │   ├── InvalidPayload               not JSON, or too large
    │   ├── InvalidArguments             the handler does not take these arguments
    │   │   └── ArgumentsRefused           a stored run's payload no longer fits its handler
    │   ├── InvalidCursor                a cursor that no page of results gave
    │   ├── UnknownOption                there is no option of that name
    │   └── SecretKeyMissing             no key to encrypt or decrypt a secret
    ├── NotFound (LookupError)
    │   ├── JobNotFound
    │   ├── RunNotFound
    │   └── HandlerNotFound
    ├── Conflict                       what is stored does not allow this
    │   ├── JobExists                    there is a job of that id already
    │   ├── JobOwnedByCode               an edit of a job that code owns
    │   ├── JobOwnedByFile               an edit of a job that a file lists
    │   ├── CopyRefused                  a store that is in use, or holds something else
    │   ├── JobChanged                   an edit of a job that was edited meanwhile
    │   ├── RecordUnreadable             a job or run that this version cannot read
    │   └── InvalidState                 the state of a run, job or program does not allow this
    ├── ResourceFailed                 a factory of `resources` raised at the start
    ├── NotStarted                     a client or scheduler was used before start or after stop
    ├── RunTimeout (TimeoutError)      a handler ran longer than its timeout
    ├── RunCancelled                   a cancel stopped a handler in its own process
    ├── RunLost                        the worker stopped before an at-most-once handler ended
    ├── MemoryExceeded                 a handler in its own process exceeded its memory limit
    ├── ProcessDied                    the process of a handler died
    ├── RemoteFailure                  a handler in its own process raised an exception
    ├── TransactionAborted             rolled back through no fault of the handler; tried again
    ├── TransactionExpired (TimeoutError)  rolled back because the transaction lasted too long
    ├── WebhookFailed                  an endpoint gave no answer, or one that means failure
    │   └── AddressRefused               webhooks may not call the endpoint's address
    └── StoreError
        ├── StoreUnavailable             the store cannot be reached now; try again
        │   ├── StoreFileChanged           its file was deleted, moved or replaced while in use
        │   └── StoreUnreachable           there is no connection to its server
        ├── StoreMissing                 nothing of Mainspring is there, and nothing may be made
        ├── StoreDamaged                 not a Mainspring database, or a damaged one
        ├── StoreTooNew                  written by a newer Mainspring
        └── StoreUnsuitable              storage that ignores the conditions of a write

A handler raises three more to say how its run goes on: `Retry` (with `RetryNotBefore`), `GiveUp`
and `Snooze`. They are not under the root.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from datetime import timedelta


class MainspringError(Exception):
    """The root of every error raised on purpose."""


def install_advice(extra: str) -> str:
    """How to install an extra. Mainspring is on no package index, so the advice cannot name one."""
    return (
        f"install Mainspring again with the extra {extra!r}, from the checkout or wheel that you"
        f" installed it from: pip install '/path/to/mainspring[{extra}]'"
    )


class InvalidInput(MainspringError, ValueError):
    """What was given cannot be used; nothing was changed.

    `field` names the argument at fault as the library takes it, with a dot before a part of it:
    `"retries"`, `"backoff.delay"`, `"webhook.url"`. `given` is its value and `allowed` what it may
    be. Each is None where it is not known, and `given` also where the value may be a secret.
    The message is `subject` and then `predicate`. `subject` is the library's name of the field; the
    HTTP API replaces it with its own. It is None if the message does not begin with the field.
    `job_id` names the job at fault where several were given, `file` the file that gave them.
    `others` are the errors of further arguments that were found in the same call.
    """

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        given: object = None,
        allowed: object = None,
        job_id: str | None = None,
        subject: str | None = None,
    ) -> None:
        super().__init__(message if subject is None else f"{subject} {message}")
        self.subject = subject
        self.predicate = message
        self.field = field
        self.given = given
        self.allowed = allowed
        self.job_id = job_id
        self.file: str | None = None
        self.others: tuple[InvalidInput, ...] = ()

    def each(self) -> tuple[InvalidInput, ...]:
        """This error and those that were found beside it, one for each wrong argument."""
        return (self, *self.others)


def refused(
    field: str, given: object, rule: str, allowed: object = None, *, subject: str | None = None
) -> InvalidInput:
    """The error of a value that breaks a rule: `refused("retries", -1, "is 0 or more")`."""
    shown = str(given) if isinstance(given, timedelta) else repr(given)
    return InvalidInput(
        f"{rule}, not {shown}", subject=subject or field, field=field, given=given, allowed=allowed
    )


class InvalidSchedule(InvalidInput):
    """A schedule that cannot be read, or that can never fire.

    `field` is `"schedule"`, `"timezone"` or `"jitter"`. `part` names the part of the schedule at
    fault (`"hour"`), where there is one.
    """

    def __init__(
        self, message: str, *, field: str | None = "schedule", part: str | None = None
    ) -> None:
        super().__init__(message, field=field)
        self.part = part


class InvalidPayload(InvalidInput):
    """A payload or result that is not JSON, or is too large. `reason` is the message without the
    advice at its end."""

    def __init__(
        self,
        reason: str,
        *,
        field: str | None = None,
        subject: str | None = None,
        advice: str | None = None,
    ) -> None:
        message = reason if advice is None else f"{reason}. {advice}"
        super().__init__(message, field=field, subject=subject)
        self.reason = reason if subject is None else f"{subject} {reason}"


class InvalidArguments(InvalidInput, TypeError):
    """The handler does not take these arguments. `field` is `"payload"`."""

    def __init__(self, message: str) -> None:
        super().__init__(message, field="payload")


class InvalidCursor(InvalidInput):
    """A cursor that no page of results gave."""

    def __init__(self, cursor: object) -> None:
        super().__init__(
            f"is not one that a page of results gave: {str(cursor)[:100]!r}. Leave it out for the"
            " first page",
            subject="the cursor",
            field="cursor",
            given=cursor,
        )


class UnknownOption(InvalidInput):
    """There is no option of that name. `unknown` lists those given, `allowed` those that exist."""

    def __init__(
        self, unknown: Iterable[str], allowed: Iterable[str], what: str = "option"
    ) -> None:
        self.unknown = sorted(unknown)
        allowed = sorted(allowed)
        told = ", ".join(f"{name!r}{_advice(name, allowed)}" for name in self.unknown)
        plural = "s" if len(self.unknown) > 1 else ""
        super().__init__(
            f"unknown {what}{plural} {told}; {what}s are {', '.join(allowed)}",
            field=self.unknown[0],
            allowed=allowed,
        )

    def add_advice(self, advice: str) -> None:
        self.args = (f"{self}. {advice[:1].upper()}{advice[1:]}",)


def suggest_name(name: str, allowed: Iterable[str]) -> str | None:
    """The option that other schedulers call by this name, else the most similar one. Case does not
    matter: `maxRetries` is the same name as `max_retries`."""
    written = {_snake_case(option): option for option in allowed}
    name = _snake_case(name)
    meant = [ours for ours, others in _OTHER_NAMES.items() if name in others]
    near = [name, *meant, *difflib.get_close_matches(name, written, n=1)]
    return next((written[option] for option in near if option in written), None)


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().replace("-", "_")


def _advice(name: str, allowed: list[str]) -> str:
    near = suggest_name(name, allowed)
    return "" if near is None else f" (did you mean {near!r}?)"


_OTHER_NAMES = {
    "retries": ("retry", "max_retries", "retry_attempts", "attempts", "tries", "max_attempts"),
    "retry_attempts": ("retries", "retry", "max_retries", "attempts", "tries", "max_attempts"),
    "backoff": ("retry_backoff", "strategy"),
    "timezone": ("tz", "zone", "time_zone"),
    "schedule": (
        *("cron", "every", "interval", "trigger", "when", "run_at", "repeat"),
        *("seconds", "minutes", "hours", "days", "weeks"),
    ),
    "payload": ("args", "kwargs", "arguments", "data", "params", "context"),
    "concurrency": (
        "max_instances",
        "max_concurrency",
        "max_concurrent",
        "max_concurrent_jobs",
        "workers",
        "limit",
    ),
    "workers": ("max_concurrent_jobs", "max_concurrent", "concurrency", "max_workers"),
    "delay": ("countdown", "eta", "run_at", "schedule"),
    "dedupe_key": ("key", "unique", "idempotency_key", "unique_key", "job_key"),
    "after": ("depends_on", "follows", "upstream"),
    "timeout": ("time_limit", "deadline", "max_duration"),
    "enabled": ("active", "paused", "disabled"),
    "id": ("name", "job_id"),
    "handler": ("action", "func", "function", "callback", "fn", "executor"),
    "endpoint": ("url", "uri", "webhook", "address", "target", "callback"),
    "url": ("endpoint", "uri"),
    "webhook": ("endpoint", "url", "uri", "method", "headers", "body"),
    "breaker": ("enable_circuit_breaker", "circuit_breaker"),
    "on_success": ("on_complete", "on_completed"),
    "on_error": ("on_failure", "on_fail"),
    "memory_limit": ("memory_threshold", "enable_memory_monitoring", "max_memory"),
    "delivery": ("execution_type",),
    "misfire": ("misfire_grace_time", "coalesce", "catch_up", "catchup"),
    "lease": ("lock_timeout", "lock_timeout_ms", "lock_ttl", "visibility_timeout"),
    "poll": ("poll_interval", "poll_interval_ms", "heartbeat_interval"),
    "retention": ("history_retention", "result_ttl"),
    "history": ("history_size", "max_history"),
    "prune_every": ("cleanup_interval",),
}
"""What other schedulers call it, those of the pages that the product grew from included."""


class SecretKeyMissing(InvalidInput):
    """There is no key to encrypt a secret with, or the key that decrypts it is missing."""


class NotFound(MainspringError, LookupError):
    """There is nothing of that name."""


class JobNotFound(NotFound):
    """There is no job of this id. The message names a similar one of the `known` ids; if none is
    known, it says how jobs come into the store. `known=None`: nobody has looked."""

    def __init__(self, job_id: str, known: Iterable[str] | None = None) -> None:
        ids = sorted(known or ())
        near = difflib.get_close_matches(job_id, ids, n=1)
        advice = f": did you mean {near[0]!r}?" if near else ""
        if known is not None and not ids:
            advice = (
                ": this store has no jobs yet. A program stores its decorated jobs when it starts;"
                " start it once (a worker, or a scheduler with workers=0), or add a job"
            )
        super().__init__(f"there is no job {job_id!r}{advice}")
        self.job_id = job_id


class RunNotFound(NotFound):
    """There is no run of this id. It may have been pruned after the retention."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"there is no run {run_id!r} (finished runs are pruned after a time)")
        self.run_id = run_id


class HandlerNotFound(NotFound):
    """No handler of this name is registered in this process."""

    def __init__(self, handler: str, known: list[str]) -> None:
        names = ", ".join(known) or "none"
        near = difflib.get_close_matches(handler, known, n=1) if isinstance(handler, str) else []
        advice = f": did you mean {near[0]!r}?" if near else ""
        if callable(handler):
            advice = ". Register the function first, with @scheduler.job or scheduler.add_handler"
        super().__init__(f"no handler {handler!r} is registered here (registered: {names}){advice}")
        self.handler = handler


class InputErrors:
    """Collects the errors of several arguments, so that one call reports them all.

    errors = InputErrors()
    with errors:
        url = read_url(given)
    errors.check()
    """

    def __init__(self) -> None:
        self._collected: list[InvalidInput] = []
        self._missing: HandlerNotFound | None = None

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if isinstance(error, InvalidInput):
            self.add(error)
            return True
        if isinstance(error, HandlerNotFound):
            self._missing = error
            return True
        return False

    def add(self, error: InvalidInput) -> None:
        self._collected += error.each()

    def each(self) -> list[InvalidInput]:
        """The errors so far."""
        return self._collected

    def check(self) -> None:
        """Raise the first error, if there is one; `others` has the rest, and a traceback shows
        them. A handler that is not registered raises `HandlerNotFound` if it is the only error."""
        if not self._collected:
            if self._missing is not None:
                raise self._missing
            return
        first, *others = self._collected
        if self._missing is not None:
            missing = self._missing
            others.append(InvalidInput(str(missing), field="handler", given=missing.handler))
        first.others = tuple(others)
        first.__notes__ = [f"Also: {other}" for other in others]
        raise first


class Conflict(MainspringError):
    """What is stored does not allow what was asked for."""


class JobExists(Conflict):
    """There is a job of that id already. `job_id` is its id where it is stored."""

    def __init__(self, message: str, *, job_id: str | None = None) -> None:
        super().__init__(message)
        self.job_id = job_id


class JobOwnedByCode(Conflict):
    """An edit of a job that a decorated function defines: change the code instead."""

    def __init__(self, job_id: str) -> None:
        super().__init__(
            f"job {job_id!r} is defined in code: change it there (it can be paused, resumed and"
            " triggered from here)"
        )
        self.job_id = job_id


class JobOwnedByFile(Conflict):
    """An edit of a job that a file lists: change the file and apply it. `file` is its name."""

    def __init__(self, job_id: str, file: str | None) -> None:
        super().__init__(
            f"job {job_id!r} is defined in the file {file!r}: change it there and run `mainspring"
            " apply` (the job can be paused, resumed and triggered from here)"
        )
        self.job_id, self.file = job_id, file


class CopyRefused(Conflict):
    """A copy between stores was refused because of what one of them holds. What was copied so far
    is complete and correct."""


class JobChanged(Conflict):
    """The job was edited since the caller read it: read it again."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"job {job_id!r} was changed since you read it: read it again")
        self.job_id = job_id


class RecordUnreadable(Conflict):
    """A job or run that is damaged, or that a newer version wrote. No process changes it."""

    def __init__(self, kind: str, id: str, why: str | None) -> None:
        super().__init__(
            f"{kind} {id!r} cannot be read ({why}). Upgrade this program if a newer version wrote"
            " it; if it is damaged, restore it or remove it"
        )
        self.kind, self.id, self.why = kind, id, why


class InvalidState(Conflict):
    """The state of the run, the job or the program does not allow this."""


class ResourceFailed(MainspringError):
    """A factory of `Scheduler(resources=…)` raised at the start, so nothing was started. The
    factory's own error is its `__cause__`."""


class NotStarted(MainspringError):
    """The client or scheduler was used before start or after stop."""


class RunTimeout(MainspringError, TimeoutError):
    """A handler ran longer than its timeout."""


class RunCancelled(MainspringError):
    """A cancel stopped a handler that ran in its own process."""


class RunLost(MainspringError):
    """The worker stopped before the handler of an at-most-once run ended; the run is not tried
    again. `on_error` is called with it."""


class MemoryExceeded(MainspringError):
    """A handler in a process of its own exceeded its memory limit, or a handler ran when its worker
    process reached the limit of that process, and did not end in time."""


class ProcessDied(MainspringError):
    """The process of a handler died (`os._exit`, a segfault, the kernel's OOM killer)."""


class RemoteFailure(MainspringError):
    """A handler that ran in its own process raised this, given as text: `ValueError: …`."""


class TransactionAborted(MainspringError):
    """A handler's transaction was rolled back through no fault of the handler: another transaction
    conflicted, the store could not be reached, the run was cancelled, or another worker holds it
    by now. A run that this worker still holds is tried again, and no retry is used up."""


class TransactionExpired(MainspringError, TimeoutError):
    """A handler's transaction lasted longer than allowed and was rolled back."""


class WebhookFailed(MainspringError):
    """An endpoint gave no answer, or one that means failure. The message contains no secret."""


class StoreError(MainspringError):
    """The store failed."""


class StoreUnavailable(StoreError):
    """The store cannot be reached now. The engine waits and tries again."""


class StoreFileChanged(StoreUnavailable):
    """The SQLite file was deleted, moved or replaced while it was in use. Nothing is written until
    the same file is back in its place."""


class StoreUnreachable(StoreUnavailable):
    """There is no connection to the server of an object storage. When a store is opened, its
    address is wrong more often than not."""


class StoreMissing(StoreError):
    """Nothing of Mainspring is in the store, and it was opened with `create=False`."""


class StoreDamaged(StoreError):
    """A file that is not a Mainspring database, or a damaged one."""


class StoreTooNew(StoreError):
    """Written by a newer Mainspring than this one."""


class StoreUnsuitable(StoreError):
    """The object storage ignores the conditions of a write, so two workers would run the same
    job."""


class Retry(Exception):
    """Raise in a handler: try again, `after` this time instead of the backoff's.

    It counts as a failure, so `retries` limits it.
    """

    def __init__(self, reason: str = "", *, after: str | float | timedelta | None = None) -> None:
        super().__init__(reason or "the handler asked for another try")
        self.after = after


class RetryNotBefore(Retry):
    """Try again `after` this time, but not earlier than the backoff says."""


class GiveUp(Exception):
    """Raise in a handler: the run fails now, even if retries are left."""


class Snooze(Exception):
    """Raise in a handler that has done nothing yet: the run is given back and can be claimed again
    `after` this time. It counts neither as an attempt nor as a failure. A run of a job with
    `delivery="at_most_once"` starts only once, so there it fails the run."""

    def __init__(self, reason: str = "", *, after: str | float | timedelta = 1) -> None:
        super().__init__(reason or "the handler gave the run back for later")
        self.after = after


class ArgumentsRefused(InvalidArguments, GiveUp):
    """The stored payload of a run does not fit its handler. It is not retried, because another
    try would fail too."""


class AddressRefused(WebhookFailed, GiveUp):
    """Webhooks may not call the endpoint's address. It is not retried, because another try would
    fail too."""
