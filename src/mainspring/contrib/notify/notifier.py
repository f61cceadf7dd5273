"""Looks for news of a target, and sends it from one process.

The store counts how runs end; a note for each target says what it was told. What differs is news.
The process that changes the note first sends it, and writes what was told once the target has
accepted it. So no news is lost with a process: the next look of another one finds the same
difference. A message is sent twice, with the same id if its lines are the same, only if the target
takes it and its answer is lost or late, or the process ends or the store is away before the note is
written.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
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
from mainspring.core.clock import from_us, to_us
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

LONGEST_STOP = 5.0
"""Seconds that a stop waits for a message that is being sent, so that its note is written."""

SHORTEST_SECRET = 6
"""Characters of what is hidden in the log. Shorter values are also parts of other words."""

HELD = timedelta(seconds=60)
"""How long other processes wait for the one that sends. Then they take it for dead."""

FIRST_WAIT, LONGEST_WAIT = timedelta(seconds=10), timedelta(minutes=15)
"""Between two tries of a target that fails. It doubles."""

MOST_JOBS = 20
"""Jobs that one message describes. Of others it says how many there are."""

GAPS_AT_ONCE, MOST_PAGES, GAPS_SINCE = 500, 40, timedelta(days=1)
"""How many skipped runs are searched for missed slots, and how far back, besides the throttle."""

GAPS_AGAIN = timedelta(minutes=10)
"""How far back they are searched again after all was told: what is stored late has an older time.
"""

JOBS_AT_ONCE = 500


class Record(Struct, frozen=True, omit_defaults=True):
    """The note of a target. Until `until` only `holder` may send to it: it does, or the last try
    failed. `since`: what was found missed before is no news. `sent`: how many messages it has
    taken. Times are in microseconds."""

    since: int = 0
    jobs: Mapping[str, Told] = field(default_factory=dict)
    holder: str = ""
    until: int = 0
    tries: int = 0
    sent: int = 0

    @property
    def failing(self) -> list[str]:
        return [job_id for job_id, told in self.jobs.items() if told.failing]


class Notifier:
    """Looks for news while its scheduler is started, on the program's loop. Its errors are logged,
    reach no run, and the next look tries again."""

    def __init__(self, client: Client, settings: Settings, name: str) -> None:
        self._client = client
        self._settings = settings
        self._name = name
        self._target = settings.targets[name]
        self._holder = ""
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._started_at = 0
        self._seen: object = None
        """What was counted when the target had been told all."""
        self._gaps_from = from_us(0)
        """Missed slots that were found before are told."""
        self._telling = asyncio.Lock()
        """Held while a message is sent and the note is written."""
        self._sending: Future[None] | None = None

    def start(self, event: Event) -> None:
        self.stop()
        self._started_at = to_us(event.time)
        self._holder = f"{random.getrandbits(64):016x}"
        self._woken, self._telling = asyncio.Event(), asyncio.Lock()
        self._seen, self._gaps_from = None, from_us(0)
        self._task = asyncio.get_running_loop().create_task(self._watch())

    def stop(self, _: Event | None = None) -> None:
        if self._task is not None:
            self._task.cancel()

    async def finish(self) -> None:
        """Stop between two messages, or raise `TimeoutError`: `stop` is called in any case."""
        async with asyncio.timeout(LONGEST_STOP), self._telling:
            self.stop()

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
        """Tell the target its news."""
        if self._sending is not None and not self._sending.done():
            return  # the target has not answered the last try yet
        totals = (await self._client.counts(jobs=[WHOLE_STORE])).totals.get(WHOLE_STORE)
        ended = {} if totals is None else totals.ended
        open_breakers = frozenset(await self._client.open_breakers())
        counted = (ended.get(State.FAILED, 0), ended.get(State.SKIPPED, 0), open_breakers)
        note = await self._client.note(KIND, self._name)
        record, now = _record(note), await self._client.now()
        all_told = note is not None and self._seen == counted
        self._seen = None
        if note is not None and record.until > to_us(now) and record.holder != self._holder:
            return
        if not all_told or record.failing:
            facts = await self._read_facts(open_breakers, now, record.failing if all_told else None)
            if not all_told:
                record = replace(record, jobs={i: t for i, t in record.jobs.items() if i in facts})
            note = note or Note(kind=KIND, name=self._name)
            if not await self._tell(note, record, facts, now):
                return
            self._gaps_from = now - GAPS_AGAIN
        self._seen = counted

    async def _tell(
        self, note: Note, record: Record, facts: Mapping[str, Facts], now: datetime
    ) -> bool:
        """Send the target its news, and write what it was told. Returns whether that was all."""
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
        after = Record(record.since, _worth_keeping(told), sent=record.sent)
        lines = {job_id: one.lines for job_id, one in sorted(news.items()) if one.lines}
        if not lines:
            return is_all and (after == record or await self._write(note, after) > 0)
        async with self._telling:
            held = replace(record, holder=self._holder, until=to_us(now + HELD))
            version = await self._write(note, held)
            if not version:  # another process was first
                return False
            try:
                message = _message(lines, now, (self._name, record.since, record.sent))
                self._sending = _in_thread(lambda: self._target.send(message))
                await asyncio.wait_for(asyncio.wrap_future(self._sending), LONGEST_SEND)
                after = replace(after, sent=record.sent + 1)
            except Exception as error:
                wait = min(FIRST_WAIT * 2 ** min(record.tries, 10), LONGEST_WAIT)
                _log_failure(note.name, self._target, error, wait)
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
        since = max(now - self._settings.throttle - GAPS_SINCE, self._gaps_from)
        gaps: dict[str, list[tuple[int, int]]] = {}
        cursor: str | None = None
        for _ in range(MOST_PAGES):
            page = await self._client.list_runs(
                state=State.SKIPPED, since=since, limit=GAPS_AT_ONCE, cursor=cursor
            )
            for run in page.items:
                if run.reason == MISFIRE:
                    count = run.result.get("count") if isinstance(run.result, dict) else None
                    missed = count if isinstance(count, int) else 1
                    gaps.setdefault(run.job_id, []).append((to_us(run.created_at), missed))
            if (cursor := page.cursor) is None:
                break
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


def _message(jobs: Mapping[str, tuple[str, ...]], now: datetime, source: object) -> Message:
    """`source` makes its id differ from that of other messages with the same lines."""
    lines = [f"{job}: {line}" for job, of_job in [*jobs.items()][:MOST_JOBS] for line in of_job]
    if (more := len(jobs) - MOST_JOBS) > 0:
        lines.append(f"and {plural(more, 'other job')}")
    what = plural(len(jobs), "job") if len(jobs) > 1 else next(iter(jobs))
    message_id = hashlib.sha256(json.dumps([source, jobs]).encode()).hexdigest()[:32]
    return Message(message_id, f"Mainspring: {what}", "\n".join(lines), jobs, now)


def _log_failure(name: str, target: Target, error: Exception, wait: timedelta) -> None:
    why = str(error) or f"no answer within {LONGEST_SEND:g} s"  # `wait_for` says nothing
    text = f"{type(error).__name__}: {why}"
    for secret in target.secrets():
        if len(secret) >= SHORTEST_SECRET:
            for form in (secret, repr(secret)[1:-1], repr(secret.encode())[2:-1]):
                text = text.replace(form, "********")
    seconds = wait.total_seconds()
    log.error("notify: the target %s fails, and is tried again in %d s: %s", name, seconds, text)


def _in_thread(call: Callable[[], None]) -> Future[None]:
    """Call it in a thread of its own, which does not keep the program from ending."""
    ended: Future[None] = Future()
    ended.set_running_or_notify_cancel()  # so that nobody can cancel it

    def body() -> None:
        try:
            call()
        except Exception as error:
            ended.set_exception(error)
        else:
            ended.set_result(None)

    threading.Thread(target=body, name="mainspring-notify", daemon=True).start()
    return ended
