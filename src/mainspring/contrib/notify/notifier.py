"""Looks for news of each target, and sends it from one process.

The store counts how runs end; a note for each target says what it was told. What differs is news.
The process that changes the note first sends it, and writes what was told once the target has
accepted it. So no news is lost with a process: the next look of another one finds the same
difference. A message is sent twice only if its process dies, or the store is away, between the two.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime, timedelta

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from mainspring.contrib.notify.news import Facts, Told, news_of
from mainspring.contrib.notify.settings import Settings
from mainspring.contrib.notify.targets import Message, Target
from mainspring.core.clock import to_us
from mainspring.core.events import Event
from mainspring.core.model import Note, State
from mainspring.core.plurals import plural
from mainspring.core.statistics import WHOLE_STORE
from mainspring.core.transitions import MISFIRE
from mainspring.errors import NotStarted
from mainspring.scheduler.client import Client

log = logging.getLogger("mainspring")

KIND = "mainspring-notify"
"""The kind of the notes, one for each target, by its name."""

POLL = 10.0
"""Seconds between two looks of the leader. Others look a sixth as often, in case none leads."""

AFTER_EVENT = 0.5
"""Seconds after an event of this process, so that what happens at once is one message."""

LONGEST_SEND = 30.0
"""Seconds for one message."""

HELD = timedelta(seconds=60)
"""How long other processes wait for the one that sends. Then they take it for dead."""

FIRST_WAIT, LONGEST_WAIT = timedelta(seconds=10), timedelta(minutes=15)
"""Between two tries of a target that fails. It doubles."""

MOST_JOBS = 20
"""Jobs that one message describes. Of others it says how many there are."""

MOST_GAPS, GAPS_SINCE = 500, timedelta(days=1)
"""How many skipped runs are searched for missed slots, and how far back, besides the throttle."""

JOBS_AT_ONCE = 500


class Record(Struct, frozen=True, omit_defaults=True):
    """The note of a target. Until `until` only `holder` may send to it: it does, or the last try
    failed. `since`: what was found missed before is no news. Times are in microseconds."""

    since: int = 0
    jobs: Mapping[str, Told] = field(default_factory=dict)
    holder: str = ""
    until: int = 0
    tries: int = 0

    @property
    def failing(self) -> list[str]:
        return [job_id for job_id, told in self.jobs.items() if told.failing]


class Notifier:
    """Looks for news while its scheduler is started, on the program's loop. Its errors are logged,
    reach no run, and the next look tries again."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client = client
        self._settings = settings
        self._holder = ""
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._started_at = 0
        self._seen: dict[str, object] = {}
        """What was counted when a target had been told all."""

    def start(self, event: Event) -> None:
        self.stop()
        self._started_at = to_us(event.time)
        self._holder = f"{random.getrandbits(64):016x}"
        self._woken, self._seen = asyncio.Event(), {}
        self._task = asyncio.get_running_loop().create_task(self._watch())

    def stop(self, _: Event | None = None) -> None:
        if self._task is not None:
            self._task.cancel()

    def wake(self, _: Event) -> None:
        self._woken.set()

    async def _watch(self) -> None:
        while self._client.started:
            try:
                await self.look()
            except NotStarted:
                return
            except Exception as error:
                log.warning("notify: cannot look for news, and tries again: %s", error)
            wait = POLL if self._client.is_leader else 6 * POLL
            try:
                await asyncio.wait_for(self._woken.wait(), wait * random.uniform(0.8, 1.2))
                await asyncio.sleep(AFTER_EVENT)
            except TimeoutError:
                pass
            self._woken.clear()

    async def look(self) -> None:
        """Tell each target its news."""
        totals = (await self._client.counts(jobs=[WHOLE_STORE])).totals.get(WHOLE_STORE)
        ended = {} if totals is None else totals.ended
        open_breakers = frozenset(await self._client.open_breakers())
        counted = (ended.get(State.FAILED, 0), ended.get(State.SKIPPED, 0), open_breakers)
        for name, target in self._settings.targets.items():
            note = await self._client.note(KIND, name)
            record, now = _record(note), await self._client.now()
            if note is not None and record.until > to_us(now) and record.holder != self._holder:
                self._seen.pop(name, None)
                continue
            all_told = note is not None and self._seen.get(name) == counted
            if all_told and not record.failing:
                continue
            facts = await self._read_facts(open_breakers, now, record.failing if all_told else None)
            if not all_told:
                record = replace(record, jobs={i: t for i, t in record.jobs.items() if i in facts})
            note = note or Note(kind=KIND, name=name)
            if await self._tell(target, note, record, facts, now):
                self._seen[name] = counted
            else:
                self._seen.pop(name, None)

    async def _tell(
        self,
        target: Target,
        note: Note,
        record: Record,
        facts: Mapping[str, Facts],
        now: datetime,
    ) -> bool:
        """Send a target its news, and write what it was told. Returns whether that was all."""
        if not record.since:  # new, or damaged: what was before is no news
            since = self._started_at
            told = {job_id: fact.baseline(since) for job_id, fact in facts.items()}
            await self._write(note, Record(since, _worth_keeping(told)))
            self._woken.set()
            return False
        on, throttle = self._settings.on, self._settings.throttle
        news = {
            job_id: news_of(
                replace(fact, missed=tuple(gap for gap in fact.missed if gap[0] > record.since)),
                *(record.jobs.get(job_id, Told()), on, throttle, now),
            )
            for job_id, fact in facts.items()
        }
        is_all = not any(one.waits for one in news.values())
        told = {**record.jobs, **{job_id: one.told for job_id, one in news.items()}}
        after = Record(record.since, _worth_keeping(told))
        lines = {job_id: one.lines for job_id, one in sorted(news.items()) if one.lines}
        if not lines:
            return is_all and (after == record or await self._write(note, after) > 0)
        held = replace(record, holder=self._holder, until=to_us(now + HELD))
        version = await self._write(note, held)
        if not version:  # another process was first
            return False
        try:
            message = _message(lines, now)
            await asyncio.wait_for(_in_thread(lambda: target.send(message)), LONGEST_SEND)
        except Exception as error:
            wait = min(FIRST_WAIT * 2 ** min(record.tries, 10), LONGEST_WAIT)
            _log_failure(note.name, target, error, wait)
            after = replace(record, holder="", until=to_us(now + wait), tries=record.tries + 1)
            is_all = False
        return await self._write(replace(note, version=version), after) > 0 and is_all

    async def _write(self, note: Note, record: Record) -> int:
        """Write the note of a target; 0 if another process has written it since."""
        return await self._client.put_note(replace(note, value=msgspec.to_builtins(record))) or 0

    async def _read_facts(
        self, open_breakers: Collection[str], now: datetime, only: Sequence[str] | None
    ) -> dict[str, Facts]:
        """The facts of all jobs, or of those of `only` that exist."""
        gaps = await self._read_gaps(now)
        facts: dict[str, Facts] = {}
        cursor: str | None = None
        while True:
            page = await self._client.list_jobs(
                ids=only, limit=JOBS_AT_ONCE, cursor=cursor, last_runs=False
            )
            ids = [job.id for job in page.items]
            totals = (await self._client.counts(jobs=ids)).totals if ids else {}
            for job_id in ids:
                counted = totals.get(job_id)
                facts[job_id] = Facts(
                    0 if counted is None else counted.ended.get(State.FAILED, 0),
                    counted is not None and counted.consecutive_failures > 0,
                    None if counted is None else counted.last,
                    tuple(gaps.get(job_id, ())),
                    job_id in open_breakers,
                )
            if (cursor := page.cursor) is None:
                return facts

    async def _read_gaps(self, now: datetime) -> dict[str, list[tuple[int, int]]]:
        """When slots were found missed, and how many, by job."""
        since = now - self._settings.throttle - GAPS_SINCE
        page = await self._client.list_runs(state=State.SKIPPED, since=since, limit=MOST_GAPS)
        gaps: dict[str, list[tuple[int, int]]] = {}
        for run in page.items:
            if run.reason == MISFIRE:
                count = run.result.get("count") if isinstance(run.result, dict) else None
                missed = count if isinstance(count, int) else 1
                gaps.setdefault(run.job_id, []).append((to_us(run.created_at), missed))
        return gaps


