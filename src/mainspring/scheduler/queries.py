"""What may be asked of a scheduler beside single jobs and runs: lists, how things stand, what is
done to many runs at once, and notes."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from datetime import datetime
from typing import Any, TypeVar, Unpack

from mainspring.core.job_options import JobRef, RunFilter, job_id_of, option_names
from mainspring.core.model import Job, Note, Page, Run, State, check_key
from mainspring.engine.bulk_operations import Matched
from mainspring.engine.engine import Engine
from mainspring.engine.live_workers import LiveWorker
from mainspring.engine.settings import Settings
from mainspring.errors import InvalidInput, UnknownOption
from mainspring.scheduler import statistics
from mainspring.scheduler.statistics import JobHealth, JobMetrics, SchedulerHealth, Stats
from mainspring.stores.protocol import Counts, JobQuery, NoteQuery, RunQuery

__all__ = ["Asking", "page_limit", "state_set"]

T = TypeVar("T")
MOST_AT_ONCE = 10_000


class Asking:
    """A part of `Scheduler`, in a room of its own."""

    _engine: Engine | None
    _settings: Settings

    def _running(self) -> Engine:
        raise NotImplementedError

    async def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError

    # Lists

    async def list_jobs(
        self,
        *,
        ids: Iterable[str] | None = None,
        tag: str | None = None,
        enabled: bool | None = None,
        search: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
        offset: int = 0,
        counted: bool = False,
        last_runs: bool = True,
    ) -> Page[Job]:
        """By id. `search` looks into ids and descriptions; `cursor` of one page fetches the next,
        or `offset` passes over so many; `counted` also gives the page's `total`. `last_runs=False`
        saves the lookup of each job's last run: `last_run_at` is then the last slot that fired."""
        query = JobQuery(
            ids=None if ids is None else frozenset([ids] if isinstance(ids, str) else ids),
            tag=tag,
            enabled=enabled,
            text=search,
            limit=page_limit(limit),
            cursor=cursor,
            offset=offset,
            counted=counted,
        )
        return await self._call(statistics.list_jobs(self._running(), query, last_runs=last_runs))

    async def list_runs(
        self,
        *,
        job: JobRef | None = None,
        state: State | str | Iterable[State | str] | None = None,
        failing: bool = False,
        tried: bool = False,
        since: datetime | None = None,
        until: datetime | None = None,
        brief: bool = False,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Run]:
        """Newest first; `cursor` of one page fetches the next. `since` and `until` bound when
        they were made; `failing`: those with a failed attempt, whatever became of them; `tried`:
        those with any, also one under way. `brief` leaves out `payload`, `result` and `attempts`
        with their logs, which may be 2 MB of a run."""
        query = RunQuery(
            job=None if job is None else job_id_of(job),
            states=state_set(state),
            failing=failing,
            tried=tried,
            brief=brief,
            since=_moment(since, "since"),
            until=_moment(until, "until"),
            limit=page_limit(limit),
            cursor=cursor,
        )
        return await self._call(self._running().control.runs(query))

    # How it stands

    async def list_unreadable(self, limit: int = 100) -> tuple[list[Job], list[Run]]:
        """Jobs and runs whose records this version cannot read (damaged, or written by a newer
        version): up to `limit` of each, with `unreadable` saying why. They are set aside and left
        as they are. All jobs are looked at, and of runs those set aside and the newest 1,000 of
        each state."""
        return await self._call(self._running().control.unreadable(page_limit(limit)))

    @property
    def is_leader(self) -> bool:
        return self._engine is not None and self._engine.keeper.leads

    async def stats(self) -> Stats:
        return await self._call(statistics.stats(self._running(), self._settings))

    async def counts(self, since: datetime | None = None) -> Counts:
        """Runs by job and state, what is due of each handler, what ended `since` a moment."""
        return await self._call(self._running().control.counts(_moment(since, "since")))

    async def health(self) -> SchedulerHealth:
        return await self._call(statistics.health(self._running(), self._settings))

    async def explain_run(self, run_id: str) -> str | None:
        """Why a run did not run, or not yet, in one sentence. None if it runs or succeeded."""
        return await self._call(statistics.explain(self._running(), run_id))

    async def list_workers(self) -> list[LiveWorker]:
        """The processes that work on this store's runs, and which handlers they have. One that
        was killed is listed for up to a minute."""
        return await self._call(statistics.list_workers(self._running()))

    async def job_health(self, id: JobRef) -> JobHealth:
        return await self._call(statistics.job_health(self._running(), job_id_of(id)))

    async def job_metrics(self, id: JobRef) -> JobMetrics:
        return await self._call(statistics.job_metrics(self._running(), job_id_of(id)))

    # Many runs: those named, or all that match (at most 10,000 in a call)

    async def cancel_runs(
        self,
        ids: Iterable[str] | None = None,
        *,
        reason: str = "cancelled by request",
        **matching: Unpack[RunFilter],
    ) -> Matched:
        """Cancel runs by id, or all that match `job`, `state`, `since`, `until`."""
        query, named = _chosen(ids, matching)
        return await self._call(self._running().bulk.cancel(query, named, reason))

    async def retry_runs(
        self, ids: Iterable[str] | None = None, **matching: Unpack[RunFilter]
    ) -> Matched:
        """Try failed and cancelled runs again."""
        return await self._call(self._running().bulk.retry(*_chosen(ids, matching)))

    async def remove_runs(
        self, ids: Iterable[str] | None = None, **matching: Unpack[RunFilter]
    ) -> Matched:
        """Delete finished runs. One whose dedupe key is still held stays until it is free."""
        return await self._call(self._running().bulk.remove(*_chosen(ids, matching)))

    # Notes: small values of the program's own, kept with the jobs

    async def note(self, kind: str, name: str) -> Note | None:
        query = NoteQuery(kind=kind, names=frozenset({name}), limit=1)
        page = await self._call(self._running().store.notes(query))
        return page.items[0] if page.items else None

    async def list_notes(
        self, kind: str, *, limit: int = 1000, cursor: str | None = None
    ) -> Page[Note]:
        query = NoteQuery(kind=kind, limit=page_limit(limit), cursor=cursor)
        return await self._call(self._running().store.notes(query))

    async def put_note(self, note: Note) -> int | None:
        """Write a note by compare-and-set: its new version, or None if another came first."""
        check_key(note.kind, "a note's kind")
        check_key(note.name, "a note's name")
        return await self._call(self._running().store.put_note(note))

    async def remove_note(self, kind: str, name: str) -> bool:
        return await self._call(self._running().store.drop_note(kind, name))

    async def now(self) -> datetime:
        """The store's clock."""
        return await self._call(self._running().store.now())


