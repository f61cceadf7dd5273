"""Tests of `claim` (which runs, in which order, within which limits) and of `renew`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from mainspring.core import transitions
from mainspring.core.model import Progress, Run, State, replace
from mainspring.core.policy import Delivery
from mainspring.stores.protocol import Claim, Held, JobQuery, Renewed, Store
from mainspring.testing.conformance.base import Suite
from mainspring.testing.store_calls import drop_job, get_runs


class ClaimTests(Suite):
    async def test_a_claimed_run_names_its_worker_and_lease(self, store: Store) -> None:
        await store.add([self.run(payload=[1])])
        before = await store.now()
        [run] = await self.claim(store, worker="w7", lease=self.ticks(30))
        after = await store.now()
        assert (run.state, run.worker, run.token, run.attempt) == (State.RUNNING, "w7", 1, 1)
        assert run.started_at is not None
        assert before <= run.started_at <= after
        assert run.lease_until is not None
        assert before + self.ticks(30) <= run.lease_until <= after + self.ticks(30)
        assert run.payload == [1]
        assert await self.one(store) == run

    async def test_a_claimed_run_has_not_begun_until_that_is_recorded(self, store: Store) -> None:
        for _ in range(2):  # the second claim begins anew
            run = await self.running(store)
            assert run.began is False
            assert await store.commit([transitions.began(run)]) == [True]
            assert await store.commit([transitions.began(run)]) == [True]  # sent again
            assert (await self.one(store)).began is True
            assert len(await self.renew(store, run)) == 1
            assert (await self.one(store)).began is True
            await store.commit([transitions.released(run, await store.now(), began=True)])
            assert (await self.one(store)).began is None

    async def test_a_claimed_run_is_not_claimed_again(self, store: Store) -> None:
        await self.running(store)
        assert await self.claim(store, worker="w2") == []
        await self.pass_ticks(100)  # nor after its lease: that is a rescue's to decide
        assert await self.claim(store, worker="w2") == []

    async def test_token_and_attempt_grow_with_each_claim(self, store: Store) -> None:
        """A release of a run that had not begun does not count the attempt. Each begins without
        progress."""
        await store.add([self.run()])
        claimed = []
        for began in (True, False, True):
            [run] = await self.claim(store)
            claimed.append((run.token, run.attempt, run.progress))
            await store.renew([Held(run.id, run.token, Progress(5, 10))], self.ticks(30))
            await store.commit([transitions.released(run, await store.now(), began=began)])
        assert claimed == [(1, 1, None), (2, 2, None), (3, 2, None)]

    async def test_runs_are_claimed_by_priority_then_by_run_at(self, store: Store) -> None:
        """Over all queues and handlers together, and over several claims."""
        runs = [
            self.run(f"{priority}{n}", priority=priority, run_at=self.at(-n), **places)
            for priority, places in (
                (0, {"queue": "q1", "handler": "h1"}),
                (9, {"queue": "q2", "handler": "h2"}),
                (5, {"queue": "q1", "handler": "h2"}),
                (4, {"queue": "q2", "handler": "h1"}),
            )
            for n in (1, 3, 2)
        ]
        await store.add([*runs, self.run("future", priority=9, run_at=self.at(500))])
        both: dict[str, Any] = {"handlers": frozenset({"h1", "h2"})}
        taken = await self.claim_ids(store, 5, **both, queues=frozenset({"q1", "q2"}))
        while ids := await self.claim_ids(store, 1, **both):
            taken += ids
        assert taken == ["93", "92", "91", "53", "52", "51", "43", "42", "41", "03", "02", "01"]

    def backlog(self, jobs: str, count: int, **fields: Any) -> list[Run]:
        """Runs `a0`, `a1`, …: `count` of each job, the jobs named by one letter. Those of later
        letters are older."""
        return [
            self.run(f"{job}{n}", job_id=job, run_at=self.at(n - 10 * (at + 1)), **fields)
            for at, job in enumerate(jobs)
            for n in range(count)
        ]

    async def test_jobs_take_turns_in_the_order_of_their_ids(self, store: Store) -> None:
        """Each gives its oldest run, round after round, until the jobs have no more."""
        await store.add([*self.backlog("ab", 3), *self.backlog("c", 1)])
        assert await self.claim_ids(store, 6) == ["a0", "b0", "c0", "a1", "b1", "a2"]
        assert await self.claim_ids(store) == ["b2"]

    async def test_the_turn_goes_on_behind_the_job_that_had_it_last(self, store: Store) -> None:
        await store.add(self.backlog("bdf", 3))
        assert await self.claim_ids(store, 2, turns={5: "b"}) == ["d0", "f0"]
        assert await self.claim_ids(store, 1, turns={5: "f"}) == ["b0"]
        assert await self.claim_ids(store, 2, turns={5: "c"}) == ["d1", "f1"]  # has no runs
        assert await self.claim_ids(store, 5, turns={5: "z", 4: "b"}) == [
            "b1", "d2", "f2", "b2",
        ]  # fmt: skip

    async def test_each_priority_has_its_own_turns(self, store: Store) -> None:
        runs = [
            self.run(f"{job}{priority}", job_id=job, priority=priority)
            for job in "abc"
            for priority in (9, 5, 0)
        ]
        await store.add(runs)
        assert await self.claim_ids(store, turns={9: "b", 0: "a", 4: "c"}) == [
            "c9", "a9", "b9", "a5", "b5", "c5", "b0", "c0", "a0",
        ]  # fmt: skip

    async def test_a_job_has_one_turn_for_all_its_queues_and_handlers(self, store: Store) -> None:
        await store.add(
            [
                self.run("a1", job_id="a", handler="h1", run_at=self.at(-1)),
                self.run("a2", job_id="a", handler="h2", run_at=self.at(-3)),
                self.run("a3", job_id="a", handler="h1", queue="q", run_at=self.at(-2)),
                self.run("b1", job_id="b", handler="h2", run_at=self.at(-1)),
                self.run("b2", job_id="b", handler="h1", run_at=self.at(-2)),
            ]
        )
        handlers = frozenset({"h1", "h2"})
        assert await self.claim_ids(store, 3, handlers=handlers) == ["a2", "b2", "a3"]
        assert await self.claim_ids(store, 3, handlers=handlers) == ["a1", "b1"]

    async def test_a_job_without_capacity_passes_its_turn(self, store: Store) -> None:
        await self.put(store, "b", concurrency=1)
        for name in ("c", "d"):
            await self.put(store, name, concurrency=2, concurrency_key="shared")
        await store.add(self.backlog("abcde", 4))
        assert await self.claim_ids(store, 9, turns={5: "a"}) == [
            "b0", "c0", "d0", "e0", "a0", "e1", "a1", "e2", "a2",
        ]  # fmt: skip
        assert await self.claim_ids(store) == ["a3", "e3"]

    async def test_a_run_of_another_job_is_claimed_soon_though_one_has_a_backlog(
        self, store: Store
    ) -> None:
        await store.add([self.run(f"r{n}", job_id="backlog") for n in range(300)])
        turns = {5: "backlog"}
        for at in range(3):
            await store.add([self.run(f"beat{at}", job_id=f"{'az'[at % 2]}beat")])
            claimed = await self.claim_ids(store, 2, turns=turns)
            assert f"beat{at}" in claimed

    async def test_many_jobs_take_turns_over_many_claims(self, store: Store) -> None:
        """More jobs than a claim takes runs: no job waits for more than a round."""
        jobs = [f"j{n:03d}" for n in range(150)]
        await store.add([self.run(f"{n}-{job}", job_id=job) for n in range(2) for job in jobs])
        turns: dict[int, str] = {}
        taken = []
        while claimed := await self.claim(store, 40, turns=turns):
            taken += [run.job_id for run in claimed]
            turns = {5: claimed[-1].job_id}
        assert taken == jobs * 2

    async def test_no_more_runs_of_a_job_than_most_says_are_claimed(self, store: Store) -> None:
        """Also runs of a job with a limit, whatever their priority."""
        await self.put(store, "limited", concurrency=2)
        runs = [
            self.run(f"{job}{n}", job_id=job, priority=5 + n % 2, run_at=self.at(-n))
            for job in ("busy", "limited", "free")
            for n in range(1, 5)
        ]
        await store.add(runs)
        free = ["free3", "free1", "free4", "free2"]
        most = {"busy": 0, "limited": 0, "unknown": 0}
        assert await self.claim_ids(store, 2, most=most) == free[:2]
        assert await self.claim_ids(store, 10, most=most) == free[2:]
        assert await self.claim_ids(store, 10, most=most) == []
        assert await self.claim_ids(store, 10, most={"limited": 0, "busy": 3}) == [
            "busy3", "busy1", "busy4",
        ]  # fmt: skip
        assert await self.claim_ids(store, most={"busy": 1, "limited": 1}) == ["limited3", "busy2"]
        assert await self.claim_ids(store) == ["limited1"]

    async def test_runs_of_jobs_with_a_limit_are_not_claimed_ahead(self, store: Store) -> None:
        await self.put(store, "a", concurrency=9)
        await self.put(store, "c", rate="100/m")
        await store.add(self.backlog("abc", 4))
        assert await self.claim_ids(store, 3, ahead=3) == ["b0", "b1", "b2"]
        assert await self.claim_ids(store, 4, ahead=2) == ["a0", "b3", "c0"]
        assert await self.claim_ids(store, 4, ahead=4) == []
        assert await self.claim_ids(store, 9, ahead=5) == ["a1", "c1", "a2", "c2"]

    async def test_runs_due_at_the_same_time_are_claimed_in_the_order_they_were_added(
        self, store: Store
    ) -> None:
        made = self.start - timedelta(seconds=1)
        runs = [
            self.run(f"r{n}", run_at=self.start, created_at=made + timedelta(microseconds=n))
            for n in range(40)
        ]
        await store.add(runs)
        taken = [run_id for _ in range(4) for run_id in await self.claim_ids(store, 10)]
        assert taken == [run.id for run in runs]

    async def test_a_claim_takes_at_most_its_limit(self, store: Store) -> None:
        await store.add(self.runs(*(f"r{n}" for n in range(10))))
        assert await self.claim(store, 0) == []
        assert len(await self.claim(store, 4)) == 4
        assert len(await self.claim(store, 100)) == 6

    async def test_only_runs_of_the_named_handlers_are_claimed(self, store: Store) -> None:
        await store.add([self.run("a", handler="mail"), self.run("b", handler="report")])
        assert await self.claim(store, handlers=frozenset()) == []
        assert await self.claim_ids(store, handlers=frozenset({"report", "other"})) == ["b"]

    async def test_only_runs_of_the_named_queues_are_claimed(self, store: Store) -> None:
        await store.add([self.run("a", queue="slow"), self.run("b", queue="fast")])
        assert await self.claim(store, queues=frozenset({"none"})) == []
        assert await self.claim(store, queues=frozenset()) == []
        assert await self.claim_ids(store, queues=frozenset({"fast", "other"})) == ["b"]
        assert await self.claim_ids(store) == ["a"]

    async def test_runs_of_unknown_handlers_do_not_hide_others(self, store: Store) -> None:
        strangers = [self.run(f"x{n}", handler="unknown", priority=9) for n in range(300)]
        await store.add([*strangers, self.run("mine", priority=0)])
        assert await self.claim_ids(store, 1) == ["mine"]

    async def test_a_handler_may_change_its_payload_without_changing_the_run(
        self, store: Store
    ) -> None:
        run = await self.running(store, payload={"todo": [1, 2]})
        run.payload["todo"].clear()
        await store.commit([transitions.released(run, await store.now(), began=True)])
        [again] = await self.claim(store)
        assert again.payload == {"todo": [1, 2]}

    async def test_a_claim_returns_the_runs_as_stored(self, store: Store) -> None:
        await self.put(store)
        await store.add([self.run("up", run_at=self.at(900))])
        fields = {"payload": {"n": 1}, "priority": 7, "queue": "fast", "start_by": self.at(500)}
        await store.add([self.run("a", dedupe_key="k", after=("up",), after_any=True, **fields)])
        for number in (1, 2):  # the second comes with what the first has left
            [run] = await self.claim(store)
            assert await get_runs(store, ["a"]) == {"a": run}
            assert (run.attempt, run.token, len(run.attempts)) == (number, number, number - 1)
            failure = transitions.Failure("boom")
            await store.commit([transitions.retrying(run, await store.now(), failure, self.start)])

    async def due_next(self, store: Store, **fields: Any) -> datetime | None:
        """When the next run is due, by a claim that finds no due run."""
        given = {"worker": "w1", "handlers": frozenset({"work"}), "lease": self.ticks(30), **fields}
        claimed = await store.claim(Claim(limit=1, **given))
        assert claimed.runs == []
        return claimed.next_due

    async def test_an_empty_claim_says_when_the_next_run_is_due(self, store: Store) -> None:
        assert await self.due_next(store) is None
        await store.add(
            [
                self.run("late", run_at=self.at(90), priority=9),
                self.run("soon", run_at=self.at(40), priority=0),
                self.run("waiting", run_at=self.at(5), state=State.WAITING, after=("x",)),
                self.run("over", run_at=self.at(6), state=State.SKIPPED, finished_at=self.start),
                self.run("dead", run_at=self.at(7), state=State.FAILED, finished_at=self.start),
            ]
        )
        assert await self.due_next(store) == self.at(40)
        await self.pass_ticks(38)
        assert await self.claim_ids(store) == []
        await self.pass_ticks(2)
        assert await self.claim_ids(store) == ["soon"]
        assert await self.due_next(store) == self.at(90)
        await self.pass_ticks(50)
        assert await self.claim_ids(store) == ["late"]
        assert await self.due_next(store) is None

    async def test_a_run_that_a_limit_holds_back_is_not_next_due(self, store: Store) -> None:
        await self.put(store, concurrency=1)
        await store.add([*self.runs("a", "b"), self.run("c", run_at=self.at(40))])
        assert len(await self.claim(store)) == 1
        assert await self.due_next(store) == self.at(40)

    async def test_next_due_counts_only_runs_that_the_claim_could_take(self, store: Store) -> None:
        await store.add(
            [
                self.run("a", handler="mail", queue="fast", run_at=self.at(10)),
                self.run("b", handler="mail", queue="slow", run_at=self.at(20)),
                self.run("c", handler="report", queue="fast", run_at=self.at(30)),
            ]
        )
        mail, report = frozenset({"mail"}), frozenset({"report"})
        slow = frozenset({"slow"})
        assert await self.due_next(store, handlers=mail) == self.at(10)
        assert await self.due_next(store, handlers=mail, queues=slow) == self.at(20)
        assert await self.due_next(store, handlers=report) == self.at(30)
        assert await self.due_next(store, handlers=report, queues=slow) is None
        assert await self.due_next(store, handlers=frozenset()) is None

    async def test_next_due_counts_retries(self, store: Store) -> None:
        run = await self.running(store)
        assert await self.due_next(store) is None
        failure = transitions.Failure("boom")
        await store.commit([transitions.retrying(run, self.start, failure, self.at(25))])
        assert await self.due_next(store) == self.at(25)


class LimitTests(Suite):
    async def hold(self, store: Store, limit: int = 100, **fields: Any) -> list[Run]:
        """Claim with leases that outlast the test, also on a busy machine where time is real: a
        lease that lapses would free capacity."""
        return await self.claim(store, limit, **{"lease": self.ticks(10_000), **fields})

    async def test_a_job_never_exceeds_its_concurrency(self, store: Store) -> None:
        await self.put(store, concurrency=3)
        await store.add(self.runs(*"abcdefg"))
        held = [*await self.hold(store, 2), *await self.hold(store, worker="w2")]
        assert len(held) == 3
        assert await self.hold(store) == []
        await self.succeed(store, held[0])
        assert len(await self.hold(store)) == 1

    async def test_every_outcome_of_an_attempt_frees_capacity(self, store: Store) -> None:
        await self.put(store, concurrency=1)
        failure = transitions.Failure("boom")
        ends: list[Callable[[Run, datetime], transitions.Change]] = [
            lambda r, now: transitions.succeeded(r, now, 1),
            lambda r, now: transitions.failed(r, now, failure),
            lambda r, now: transitions.retrying(r, now, failure, self.at(10**6)),
            lambda r, now: transitions.cancelled(r, now, "stop"),
            lambda r, now: transitions.skipped(r, now, "expired"),
            lambda r, now: transitions.snoozed(r, now, self.at(10**6)),
        ]
        for n, end in enumerate(ends):
            await store.add([self.run(f"r{n}")])
            [run] = await self.hold(store)
            assert await store.commit([end(run, await store.now())]) == [True]

    async def test_jobs_that_share_a_key_may_have_different_limits(self, store: Store) -> None:
        """The job with the smaller limit stops there; runs of the other jobs count for it, too."""
        await self.put(store, "small", concurrency=1, concurrency_key="k")
        await self.put(store, "large", concurrency=3, concurrency_key="k")
        await store.add([self.run(f"s{n}", job_id="small", priority=9) for n in range(3)])
        await store.add([self.run(f"l{n}", job_id="large", priority=1) for n in range(5)])
        jobs = [run.job_id for run in await self.hold(store)]
        assert jobs == ["small", "large", "large"]

    async def test_a_concurrency_key_that_equals_a_job_id_is_another_limit(
        self, store: Store
    ) -> None:
        await self.put(store, "mail", concurrency=1)
        for n, key in enumerate(("mail", "job:mail")):
            await self.put(store, f"other{n}", concurrency=1, concurrency_key=key)
        await store.add([self.run(j, job_id=j) for j in ("mail", "other0", "other1")])
        assert len(await self.hold(store)) == 3

    async def test_a_lapsed_lease_is_not_renewed_when_the_limit_is_reached(
        self, store: Store
    ) -> None:
        """Otherwise two runs would have valid leases under a limit of one. Without a valid lease a
        run does not count: a crashed worker's would use the limit for ever."""
        await self.put(store, concurrency=1)
        await store.add(self.runs("a", "b"))
        [paused] = await self.hold(store, 1, lease=self.ticks(10))
        assert await self.hold(store) == []
        await self.pass_ticks(11)
        [other] = await self.hold(store, 1)
        assert await self.renew(store, paused) == []
        assert [r.id for r in await self.renew(store, other)] == [other.id]
        await self.succeed(store, other)
        assert [r.id for r in await self.renew(store, paused)] == [paused.id]

    async def test_runs_at_their_limit_do_not_block_others(self, store: Store) -> None:
        await self.put(store, "limited", concurrency=2)
        await store.add([self.run(f"h{n}", job_id="limited", priority=9) for n in range(300)])
        await store.add([self.run(f"l{n}", priority=0, run_at=self.at(-n)) for n in range(5)])
        taken = await self.claim_ids(store, 5)
        assert sum(i.startswith("h") for i in taken) == 2
        assert taken[2:] == ["l4", "l3", "l2"]
        assert await self.claim_ids(store, 5) == ["l1", "l0"]

    async def test_many_jobs_at_their_limit_do_not_hide_a_job_behind_them(
        self, store: Store
    ) -> None:
        jobs = [f"j{n:02}" for n in range(60)]
        for at, job in enumerate(jobs):
            await self.put(store, job, concurrency=1, concurrency_key=f"k{at // 10}")
        await store.add([self.run(f"{n}-{job}", job_id=job) for n in range(2) for job in jobs])
        assert len(await self.claim(store, 4)) == 4
        assert len(await self.claim(store, 4)) == 2
        await store.add([self.run("last", job_id="z")])
        assert await self.claim_ids(store, 1) == ["last"]

    async def test_a_limit_may_be_set_and_changed_while_runs_are_running(
        self, store: Store
    ) -> None:
        await self.put(store)
        await store.add(self.runs(*"abcdef"))
        held = await self.hold(store, 3)
        await self.put(store, concurrency=2)
        assert await self.hold(store) == []
        await self.succeed(store, *held[:2])
        assert len(await self.hold(store)) == 1
        await self.put(store, concurrency=3)
        assert len(await self.hold(store)) == 1
        await self.put(store, concurrency=None)
        assert len(await self.hold(store)) == 1

    async def test_a_run_of_a_removed_job_has_no_limit(self, store: Store) -> None:
        await self.put(store, concurrency=1)
        await store.add(self.runs("a", "b", "c"))
        await drop_job(store, "job")
        assert len(await self.hold(store)) == 3

    async def test_concurrent_clients_never_exceed_a_limit(self, store: Store) -> None:
        await self.put(store, concurrency=5)
        peer = await self.peer(store)
        await store.add([self.run(f"r{n:02}") for n in range(40)])
        done = 0
        while done < 40:
            claims = [
                self.hold(client, 3, worker=f"w{n}") for n in range(5) for client in (store, peer)
            ]
            held = [run for taken in await asyncio.gather(*claims) for run in taken]
            assert len(held) == min(5, 40 - done)
            await self.succeed(peer, *held)
            done += len(held)