def _record(note: Note | None) -> Record:
    if note is not None:
        try:
            return msgspec.convert(note.value, Record)
        except msgspec.ValidationError:
            log.warning("notify: the note of %s is damaged, and begins anew", note.name)
    return Record()


def _worth_keeping(told: Mapping[str, Told]) -> dict[str, Told]:
    return {job_id: one for job_id, one in told.items() if one != Told()}


def _message(jobs: Mapping[str, tuple[str, ...]], now: datetime) -> Message:
    lines = [f"{job}: {line}" for job, of_job in [*jobs.items()][:MOST_JOBS] for line in of_job]
    if (more := len(jobs) - MOST_JOBS) > 0:
        lines.append(f"and {plural(more, 'other job')}")
    what = plural(len(jobs), "job") if len(jobs) > 1 else next(iter(jobs))
    return Message(f"Mainspring: {what}", "\n".join(lines), jobs, now)


def _log_failure(name: str, target: Target, error: Exception, wait: timedelta) -> None:
    text = f"{type(error).__name__}: {error}"
    for secret in target.secrets():
        text = text.replace(secret, "********")
    seconds = wait.total_seconds()
    log.error("notify: the target %s fails, and is tried again in %d s: %s", name, seconds, text)


async def _in_thread(call: Callable[[], None]) -> None:
    """Call it in a thread of its own, which does not keep the program from ending."""
    ended: Future[None] = Future()

    def body() -> None:
        ended.set_running_or_notify_cancel()
        try:
            call()
        except Exception as error:
            ended.set_exception(error)
        else:
            ended.set_result(None)

    threading.Thread(target=body, name="mainspring-notify", daemon=True).start()
    await asyncio.wrap_future(ended)
