"""The jobs of a simulated cluster, and a client that enqueues, cancels, retries, pauses and
edits."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from mainspring import Backoff, Breaker, GiveUp, Misfire, Retry, RunContext, Scheduler, every
from mainspring.core.model import Run, State
from mainspring.errors import (
    Conflict,
    NotFound,
    StoreUnavailable,
    TransactionAborted,
    TransactionExpired,
)
from tests.support.simulation.machines import Machine
from tests.support.simulation.monitor import Monitor

SCHEDULES = ("3s", "5s", "7s", "20s", "*/5 * * * * *", "*/20 * * * * *", "* * * * *")
OVERLAPS = ("skip", "queue", "replace", "allow")
EXPECTED = (StoreUnavailable, Conflict, NotFound)
"""What a client must be ready for; anything else is a fault of ours."""


@dataclass
class Workload:
    """The jobs of one seed, the same for every worker."""

    seed: int
    monitor: Monitor
    rng: random.Random
    stress: bool = False
    focus: str | None = None
    """A job of which the client enqueues as many runs as of all others together; or `slots`:
    every missed slot runs, and the client pauses and resumes jobs while nodes catch up; or
    `queue`: slots queue, and the client cancels more runs; or `followers`: the client enqueues runs
    after others, and cancels and retries more of them; or `shared`: jobs share every slot, so that
    they are planned ahead, and the client pauses, resumes and edits more of them."""
    pace: float = 1.0
    """How long handlers and delays take, where time is real: less than they otherwise do."""
    schedules: Sequence[str] = SCHEDULES
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    killers: int = 0
    """How many runs there are that kill their worker whenever they begin."""
    killed_machines: list[Machine] = field(default_factory=list)
    """Machines that such a run has killed."""
    transacting: set[str] = field(default_factory=set)
    """The runs whose handler is inside of its transaction now."""

    def __post_init__(self) -> None:
        rng = self.rng
        soon = Backoff("fixed", delay="20ms" if self.stress else rng.choice(("20ms", "1s")))
        retries: dict[str, Any] = {"retries": 2, "backoff": soon}
        pool = {"concurrency": rng.choice((1, 2)), "concurrency_key": "pool"}
        self.jobs = {
            "plain": retries,
            "limited": {"concurrency": rng.choice((1, 2)), **retries},
            "pool_a": pool,
            "pool_b": {**pool, "retries": 1, "retry_delay": "500ms"},
            "timed": {"timeout": "2s", "retries": 1, "retry_delay": "1s"},
            "once": {"delivery": "at_most_once"},
            "exact": {"delivery": "effect_once", **retries},
            "expiring": {"start_deadline": "2s", "concurrency": 1, **retries},
            "rated_a": {"rate": "3/4s", "rate_key": "shared", **retries},
            "rated_b": {"rate": "3/4s", "rate_key": "shared"},
            "broken": {"breaker": Breaker(failures=2, reset="5s"), **retries},
        }
        own = random.Random(f"killers {self.seed}")  # the story of other seeds stays as it is
        if own.random() < 0.3:
            self.killers = own.choice((1, 1, 2))
            self.jobs["killer"] = {}
        for number in range(rng.choice((1, 2, 3))):
            self.jobs[f"slot{number}"] = self._scheduled()
        if self.focus == "filled" or random.Random(f"filled {self.seed}").random() < 0.25:
            late = {"overlap": "allow", "start_deadline": "1s"}
            self.jobs["filled"] = {"schedule": "*/20 * * * * *", **late}
        if self.focus == "everywhere" or random.Random(f"nodes {self.seed}").random() < 0.25:
            self.jobs["everywhere"] = {"schedule": "5s", "each_node": True, **retries}
        if self.focus == "slots":
            missed = {"misfire": Misfire("all", grace="1s", limit=5), "overlap": "allow"}
            for number in range(3):
                self.jobs[f"slot{number}"] = {"schedule": "1s", **missed}
        if self.focus == "delayed" or random.Random(f"delayed {self.seed}").random() < 0.25:
            self.jobs["delayed"] = {"schedule": every("2s", after="end"), **retries}
        if self.focus == "queue":
            for number in range(3):
                self.jobs[f"slot{number}"] = {"schedule": "1s", "overlap": "queue"}
        if self.focus == "shared":
            self.schedules = ("* * * * * *",)
            for number in range(3):
                skips = {"misfire": Misfire("skip", grace="1s"), "overlap": "allow"}
                self.jobs[f"slot{number}"] = {"schedule": self.schedules[0], **skips}
        if rng.random() < 0.5:
            self.jobs["after_slot"] = {"after": "slot0"}
            self.jobs["after_both"] = {"after": ["slot0", "after_slot"]}

    def register(self, scheduler: Scheduler, machine: Machine, author: str) -> None:
        """What a program does when it is imported."""
        handler = self._handler(machine, author)
        for job_id, policy in self.jobs.items():
            work = self._exact(machine, author) if job_id == "exact" else handler
            if job_id == "killer":
                work = self._killer(machine, author)
            scheduler.job(**{"schedule": None, **policy}, id=job_id)(work)
        scheduler.job(id="spare")(handler)
        # A rolling deploy: half of the workers run another version of the program.
        scheduler.job("4s" if author[1:2] in "02" else "5s", id="rolling")(handler)

    def _scheduled(self) -> dict[str, Any]:
        rng = self.rng
        made: dict[str, Any] = {
            "schedule": rng.choice(self.schedules),
            "overlap": rng.choice(OVERLAPS),
            "misfire": Misfire(
                rng.choice(("once", "skip", "all")),
                grace=rng.choice(("1s", "4s", "60s")),
                limit=rng.choice((2, 5)),
            ),
        }
        if rng.random() < 0.25:
            made["delivery"] = "at_most_once"
        elif rng.random() < 0.5:
            made.update(retries=1, retry_delay="1s")
        if rng.random() < 0.25:
            made["concurrency"] = 1
        if rng.random() < 0.25:
            made["jitter"] = "2s"
        if rng.random() < 0.2:
            made["timeout"] = "3s"
        return made

    def _handler(self, machine: Machine, author: str) -> Callable[..., Any]:
        async def work(ctx: RunContext) -> dict[str, int]:
            await self.monitor.saw_claim(ctx.run_id, ctx.token)
            self.monitor.began(machine, author, ctx.run_id, ctx.token)
            outcome = "stopped "
            try:
                await self._work(ctx)
                outcome = "returned"
                return {"token": ctx.token}
            except Exception:
                outcome = "raised  "
                raise
            finally:
                self.monitor.ended(ctx.run_id, ctx.token, outcome.strip())

        return work

    def _killer(self, machine: Machine, author: str) -> Callable[..., Any]:
        """Kills its worker, at once or after a while."""

        async def kill(ctx: RunContext) -> None:
            self.monitor.began(machine, author, ctx.run_id, ctx.token)
            rng = random.Random(f"{self.seed}:{ctx.run_id}:{ctx.attempt}")
            try:
                await asyncio.sleep(rng.choice((0.0, 0.0, 0.5, 2.0)))
            except asyncio.CancelledError:
                self.monitor.ended(ctx.run_id, ctx.token, "stopped")
                raise
            machine.kill()
            self.killed_machines.append(machine)
            self.monitor.died(author)
            await asyncio.sleep(0)

        return kill

    def _exact(self, machine: Machine, author: str) -> Callable[..., Any]:
        """Counts itself in the store, in a transaction; often for longer than it may."""

        async def exact(ctx: RunContext) -> None:
            self.monitor.began(machine, author, ctx.run_id, ctx.token)
            outcome = "stopped "
            try:
                await self._work(ctx)
                async with ctx.transaction() as session:
                    self.transacting.add(ctx.run_id)
                    session[ctx.run_id] = session.get(ctx.run_id, 0) + 1
                    rng = random.Random(f"{self.seed}:{ctx.run_id}:{ctx.attempt}:inside")
                    await asyncio.sleep(rng.choice((0.0, 0.01, 0.2, 1.5)))
                    if rng.random() < 0.2:
                        raise ValueError("no")
                    # What is left is not the handler's any more.
                    self.monitor.ended(ctx.run_id, ctx.token, "returned")
            except TransactionAborted:
                self.monitor.counted["aborted"] += 1
                raise
            except TransactionExpired:
                self.monitor.counted["expired"] += 1
                raise
            except Exception:
                outcome = "raised  "
                raise
            finally:
                self.transacting.discard(ctx.run_id)
                self.monitor.ended(ctx.run_id, ctx.token, outcome.strip())

        return exact

    async def _work(self, ctx: RunContext) -> None:
        rng = random.Random(f"{self.seed}:{ctx.run_id}:{ctx.attempt}")
        lengths = (0.05, 8.0) if self.stress else (0.0, 0.05, 0.3, 1.0, 3.0, 8.0)
        takes = rng.choice(lengths) * rng.uniform(0.5, 1) * self.pace
        for step in range(3):
            await asyncio.sleep(takes / 3)
            ctx.progress(step, 3)
        if rng.random() < (0.6 if ctx.job_id == "broken" else 0.25):
            raise rng.choice((ValueError("no"), Retry(after="700ms"), GiveUp("enough")))


class Client:
    """Somebody with a producer's scheduler: enqueues, cancels, retries, pauses, edits."""

    def __init__(
        self, monitor: Monitor, rng: random.Random, workload: Workload, scheduler: Scheduler
    ) -> None:
        self._monitor = monitor
        self._rng = rng
        self._scheduler = scheduler
        self._workload = workload
        self._known: list[str] = []
        self._queued = [
            name
            for name, policy in workload.jobs.items()
            if "schedule" not in policy and name != "killer"
        ]
        if workload.focus in self._queued:
            self._queued += [workload.focus] * len(self._queued)
        self._slotted = [name for name, policy in workload.jobs.items() if "schedule" in policy]

    async def act(self) -> None:
        """One thing that a user may do at any time."""
        actions: list[tuple[int, Callable[[], Any]]] = [
            (10, self._enqueue),
            (3, self._enqueue_many),
            (3, self._enqueue_keyed),
            (20 if self._workload.focus == "followers" else 2, self._enqueue_after),
            (20 if self._workload.focus in ("followers", "queue") else 4, self._cancel),
            (40 if self._workload.focus == "followers" else 3, self._retry),
            (1, self._trigger),
            (20 if self._workload.focus in ("slots", "shared") else 1, self._pause),
            (40 if self._workload.focus in ("slots", "shared") else 2, self._resume),
            (20 if self._workload.focus == "shared" else 3, self._edit),
        ]
        [action] = self._rng.choices([d for _, d in actions], [weight for weight, _ in actions])
        try:
            await action()
        except EXPECTED as error:
            self._monitor.counted[f"refused {type(error).__name__}"] += 1

    async def everything_resumed_then_paused(self) -> None:
        """No more slots, so that what there is can come to its end."""
        for name in [*self._slotted, "rolling", "edited"]:
            try:
                await self._scheduler.pause_job(name)
            except NotFound:
                continue

    async def pause_all(self) -> None:
        """Pause all firing; a lost answer leaves open whether it is."""
        try:
            self._monitor.paused(await self._scheduler.pause_all())
        except EXPECTED as error:
            self._monitor.counted[f"refused {type(error).__name__}"] += 1

    async def resume_all(self) -> None:
        self._monitor.resumed(self._monitor.clock.now())
        while True:
            try:
                await self._scheduler.resume_all()
                return
            except EXPECTED as error:
                self._monitor.counted[f"refused {type(error).__name__}"] += 1
                await asyncio.sleep(0.5)

    async def backfill(self) -> None:
        """Two clients backfill the same slots at once, each until it has an answer. The slots are
        older than the job, so nothing else fires them."""
        start = (self._monitor.clock.now() - timedelta(hours=2)).replace(second=0, microsecond=0)

        async def one() -> None:
            while True:
                try:
                    await self._scheduler.backfill("filled", start, start + timedelta(minutes=2))
                    return
                except EXPECTED as error:
                    self._monitor.counted[f"refused {type(error).__name__}"] += 1
                    await asyncio.sleep(0.5 * self._workload.pace)

        await asyncio.gather(one(), one())
        self._monitor.check_backfilled("filled", 6)

    async def retry_at_once(self) -> None:
        """Retry a run that has just failed while others still wait for it, if there is one."""
        runs = self._monitor.runs
        awaited = {
            name for run in runs.values() if run.state is State.WAITING for name in run.after
        }
        failed = [
            name
            for name in sorted(awaited & runs.keys())
            if runs[name].state in (State.FAILED, State.CANCELLED)
        ]
        if not failed:
            return
        self._monitor.counted["retried at once"] += 1
        self._monitor.may_revive.add(failed[0])
        try:
            await self._scheduler.retry(failed[0])
        except EXPECTED as error:
            self._monitor.counted[f"refused {type(error).__name__}"] += 1

    async def enqueue_killer(self) -> None:
        try:
            self._accept(await self._scheduler.enqueue("killer"))
        except EXPECTED as error:
            self._monitor.counted[f"refused {type(error).__name__}"] += 1

    async def probe(self, count: int) -> None:
        """Enough work at once that every worker must take a part of it."""
        self._accept(*await self._scheduler.enqueue_many("plain", [None] * count, priority=9))

    def _accept(self, *runs: Run) -> None:
        for run in runs:
            self._monitor.note("client", f"accepted {run.id[-6:]} {run.job_id}")
            self._monitor.acknowledged.add(run.id)
            self._known.append(run.id)

    async def _enqueue(self) -> None:
        options: dict[str, Any] = {}
        if self._rng.random() < 0.3:
            options["delay"] = self._rng.uniform(0, 10) * self._workload.pace
        if self._rng.random() < 0.3:
            options["priority"] = self._rng.randrange(10)
        self._accept(
            await self._scheduler.enqueue(self._rng.choice([*self._queued, "once"]), **options)
        )

    async def _enqueue_many(self) -> None:
        count = self._rng.randrange(2, 6)
        job_id = self._rng.choice(("limited", "pool_a", "pool_b", "plain", "exact", "exact"))
        self._accept(*await self._scheduler.enqueue_many(job_id, [None] * count))

    async def _enqueue_keyed(self) -> None:
        held = self._rng.choice((None, None, "10s"))
        key = self._rng.choice(("red", "green"))
        job_id = self._rng.choice(self._queued)

        async def one() -> None:
            run = await self._scheduler.enqueue(job_id, dedupe_key=key, dedupe_for=held)
            self._monitor.counted["duplicate"] += run.duplicate
            self._accept(run)

        tries = [one() for _ in range(self._rng.choice((1, 2)))]
        for answer in await asyncio.gather(*tries, return_exceptions=True):
            if isinstance(answer, BaseException):
                raise answer

    async def _enqueue_after(self) -> None:
        if self._known:
            upstream = self._rng.sample(self._known[-8:], min(2, len(self._known[-8:])))
            self._accept(await self._scheduler.enqueue("plain", after=upstream))

    async def _cancel(self) -> None:
        """Often in the middle of a transaction, if one is open: its fence is tested by that."""
        run_id = self._pick(lambda run: not run.finished)
        if (open_now := sorted(self._workload.transacting)) and self._rng.random() < 0.7:
            run_id = self._rng.choice(open_now)
        if run_id is None:
            return
        revived = self._monitor.revivals(run_id)
        if await self._scheduler.cancel(run_id):
            self._monitor.note("client", f"cancels {run_id[-6:]}")
            self._monitor.cancelled[run_id] = revived

    async def _retry(self) -> None:
        run_id = self._pick(lambda run: run.state in (State.FAILED, State.CANCELLED))
        if run_id is not None:
            self._monitor.may_revive.add(run_id)
            await self._scheduler.retry(run_id)

    async def _trigger(self) -> None:
        self._accept(await self._scheduler.trigger(self._rng.choice(self._slotted)))

    async def _pause(self) -> None:
        await self._scheduler.pause_job(self._rng.choice([*self._slotted, "edited"]))

    async def _resume(self) -> None:
        await self._scheduler.resume_job(self._rng.choice([*self._slotted, "edited"]))

    async def _edit(self) -> None:
        rng = self._rng
        try:
            await self._scheduler.get_job("edited")
        except NotFound:
            await self._scheduler.add_job(
                "edited", handler="spare", schedule=rng.choice(("1500ms", "4s")), concurrency=2
            )
            return
        match rng.randrange(4):
            case 0:
                await self._scheduler.update_job(
                    "edited", schedule=rng.choice(self._workload.schedules)
                )
            case 1:
                await self._scheduler.update_job("edited", concurrency=rng.choice((1, 2, None)))
            case 2:
                await self._scheduler.update_job("edited", priority=rng.randrange(10))
            case _:
                await self._scheduler.remove_job("edited")

    def _pick(self, which: Callable[[Run], bool]) -> str | None:
        fit = [run_id for run_id, run in self._monitor.runs.items() if which(run)]
        return self._rng.choice(fit[-12:]) if fit else None