def _chosen(ids: Iterable[str] | None, given: RunFilter) -> tuple[RunQuery, list[str] | None]:
    matching: dict[str, Any] = {**given}
    allowed = option_names(RunFilter)
    if unknown := matching.keys() - allowed:
        raise UnknownOption(unknown, allowed, "filter")
    if ids is not None and matching:
        raise InvalidInput("give ids or filters, not both")
    limit = matching.pop("limit", MOST_AT_ONCE)
    if not isinstance(limit, int) or not 1 <= limit <= MOST_AT_ONCE:
        raise InvalidInput(f"limit is 1 to {MOST_AT_ONCE}, not {limit!r}")
    for name in ("since", "until"):
        _moment(matching.get(name), name)
    states = state_set(matching.pop("state", None))
    return RunQuery(states=states, limit=limit, **matching), None if ids is None else list(ids)


def state_set(given: State | str | Iterable[State | str] | None) -> frozenset[State] | None:
    if given is None:
        return None
    try:
        return frozenset(State(name) for name in ([given] if isinstance(given, str) else given))
    except (ValueError, TypeError) as error:
        raise InvalidInput(f"{error}; states are {', '.join(State)}") from None


def _moment(given: datetime | None, name: str) -> datetime | None:
    if given is None or (isinstance(given, datetime) and given.utcoffset() is not None):
        return given
    if isinstance(given, datetime):
        raise InvalidInput(
            f"{name}={given.isoformat()} has no time zone: give one, as in datetime.now(UTC) or"
            f" {name}.astimezone()"
        )
    raise InvalidInput(f"{name} is a datetime with a time zone, not {given!r}")


def page_limit(limit: int) -> int:
    if not isinstance(limit, int) or not 1 <= limit <= 1000:
        raise InvalidInput(f"limit is 1 to 1000, not {limit!r}")
    return limit