class RenewTests(Suite):
    async def test_a_lease_is_extended_from_now(self, store: Store) -> None:
        run = await self.running(store)
        await self.pass_ticks(20)
        before = await store.now()
        assert await self.renew(store, run, lease=30) == [Renewed(run.id)]
        after = await store.now()
        kept = await self.one(store)
        assert kept.lease_until is not None
        assert before + self.ticks(30) <= kept.lease_until <= after + self.ticks(30)
        assert replace(kept, lease_until=run.lease_until) == run
        await self.pass_ticks(20)
        assert await self.lapsed(store) == []

    async def test_only_runs_that_are_still_held_are_renewed(self, store: Store) -> None:
        await store.add(self.runs("done", "stolen", "mine", "waiting"))
        held = {run.id: run for run in await self.claim(store, 3)}
        spare = ({"done", "stolen", "mine", "waiting"} - held.keys()).pop()
        done, stolen, mine = held.values()
        now = await store.now()
        await store.commit(
            [
                transitions.succeeded(done, now, 1),
                transitions.rescued(stolen, now, Delivery.AT_LEAST_ONCE),
            ]
        )
        asked = [Held(r.id, r.token) for r in (done, stolen, mine)]
        asked += [Held(spare, 0), Held("nowhere", 1)]
        kept = await store.renew(asked, self.ticks(30))
        assert [run.id for run in kept] == [mine.id]

    async def test_an_older_token_is_not_renewed(self, store: Store) -> None:
        old = await self.running(store)
        await store.commit([transitions.released(old, await store.now(), began=True)])
        [new] = await self.claim(store, worker="w2", lease=self.ticks(30))
        assert await self.renew(store, old, lease=99) == []
        assert (await self.one(store)).lease_until == new.lease_until
        assert len(await self.renew(store, new)) == 1

    async def test_a_lapsed_lease_that_nobody_claimed_is_renewed(self, store: Store) -> None:
        run = await self.running(store)
        await self.pass_ticks(40)
        assert await self.lapsed(store) == ["run"]
        assert len(await self.renew(store, run)) == 1
        assert await self.lapsed(store) == []

    async def test_renewing_reports_a_cancel_request(self, store: Store) -> None:
        run = await self.running(store)
        assert await store.commit([transitions.request_cancel(run, "asked")]) == [True]
        [kept] = await self.renew(store, run)
        assert (kept.cancel_requested, kept.reason) == (True, "asked")

    async def test_renewing_keeps_the_progress(self, store: Store) -> None:
        run = await self.running(store)
        for progress in (Progress(1), Progress(2.5, 10, "half ☃"), Progress(0, None, "")):
            await store.renew([Held(run.id, run.token, progress)], self.ticks(30))
            assert (await self.one(store)).progress == progress

    async def test_a_thousand_leases_in_one_call(self, store: Store) -> None:
        await store.add([self.run(f"r{n}") for n in range(1000)])
        held = await self.claim(store, 1000)
        await self.pass_ticks(20)
        assert len(await self.renew(store, *held)) == 1000
        assert (await store.jobs(JobQuery())).items == []
