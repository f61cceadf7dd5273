"""Tests of `find`, `counts`, `maintain`, and changes that delete."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from typing import Any

import pytest

from mainspring.core import transitions
from mainspring.core.model import LIVE, Job, Note, Run, State, node_handler, replace
from mainspring.core.statistics import MINUTE, period_start
from mainspring.core.transitions import Failure
from mainspring.errors import InvalidInput
from mainspring.stores.protocol import JobQuery, NoteQuery, RunQuery, Store
from mainspring.testing.conformance.base import Suite
from mainspring.testing.store_calls import drop_runs, get_runs, put_note


class FindTests(Suite):
    async def fill(self, store: Store, count: int, **fields: Any) -> list[str]:
        """Add runs one after the other; return their ids, newest first."""
        ids = [f"r{(n * 37) % 101:03}" for n in range(count)]  # in no order of their own
        for n, run_id in enumerate(ids):
            await store.add([self.run(run_id, created_at=self.at(n), **fields)])
        return ids[::-1]

    async def test_a_look_up_by_ids_returns_all_runs_in_one_page(self, store: Store) -> None:
        ids = [f"r{n}" for n in range(30)]
        await store.add(self.runs(*ids))
        page = await store.find(RunQuery(ids=frozenset([*ids, "nowhere"]), limit=10))
        assert sorted(run.id for run in page.items) == sorted(ids)
        assert page.cursor is None
        assert await get_runs(store, []) == {}

    async def test_reads_change_nothing_and_wake_no_waiter(self, store: Store) -> None:
        """Even if there is something to repair, to delete and to rescue."""
        await self.put(store, concurrency=1)
        await put_note(store, Note(kind="key", name="a", value=1, expires_at=self.at(1)))
        await put_note(store, Note(kind="key", name="b", value=1))
        lost = await self.running(store, "lost")
        await store.add(self.runs("a", "b"))
        await self.pass_ticks(40)
        before = await self._everything(store)
        while await store.wait(0.05):
            pass  # hints of what was written before
        waiting = asyncio.create_task(store.wait(0.3))
        looks: tuple[dict[str, Any], ...] = (
            {"lapsed": True},
            {"set_aside": True},
            {"ids": frozenset({lost.id})},
            {},
        )
        for look in looks:
            for brief in (False, True):
                await store.find(RunQuery(brief=brief, **look))
        await store.counts(self.start)
        await store.jobs(JobQuery(due=self.at(99)))
        await store.now()
        store.info()
        assert await waiting is False
        assert await self._everything(store) == before

    async def _everything(self, store: Store) -> tuple[list[Run], list[Job], list[Note]]:
        runs = await store.find(RunQuery())
        return (
            runs.items,
            (await store.jobs(JobQuery())).items,
            (await store.notes(NoteQuery())).items,
        )

    async def test_pages_together_have_every_run_once(self, store: Store) -> None:
        newest = await self.fill(store, 20)
        for limit in (1, 3, 10, 20, 21):
            assert await self.all_ids(store, limit=limit) == newest

    async def test_paging_is_stable_while_runs_are_added_and_deleted(self, store: Store) -> None:
        newest = await self.fill(store, 10)
        old = newest[-3:]
        for run_id in old:
            run = await self.one(store, run_id)
            await store.commit([transitions.cancelled(run, self.at(-50), None)])
        first = await store.find(RunQuery(limit=4))
        assert len(first.items) == 4
        await store.add([self.run("new", created_at=self.at(100))])
        assert await store.maintain(self.at(-10), 100) == 3
        rest = await store.find(RunQuery(limit=100, cursor=first.cursor))
        assert [run.id for run in [*first.items, *rest.items]] == newest[:7]

    async def test_runs_are_found_by_state(self, store: Store) -> None:
        running = await self.running(store, "running")
        await store.add(
            [
                self.run("pending"),
                self.run("waiting", state=State.WAITING, after=("running",)),
                self.run("skipped", state=State.SKIPPED, finished_at=self.start),
            ]
        )
        for state in ("running", "pending", "waiting", "skipped"):
            assert await self.all_ids(store, states=frozenset({State(state)})) == [state]
        assert set(await self.all_ids(store, states=LIVE)) == {"running", "pending", "waiting"}
        assert await self.all_ids(store, states=frozenset({State.FAILED})) == []
        assert await self.all_ids(store, states=frozenset()) == []
        await store.commit([transitions.succeeded(running, self.start, None)])
        assert await self.all_ids(store, states=frozenset({State.SUCCEEDED})) == ["running"]

    async def test_filtered_lists_have_pages(self, store: Store) -> None:
        newest = await self.fill(store, 9)
        await store.add([self.run("x", job_id="other", created_at=self.at(50))])
        ids = await self.all_ids(store, job="job", states=frozenset({State.PENDING}), limit=2)
        assert ids == newest

    async def test_runs_are_found_by_the_time_they_were_created(self, store: Store) -> None:
        newest = await self.fill(store, 10)
        assert await self.all_ids(store, since=self.at(7)) == newest[:3]
        assert await self.all_ids(store, until=self.at(2)) == newest[8:]
        between = {"since": self.at(2), "until": self.at(7)}
        for limit in (1, 2, 100):
            assert await self.all_ids(store, **between, limit=limit) == newest[3:8]
        assert await self.all_ids(store, **between, job="other") == []
        pending = frozenset({State.PENDING})
        assert await self.all_ids(store, **between, states=pending, job="job") == newest[3:8]
        assert await self.all_ids(store, **between, states=frozenset({State.FAILED})) == []

    async def test_runs_with_an_attempt_or_with_a_failed_one_are_found(self, store: Store) -> None:
        boom = Failure("boom")
        cured = await self.running(store, "cured", created_at=self.at(-1))
        retrying = transitions.retrying(cured, self.start, boom, self.start)
        assert await store.commit([retrying]) == [True]
        await self.succeed(store, *await self.claim(store))
        names = ("fine", "dead", "again", "freed", "stopped", "late", "back", "now", "untouched")
        runs = [
            await self.running(store, run_id, created_at=self.at(n))
            for n, run_id in enumerate(names)
        ]
        fine, dead, again, freed, stopped, late, back, _, untouched = runs
        changes = [
            transitions.succeeded(fine, self.start, None),
            transitions.failed(dead, self.start, boom),
            transitions.retrying(again, self.start, boom, self.at(50)),
            transitions.released(freed, self.start, began=True),
            transitions.cancelled(stopped, self.start, "enough"),
            transitions.failed(late, self.start, boom),
            transitions.failed(back, self.start, boom),
            transitions.released(untouched, self.start, began=False),
        ]
        assert all(await store.commit(changes))
        over = (await get_runs(store, ["late", "back"])).values()
        assert all(await store.commit([transitions.revived(run, self.start) for run in over]))
        late = await self.one(store, "late")
        assert await store.commit([transitions.skipped(late, self.start, "expired")]) == [True]
        never = [self.run(f"n{n}", created_at=self.at(20 + n)) for n in range(4)]
        await store.add([*never, self.run("other", job_id="other", created_at=self.at(30))])
        await store.commit(
            [
                transitions.cancelled(never[0], self.start, "not wanted"),
                transitions.skipped(never[1], self.start, "misfire"),
            ]
        )
        tried = ["now", "back", "late", "stopped", "freed", "again", "dead", "fine", "cured"]
        for limit in (1, 3, 100):
            assert await self.all_ids(store, tried=True, job="job", limit=limit) == tried
            assert await self.all_ids(store, tried=True, limit=limit) == tried
        pending = frozenset({State.PENDING})
        for job in ("job", None):
            ids = await self.all_ids(store, tried=True, job=job, states=pending)
            assert ids == ["back", "freed", "again"]
        failing = ["again", "dead", "cured"]
        assert await self.all_ids(store, tried=True, failing=True, job="job") == failing
        assert await self.all_ids(store, failing=True) == failing
        assert await self.all_ids(store, failing=True, limit=1) == failing
        ended = frozenset({State.FAILED})
        assert await self.all_ids(store, failing=True, states=ended) == ["dead"]
        assert await self.all_ids(store, failing=True, job="other") == []
        assert await self.all_ids(store, tried=True, job="job", since=self.at(6)) == tried[:2]
        assert await self.all_ids(store, tried=True, job="other") == []

    async def test_the_newest_runs_of_each_of_several_jobs_are_found_at_once(
        self, store: Store
    ) -> None:
        for job, count in (("a", 4), ("b", 2), ("c", 1)):
            runs = [self.run(f"{job}{n}", job_id=job, created_at=self.at(n)) for n in range(count)]
            await store.add(runs)
        ended = [await self.one(store, "a3"), await self.one(store, "b1")]
        await store.commit([transitions.cancelled(run, self.start, "") for run in ended])

        async def newest(limit: int, *jobs: str, **fields: Any) -> dict[str, list[str]]:
            query = RunQuery(jobs=frozenset(jobs), limit=limit, **fields)
            page = await store.find(query)
            assert page.cursor is None
            by_job: dict[str, list[str]] = {}
            for run in page.items:
                by_job.setdefault(run.job_id, []).append(run.id)
            return by_job

        two = {"a": ["a3", "a2"], "b": ["b1", "b0"]}
        assert await newest(2, "a", "b", "nobody") == two
        assert await newest(1, "a", "c", brief=True) == {"a": ["a3"], "c": ["c0"]}
        pending = frozenset({State.PENDING})
        assert await newest(1, "a", "b", states=pending) == {"a": ["a2"], "b": ["b0"]}
        assert await newest(5, "a", "b", tried=True) == {}
        [claimed] = await self.claim(store, 1)
        tried = {claimed.job_id: [claimed.id]}
        assert await newest(1, "a", "b", "c", tried=True) == tried
        assert await newest(1, "a", "b", "c", tried=True, states=pending) == {}
        retried = [claimed, *await self.claim(store, 10)]
        last = {run.job_id: [run.id] for run in sorted(retried, key=lambda run: run.created_at)}
        retries = [transitions.retrying(r, self.start, Failure("no"), self.start) for r in retried]
        assert all(await store.commit(retries))
        assert len(retried) == 5
        assert await newest(1, "a", "b", "c", tried=True) == last
        assert await newest(1, "a", tried=True, states=pending) == {"a": last["a"]}
        assert await newest(1, "a", "b") == {"a": ["a3"], "b": ["b1"]}
        assert (
            await newest(1)
            == await newest(0, "a")
            == await newest(1, "a", states=frozenset())
            == {}
        )

    async def test_lapsed_runs_are_found_by_the_stores_clock(self, store: Store) -> None:
        await store.add(self.runs("short", "long", "pending"))
        await self.claim(store, 1, lease=self.ticks(5))
        await self.claim(store, 1, lease=self.ticks(50))
        assert await self.lapsed(store) == []
        await self.pass_ticks(5)
        [lapsed] = await self.lapsed(store)
        assert await self.all_ids(store, lapsed=True, job="other") == []
        await self.pass_ticks(45)
        both = await self.lapsed(store)
        assert len(both) == 2
        assert lapsed in both


class BriefTests(Suite):
    """Lists that show neither payloads nor attempts."""

    async def _tried(self, store: Store) -> Run:
        await store.add([self.run("run", payload={"n": 1}, queue="q", dedupe_key="k")])
        [run] = await self.claim(store)
        details = transitions.AttemptDetails(log=("a line",))
        failed = transitions.failed(run, await store.now(), Failure("boom"), details)
        assert await store.commit([failed]) == [True]
        return await self.one(store)

    async def test_brief_runs_have_no_payload_result_or_attempts(self, store: Store) -> None:
        whole = await self._tried(store)
        assert whole.attempts
        brief = replace(whole, payload=None, result=None, attempts=(), brief=True)
        assert (await store.find(RunQuery(brief=True))).items == [brief]
        assert await get_runs(store, ["run", "nowhere"], brief=True) == {"run": brief}
        assert (await store.find(RunQuery())).items == [whole]

    async def test_a_brief_run_never_overwrites_attempts(self, store: Store) -> None:
        """A run that was read for a list may be revived or cancelled. Its attempts stay."""
        whole = await self._tried(store)
        [brief] = (await store.find(RunQuery(brief=True))).items
        now = await store.now()
        assert await store.commit([transitions.revived(brief, now)]) == [True]
        [brief] = (await store.find(RunQuery(brief=True))).items
        assert await store.commit([transitions.cancelled(brief, now, "asked")]) == [True]
        assert (await self.one(store)).attempts == whole.attempts
        with pytest.raises(ValueError, match="without its attempts"):
            transitions.succeeded(brief, now, None)


class UpstreamTests(Suite):
    """Which runs come after a run and wait, or were skipped because it failed."""

    async def _following(self, store: Store, *upstream: str, **query: Any) -> list[str]:
        return await self.all_ids(store, upstream=frozenset(upstream), **query)

    async def _workflows(self, store: Store) -> None:
        waiting = {"state": State.WAITING}
        await store.add(
            [
                *self.runs("a", "b", "c"),
                self.run("after_a", after=("a",), **waiting),
                self.run("after_both", after=("a", "b"), **waiting),
                self.run("after_b", after=("b",), job_id="other", **waiting),
                self.run("behind", after=("after_a",), **waiting),
            ]
        )

    async def test_runs_that_wait_for_a_run_are_found(self, store: Store) -> None:
        await self._workflows(store)
        assert set(await self._following(store, "a")) == {"after_a", "after_both"}
        assert set(await self._following(store, "b")) == {"after_b", "after_both"}
        assert await self._following(store, "after_a") == ["behind"]
        assert await self._following(store, "c", "nowhere") == []
        assert await self._following(store) == []

    async def test_runs_that_no_longer_wait_are_not_found(self, store: Store) -> None:
        await self._workflows(store)
        [run] = (await get_runs(store, ["after_a"])).values()
        freed = transitions.unblocked(run, await store.now(), {"a": State.SUCCEEDED})
        assert freed is not None
        assert await store.commit([freed]) == [True]
        assert await self._following(store, "a") == ["after_both"]
        await store.maintain(await store.now(), 100)
        assert await self._following(store, "a") == ["after_both"]
        assert await self._following(store, "after_a") == ["behind"]

    async def test_runs_that_were_skipped_because_a_run_failed_are_found_by_it(
        self, store: Store
    ) -> None:
        await self._workflows(store)
        await store.add(
            [
                self.run(
                    "copied",
                    after=("a",),
                    state=State.SKIPPED,
                    reason=transitions.UPSTREAM_FAILED,
                    finished_at=self.start,
                )
            ]
        )
        runs = await get_runs(store, ["after_a", "after_both", "after_b"])
        now = await store.now()
        skips = [
            transitions.skipped(runs["after_a"], now, transitions.UPSTREAM_FAILED),
            transitions.skipped(runs["after_b"], now, "overlap"),
        ]
        assert await store.commit(skips) == [True, True]
        await store.maintain(self.at(-(10**6)), 100)
        for limit in (1, 100):
            followers = await self._following(store, "a", "b", limit=limit)
            assert sorted(followers) == ["after_a", "after_both", "copied"]
        for state, names in (
            (State.WAITING, ["after_both"]),
            (State.SKIPPED, ["after_a", "copied"]),
            (State.PENDING, []),
        ):
            followers = await self._following(store, "a", "b", states=frozenset({state}))
            assert sorted(followers) == names
        [skipped] = (await get_runs(store, ["after_a"])).values()
        again = [transitions.waiting_again(skipped) for _ in range(2)]
        assert await store.commit(again) == [True, False]
        waiting = frozenset({State.WAITING})
        followers = await self._following(store, "a", states=waiting)
        assert sorted(followers) == ["after_a", "after_both"]
        [copied] = (await get_runs(store, ["copied"])).values()
        assert await store.commit([transitions.deleted(copied)]) == [True]
        assert sorted(await self._following(store, "a")) == ["after_a", "after_both"]

    async def test_a_skipped_follower_keeps_no_run_from_being_deleted(self, store: Store) -> None:
        after = self.run("late", state=State.WAITING, after=("r1",))
        await store.add([self.run("r1"), after])
        [run] = await self.claim(store)
        now = await store.now()
        fail = transitions.cancelled(run, now, "asked")
        skip = transitions.skipped(after, now, transitions.UPSTREAM_FAILED)
        assert await store.commit([fail, skip]) == [True, True]
        assert await self._following(store, "r1") == ["late"]
        await store.maintain(self.at(-(10**6)), 100)
        [gone] = (await get_runs(store, ["r1"])).values()
        assert await store.commit([transitions.deleted(gone)]) == [True]
        assert await self._following(store, "r1") == ["late"]

    async def test_a_queued_slot_waits_for_the_slot_before(self, store: Store) -> None:
        job = await self.put(store)
        first = await self.fire(store, job, self.at(0), "queue")
        second = await self.fire(store, await self.read_job(store), self.at(1), "queue")
        assert await self._following(store, first.runs[0].id) == [second.runs[0].id]

    async def test_many_runs_that_wait_for_many_runs_are_found(self, store: Store) -> None:
        roots = [f"r{n}" for n in range(300)]
        await store.add(self.runs(*roots))
        await store.add(
            [self.run(f"f{n}", after=(f"r{n}",), state=State.WAITING) for n in range(300)]
        )
        assert len(await self._following(store, *roots, limit=1000)) == 300

    @pytest.mark.parametrize(
        "cursor",
        ["9" * 30, "-" + "9" * 30, "9" * 30 + ":one", "1_0", "\u0661", "x", "", " 1", "9" * 5000],
        ids=lambda cursor: cursor[:5],
    )
    async def test_an_invalid_cursor_is_refused_or_names_a_place_in_the_list(
        self, store: Store, cursor: str
    ) -> None:
        """Clients may send any text."""
        await store.add(self.runs("one", "two"))
        runs: list[Run] = []
        with contextlib.suppress(InvalidInput):
            runs = (await store.find(RunQuery(cursor=cursor))).items
        assert {run.id for run in runs} <= {"one", "two"}


class CountTests(Suite):
    async def test_unfinished_runs_are_counted_by_job_and_state(self, store: Store) -> None:
        counts = await store.counts()
        assert (dict(counts.runs), dict(counts.due), counts.total(State.PENDING)) == ({}, {}, 0)
        await self.finished(store, "a", job_id="one")
        await self.running(store, "b", job_id="one")
        await store.add([self.run(run_id, job_id="two") for run_id in "cde"])
        counts = await store.counts()
        assert {job: dict(by_state) for job, by_state in counts.runs.items()} == {
            "one": {State.RUNNING: 1},
            "two": {State.PENDING: 3},
        }
        assert (counts.total(State.PENDING), counts.total(State.FAILED)) == (3, 0)
        assert counts.total(State.SUCCEEDED) == 1

    async def test_due_runs_are_counted_by_handler_with_the_oldest(self, store: Store) -> None:
        await store.add(
            [
                self.run("a", handler="mail", run_at=self.at(-3)),
                self.run("b", handler="mail", run_at=self.at(-8)),
                self.run("c", handler="report", run_at=self.start),
                self.run("d", handler="report", run_at=self.at(50)),
                self.run("e", handler="later", run_at=self.at(50)),
                self.run("f", handler="blocked", state=State.WAITING, after=("a",)),
            ]
        )
        due = {handler: (d.count, d.oldest) for handler, d in (await store.counts()).due.items()}
        assert due == {"mail": (2, self.at(-8)), "report": (1, self.start)}
        await self.pass_ticks(50)
        due = {handler: (d.count, d.oldest) for handler, d in (await store.counts()).due.items()}
        assert due["report"] == (2, self.start)
        assert due["later"] == (1, self.at(50))

    async def test_due_runs_are_counted_by_queue_with_the_oldest(self, store: Store) -> None:
        await store.add(
            [
                self.run("a", handler="mail", queue="fast", run_at=self.at(-3)),
                self.run("b", handler="report", queue="fast", job_id="other", run_at=self.at(-8)),
                self.run("c", handler="mail", priority=9, run_at=self.start),
                self.run("d", queue="later", run_at=self.at(50)),
                self.run("e", handler=node_handler("node"), queue="fast", run_at=self.at(-9)),
            ]
        )
        due = {
            queue: (d.count, d.oldest) for queue, d in (await store.counts()).due_by_queue.items()
        }
        assert due == {"fast": (2, self.at(-8)), "default": (1, self.start)}

    async def test_counts_follow_every_change(self, store: Store) -> None:
        run = await self.running(store)
        await store.commit([transitions.failed(run, self.start, transitions.Failure("boom"))])
        assert (await store.counts()).runs.get("job", {}) == {}
        dead = await self.one(store)
        await store.commit([transitions.revived(dead, self.start)])
        assert (await store.counts()).runs["job"] == {State.PENDING: 1}
        await store.commit([transitions.cancelled(await self.one(store), self.at(-9), None)])
        await store.maintain(self.start, 10)
        counts = await store.counts()
        assert counts.runs.get("job", {}) == {}
        assert (counts.total(State.FAILED), counts.total(State.CANCELLED)) == (1, 1)

    async def test_runs_that_ended_since_a_minute_are_counted(self, store: Store) -> None:
        minute = period_start(self.start, MINUTE)
        for seconds, run_id, state in (
            (-121, "a", State.SUCCEEDED),
            (-120, "b", State.SUCCEEDED),
            (-61, "c", State.SUCCEEDED),
            (-60, "d", State.FAILED),
        ):
            ended = minute + timedelta(seconds=seconds)
            await store.add([self.run(run_id, state=state, finished_at=ended)])
        await store.add([self.run("pending")])
        counts = await store.counts(minute - timedelta(seconds=90))
        assert counts.ended == {State.SUCCEEDED: 2, State.FAILED: 1}
        assert counts.total(State.SUCCEEDED) == 3
        assert (await store.counts()).ended == {}


class PruneTests(Suite):
    def ended(self, run_id: str, at: float, **fields: Any) -> Any:
        times = {"state": State.SUCCEEDED, "finished_at": self.at(at)}
        return self.run(run_id, **{**times, **fields})

    async def test_runs_that_ended_before_a_time_are_deleted(self, store: Store) -> None:
        await store.add(
            [
                self.ended("old", -20),
                self.ended("edge", -10),
                self.ended("new", -5),
                self.ended("failed", -30, state=State.FAILED),
                self.ended("skipped", -30, state=State.SKIPPED),
                self.ended("revived", -30, state=State.FAILED),
                self.run("pending", created_at=self.at(-900), run_at=self.at(-900), priority=0),
            ]
        )
        await self.running(store, "running", run_at=self.at(-500), handler="other")
        dead = await self.one(store, "revived")
        assert await store.commit([transitions.revived(dead, self.start)]) == [True]
        assert await store.maintain(self.at(-10), 100) == 3
        live = ["pending", "revived", "running"]
        assert sorted(await self.all_ids(store)) == sorted(["edge", "new", *live])
        assert await store.maintain(self.at(-10), 100) == 0
        assert await store.maintain(self.at(10**6), 100) == 2
        assert sorted(await self.all_ids(store)) == live

    async def test_at_most_the_limit_of_runs_is_deleted(self, store: Store) -> None:
        await store.add([self.ended(f"r{n}", -20) for n in range(10)])
        assert [await store.maintain(self.start, 4) for _ in range(4)] == [4, 4, 2, 0]

    async def test_a_run_that_holds_a_dedupe_key_is_not_deleted(self, store: Store) -> None:
        """Otherwise another run with the same key could start before `dedupe_until`."""
        held = {"dedupe_key": "k", "dedupe_until": self.at(20)}
        await store.add([self.ended("a", -20, **held), self.ended("b", -20)])
        assert await store.maintain(self.start, 100) == 1
        assert await self.added(store, "c", dedupe_key="k") == ("a", True)
        await self.pass_ticks(21)
        assert await store.maintain(self.start, 100) == 1
        assert await self.added(store, "c", dedupe_key="k") == ("c", False)

    async def test_runs_that_are_kept_do_not_use_up_the_limit(self, store: Store) -> None:
        keys = [
            self.ended(f"k{n}", -50, dedupe_key=f"k{n}", dedupe_until=self.at(99)) for n in range(9)
        ]
        await store.add([*keys, self.ended("old", -20)])
        assert await store.maintain(self.start, 1) == 1
        assert await self.states(store, "old") == [None]

    async def test_a_run_that_an_unfinished_run_comes_after_is_not_deleted(
        self, store: Store
    ) -> None:
        """A waiting run must learn how it ended; a pending or running one reads its result, also
        when it is tried again."""
        ended = [self.ended("a", -50, state=State.FAILED), self.ended("b", -20)]
        await store.add([*ended, self.ended("read", -20), self.ended("read again", -20)])
        await store.add(
            [
                self.run("live", handler="other"),
                self.run("w", state=State.WAITING, after=("a", "live")),
                self.run("p", handler="other", after=("read",)),
                self.run("r", after=("read again",)),
            ]
        )
        [running] = await self.claim(store)
        assert running.id == "r"
        kept = ["a", "read", "read again"]
        assert await store.maintain(self.start, 1) == 1
        assert await self.states(store, "b") == [None]
        assert await drop_runs(store, kept) == await store.maintain(self.start, 9) == 0
        retrying = transitions.retrying(running, self.start, Failure("boom"), self.at(10**6))
        assert await store.commit([retrying]) == [True]
        assert await drop_runs(store, kept) == await store.maintain(self.start, 9) == 0
        for name in "w", "p", "r":
            run = await self.one(store, name)
            assert await store.commit([transitions.cancelled(run, self.start, None)]) == [True]
        revived = transitions.revived(await self.one(store, "r"), self.start)
        assert await store.commit([revived]) == [True]
        assert await drop_runs(store, kept) == 2
        assert await self.states(store, *kept) == [None, None, State.SUCCEEDED]

    async def test_the_id_of_a_pruned_run_is_free_again(self, store: Store) -> None:
        await store.add([self.ended("a", -50, payload=1)])
        await store.maintain(self.start, 10)
        [added] = await store.add([self.run("a", payload=2)])
        assert added.run.payload == 2

    async def test_a_deletion_of_a_run_is_refused_until_it_has_finished(self, store: Store) -> None:
        running = await self.running(store, "running")
        held = {"dedupe_key": "k", "dedupe_until": self.at(20)}
        await store.add(
            [
                self.ended("a", -1),
                self.ended("b", -1),
                self.ended("held", -1, **held),
                self.run("pending"),
            ]
        )
        chosen = ["a", "a", "held", "pending", running.id, "nowhere"]
        assert await drop_runs(store, chosen) == 1
        assert sorted(await self.all_ids(store)) == ["b", "held", "pending", "running"]
        assert await drop_runs(store, []) == 0
        await self.pass_ticks(20)
        assert await drop_runs(store, chosen) == 1
