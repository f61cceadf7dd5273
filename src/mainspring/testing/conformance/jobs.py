"""Tests of `jobs`, `put_jobs` and `fire`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mainspring.core import transitions
from mainspring.core.model import Job, Page, Source, State, replace, slot_run_id
from mainspring.core.policy import Overlap, Policy
from mainspring.stores.paging import all_items
from mainspring.stores.protocol import Fired, Firing, JobQuery, JobWrite, RunQuery, Store
from mainspring.testing.conformance.base import Suite
from mainspring.testing.store_calls import add_jobs, drop_job, get_runs, put_job


class JobBatchTests(Suite):
    """`put_jobs`: inserts, updates and deletes in one call, each by compare-and-set."""

    async def _versions(self, store: Store) -> dict[str, int]:
        return {job.id: job.version for job in (await store.jobs(JobQuery(limit=5000))).items}

    async def test_each_job_of_a_batch_is_written_if_it_has_the_expected_version(
        self, store: Store
    ) -> None:
        jobs = [self.job(name) for name in ("a", "b", "c")]
        first = jobs[0].next_version()
        assert await store.put_jobs([JobWrite.put(job) for job in jobs]) == [True] * 3
        b = replace(jobs[1], version=first)
        changed = replace(b, description="changed")
        assert await store.put_jobs(
            [
                JobWrite.put(jobs[0]),
                JobWrite.put(changed),
                JobWrite.drop("c", 7),
                JobWrite.put(self.job("d")),
                JobWrite.put(replace(self.job("e"), version=3)),
                JobWrite.drop("nowhere"),
            ]
        ) == [False, True, False, True, False, False]
        assert await self._versions(store) == {
            "a": first,
            "b": first + 1,
            "c": first,
            "d": first,
        }
        assert (await self.read_job(store, "b")).description == "changed"
        assert await store.put_jobs([JobWrite.drop("c", first), JobWrite.drop("a")]) == [True, True]
        assert await self._versions(store) == {"b": first + 1, "d": first}

    async def test_several_writes_of_one_job_are_done_in_order(self, store: Store) -> None:
        job = self.job("a")
        first = job.next_version()
        writes = [
            JobWrite.put(job),
            JobWrite.put(replace(job, version=first, description="second")),
            JobWrite.put(replace(job, version=first, description="late")),
            JobWrite.put(self.job("b")),
            JobWrite.drop("a", first + 1),
            JobWrite.put(replace(job, description="anew")),
        ]
        assert await store.put_jobs(writes) == [True, True, False, True, True, True]
        assert (await self.read_job(store, "a")).description == "anew"
        assert await self._versions(store) == {"a": first, "b": first}

    async def test_many_jobs_are_written_in_one_call(self, store: Store) -> None:
        jobs = [self.job(f"j{n:04}") for n in range(300)]
        first = jobs[0].next_version()
        assert all(await store.put_jobs([JobWrite.put(job) for job in jobs]))
        paused = [replace(job, version=first, enabled=False) for job in jobs]
        assert all(await store.put_jobs([JobWrite.put(job) for job in paused]))
        assert len((await store.jobs(JobQuery(enabled=False, limit=1000))).items) == 300
        assert all(await store.put_jobs([JobWrite.drop(job.id, first + 1) for job in jobs]))
        assert await self._versions(store) == {}

    async def test_limits_are_set_and_removed_with_their_jobs(self, store: Store) -> None:
        limited = self.job("a", policy=Policy.make(concurrency=1))
        await store.put_jobs([JobWrite.put(limited), JobWrite.put(self.job("b"))])
        await store.add([self.run(f"{name}{n}", job_id=name) for name in "ab" for n in range(3)])
        assert len(await self.claim(store)) == 4
        await store.put_jobs([JobWrite.drop("a")])
        assert len(await self.claim(store)) == 2

    async def test_one_of_two_concurrent_writes_of_a_job_wins(self, store: Store) -> None:
        peer = await self.peer(store)
        jobs = [self.job(f"j{n}") for n in range(20)]
        writes = [JobWrite.put(job) for job in jobs]
        one, other = await asyncio.gather(store.put_jobs(writes), peer.put_jobs(writes))
        assert [a + b for a, b in zip(one, other, strict=True)] == [1] * 20


class JobTests(Suite):
    async def ids(self, store: Store, **query: Any) -> list[str]:
        return [job.id for job in (await store.jobs(JobQuery(**query))).items]

    async def test_a_dropped_job_is_gone_and_its_runs_stay(self, store: Store) -> None:
        await put_job(store, self.job())
        await store.add([self.run()])
        assert await drop_job(store, "job") is True
        assert await drop_job(store, "job") is False
        assert await self.ids(store) == []
        assert await self.states(store, "run") == [State.PENDING]

    async def test_a_write_for_a_dropped_job_does_not_change_a_new_job_of_its_id(
        self, store: Store
    ) -> None:
        """An edit writes the whole definition, so it would bring the removed job back."""
        read = await self.put(store)
        await self.make_anew(store, description="new")
        assert await put_job(store, replace(read, enabled=False)) is False
        assert await store.put_jobs([JobWrite.put(read), JobWrite.drop("job", read.version)]) == [
            False,
            False,
        ]
        assert await drop_job(store, "job", read.version) is False
        job = await self.read_job(store)
        assert (job.description, job.enabled) == ("new", True)

    async def test_a_job_copied_from_another_store_keeps_its_version(self, store: Store) -> None:
        moved = [self.job("a", version=7, payload={"a": 1}), self.job("b", version=1)]
        assert await add_jobs(store, moved) == [True, True]
        assert (await store.jobs(JobQuery())).items == moved
        assert await put_job(store, replace(moved[0], description="edited")) is True
        assert (await self.read_job(store, "a")).version == 8

    async def test_a_copied_job_does_not_replace_a_stored_one(self, store: Store) -> None:
        await put_job(store, self.job(description="here"))
        moved = [self.job(description="moved", version=9), self.job("other", version=2)]
        assert await add_jobs(store, moved) == [False, True]
        assert await add_jobs(store, moved) == [False, False]
        job = await self.read_job(store)
        assert (job.description, job.version) == ("here", self.job().next_version())

    async def test_the_limit_of_a_copied_job_holds(self, store: Store) -> None:
        await store.add(self.runs("early", "late"))
        await add_jobs(store, [self.job(version=5, policy=Policy(concurrency=1))])
        await store.add(self.runs("later"))
        assert len(await self.claim(store)) == 1

    async def test_jobs_are_listed_by_id_page_by_page(self, store: Store) -> None:
        names = ["b", "a-2", "a", "B", "a.1", "c:x", "_z", "10", "9"]
        for name in names:
            await put_job(store, self.job(name))
        assert await self.ids(store) == sorted(names)
        for limit in (1, 2, 4, 9):
            listed = all_items(store.jobs, JobQuery(limit=limit))
            assert [job.id async for job in listed] == sorted(names)

    async def test_jobs_are_found_by_their_ids(self, store: Store) -> None:
        for name in "abc":
            await put_job(store, self.job(name))
        assert await self.ids(store, ids=frozenset({"c", "a", "nowhere"})) == ["a", "c"]
        assert await self.ids(store, ids=frozenset()) == []

    async def test_jobs_are_found_by_tag(self, store: Store) -> None:
        await put_job(store, self.job("a", tags=("mail", "daily")))
        await put_job(store, self.job("b", tags=("daily-report",)))
        await put_job(store, self.job("c", tags=("Daily", "☃", 'qu"ote', "100%")))
        assert await self.ids(store, tag="daily") == ["a"]
        assert await self.ids(store, tag="☃") == ["c"]
        assert await self.ids(store, tag='qu"ote') == ["c"]
        assert await self.ids(store, tag="%") == []
        assert await self.ids(store, tag="") == []

    async def test_jobs_that_follow_others_are_found(self, store: Store) -> None:
        await self.put(store, "first")
        await self.put(store, "second", after=["first"])
        await self.put(store, "third", after=["first", "second"])
        assert await self.ids(store, follows=True) == ["second", "third"]
        await self.put(store, "second", after=[])
        assert await self.ids(store, follows=True) == ["third"]

    async def test_due_jobs_are_listed_earliest_first(self, store: Store) -> None:
        for name, at in (("late", 9), ("early", 1), ("middle", 5), ("edge", 10), ("future", 11)):
            await put_job(store, self.job(name, next_run_at=self.at(at)))
        await put_job(store, self.job("never", next_run_at=None))
        await put_job(store, self.job("paused", next_run_at=self.at(2), enabled=False))
        due = self.at(10)
        assert await self.ids(store, due=due) == ["early", "middle", "late", "edge"]
        assert await self.ids(store, due=due, limit=2) == ["early", "middle"]
        assert await self.ids(store, due=self.at(0)) == []

    async def test_due_jobs_change_with_the_job(self, store: Store) -> None:
        await put_job(store, self.job(next_run_at=self.at(1)))
        job = await self.read_job(store)
        await put_job(store, replace(job, enabled=False))
        assert await self.ids(store, due=self.at(5)) == []
        job = await self.read_job(store)
        await put_job(store, replace(job, enabled=True, next_run_at=self.at(9)))
        assert await self.ids(store, due=self.at(5)) == []
        assert await self.ids(store, due=self.at(9)) == ["job"]


class FireTests(Suite):
    async def test_firing_a_slot_adds_its_run_and_advances_the_job(self, store: Store) -> None:
        job = await self.put(store)
        fired = await self.fire(store, job, self.start)
        assert (fired.done, fired.runs) == (True, (self.slot(self.start),))
        moved = await self.read_job(store)
        expected = replace(
            job, next_run_at=self.at(60), last_run_at=self.start, version=job.version + 1
        )
        assert moved == expected
        assert await self.claim_ids(store) == [slot_run_id("job", self.start)]

    async def test_a_slot_fires_once(self, store: Store) -> None:
        job = await self.put(store)
        assert (await self.fire(store, job, self.start)).done is True
        assert await self.fire(store, job, self.start) == Fired(False)
        assert len(await self.all_ids(store)) == 1
        assert (await self.read_job(store)).version == job.version + 1

    async def test_a_firing_after_valid_until_is_refused(self, store: Store) -> None:
        """The node slept after it had planned: a slot that was due then may count as missed now."""
        job = await self.put(store)
        now = await store.now()
        late = await self.fire(store, job, self.start, valid_until=now - self.ticks(1))
        assert late.done is False
        assert (await self.read_job(store)).version == job.version
        fired = await self.fire(store, job, self.start, valid_until=now + self.ticks(600))
        assert fired.done is True

    async def test_a_firing_planned_for_a_dropped_job_does_not_fire_a_new_job_of_its_id(
        self, store: Store
    ) -> None:
        """Even if the new job was written as often as the old one."""
        job = await self.put(store)
        job = await self.put(store, priority=1)
        await self.make_anew(store, next_run_at=self.at(600))
        assert (await self.fire(store, job, self.start)).done is False
        made = await self.put(store, priority=2)
        assert (await self.fire(store, job, self.start)).done is False
        assert await self.all_ids(store) == []
        assert await self.read_job(store) == made

    async def test_a_stored_run_of_the_slot_is_left_unchanged(self, store: Store) -> None:
        """After a crash before the job advanced, or for a job that was removed and added again."""
        for overlap in Overlap:
            at = self.at(-len(overlap))
            job = await self.put(store, f"job-{overlap}")
            await store.add([self.slot(at, job.id, payload=overlap)])
            [held] = await self.claim(store)
            fired = await self.fire(store, job, at, overlap)
            assert (fired.done, fired.runs) == (True, (held,)), overlap
            assert await self.one(store, held.id) == held
            assert (await self.read_job(store, job.id)).version == job.version + 1

    async def earlier(self, store: Store, state: State) -> Any:
        """A job with an unfinished run of its last slot."""
        job = await self.put(store)
        run = self.slot(self.at(-60))
        if state is State.WAITING:
            run = replace(run, state=state, after=("x",))
        await store.add([run])
        if state is State.RUNNING:
            await self.claim(store)
        return job

    @pytest.mark.parametrize("state", [State.WAITING, State.PENDING, State.RUNNING])
    async def test_overlap_skip_skips_the_slot_while_a_run_is_unfinished(
        self, store: Store, state: State
    ) -> None:
        job = await self.earlier(store, state)
        follower = self.run("follower", job_id="next", state=State.WAITING, after=("x",))
        before = await store.now()
        fired = await self.fire(store, job, self.start, "skip", follower)
        assert fired.done is True
        slot, rest = fired.runs
        assert (slot.state, slot.reason) == (State.SKIPPED, "overlap")
        assert slot.finished_at is not None
        assert before <= slot.finished_at <= await store.now()
        assert (rest.state, rest.reason) == (State.SKIPPED, "upstream skipped")
        assert await get_runs(store, [slot.id, rest.id]) == {slot.id: slot, rest.id: rest}
        assert (await self.read_job(store)).next_run_at == self.at(60)

    @pytest.mark.parametrize("state", [State.WAITING, State.PENDING, State.RUNNING])
    async def test_overlap_queue_makes_the_slot_wait(self, store: Store, state: State) -> None:
        job = await self.earlier(store, state)
        [slot] = (await self.fire(store, job, self.start, "queue")).runs
        assert (slot.state, slot.after_any) == (State.WAITING, True)
        assert slot.after == (slot_run_id("job", self.at(-60)),)
        assert await self.one(store, slot.id) == slot

    @pytest.mark.parametrize("jobs", [1, 3])
    @pytest.mark.parametrize("overlap", ["skip", "queue"])
    async def test_of_several_unfinished_slots_the_newest_is_named(
        self, store: Store, overlap: str, jobs: int
    ) -> None:
        """A slot that named all of them would make the store grow with the square of a queue."""
        firings = []
        for number in range(jobs):
            job = await self.put(store, f"job{number}")
            await store.add(
                [self.slot(self.at(-at), job.id) for at in (30, 50, 10, *range(60, 85))]
            )
            firings.append(self.firing(job, self.start, overlap))
        for fired in await store.fire(firings):
            [slot] = fired.runs
            newest = slot_run_id(slot.job_id, self.at(-10))
            if overlap == "queue":
                assert (slot.state, slot.after) == (State.WAITING, (newest,))
            else:
                assert (slot.state, slot.result) == (State.SKIPPED, {"unfinished": [newest]})

    async def test_queued_slots_of_one_call_wait_for_each_other(self, store: Store) -> None:
        job = await self.put(store)
        firings = [
            self.firing(replace(job, version=job.version + at), self.at(at), "queue")
            for at in range(4)
        ]
        fired = [answer.runs[0] for answer in await store.fire(firings)]
        assert [run.state for run in fired] == [State.PENDING, *[State.WAITING] * 3]
        assert [run.after for run in fired] == [(), *((run.id,) for run in fired[:-1])]

    async def test_overlap_replace_cancels_a_pending_run(self, store: Store) -> None:
        job = await self.earlier(store, State.PENDING)
        fired = await self.fire(store, job, self.start, "replace")
        [slot] = fired.runs
        old = await self.one(store, slot_run_id("job", self.at(-60)))
        assert (old.state, old.reason) == (State.CANCELLED, f"replaced by {slot.id}")
        assert fired.replaced == (old,)
        assert await self.claim_ids(store) == [slot.id]

    async def test_overlap_replace_requests_the_cancel_of_a_running_run(self, store: Store) -> None:
        job = await self.earlier(store, State.RUNNING)
        fired = await self.fire(store, job, self.start, "replace")
        [slot] = fired.runs
        old = await self.one(store, slot_run_id("job", self.at(-60)))
        assert (old.state, old.cancel_requested, fired.replaced) == (State.RUNNING, True, ())
        assert old.reason == f"replaced by {slot.id}"
        assert slot.state is State.PENDING

    async def test_overlap_allow_adds_the_run(self, store: Store) -> None:
        job = await self.earlier(store, State.RUNNING)
        [slot] = (await self.fire(store, job, self.start, "allow")).runs
        old = await self.one(store, slot_run_id("job", self.at(-60)))
        assert (slot.state, old.cancel_requested) == (State.PENDING, False)

    @pytest.mark.parametrize("overlap", list(Overlap))
    async def test_a_slot_overlaps_on_each_node_for_itself(
        self, store: Store, overlap: Overlap
    ) -> None:
        job = await self.put(store)
        earlier, gone, busy, free = (
            replace(run, id=f"{run.id}{handler}", handler=handler)
            for run, handler in (
                (self.slot(self.at(-60)), "@busy"),
                (self.slot(self.at(-30)), "@gone"),
                (self.slot(self.start), "@busy"),
                (self.slot(self.start), "@free"),
            )
        )
        await store.add([earlier, gone])
        follower = self.run(
            "follower", job_id="next", state=State.WAITING, after=(busy.id, free.id)
        )
        firing = self.firing(job, self.start, overlap)
        [fired] = await store.fire([replace(firing, runs=(busy, free, follower))])
        assert fired.done is True
        assert fired.runs[1] == free
        states = {
            Overlap.SKIP: State.SKIPPED,
            Overlap.QUEUE: State.WAITING,
            Overlap.REPLACE: State.PENDING,
            Overlap.ALLOW: State.PENDING,
        }
        assert fired.runs[0].state is states[overlap]
        # It comes after what runs of this slot.
        skipped = overlap is Overlap.SKIP
        assert fired.runs[2].after == ((free.id,) if skipped else (busy.id, free.id))
        ids = frozenset({earlier.id, busy.id, free.id, follower.id})
        stored = {run.id: run for run in (await store.find(RunQuery(ids=ids))).items}
        assert [stored[run.id] for run in fired.runs] == list(fired.runs)
        replaced = overlap is Overlap.REPLACE
        assert stored[earlier.id].state is (State.CANCELLED if replaced else State.PENDING)

    @pytest.mark.parametrize("overlap", list(Overlap))
    async def test_the_record_of_missed_slots_is_stored_whatever_becomes_of_the_slot(
        self, store: Store, overlap: str
    ) -> None:
        """The record is about other slots than the one that fires."""
        job = await self.earlier(store, State.RUNNING)
        told = {"first": self.at(-40), "last": self.at(-20), "count": 2}
        missed = self.slot(
            self.at(-40),
            state=State.SKIPPED,
            finished_at=self.start,
            reason="misfire",
            result=told,
        )
        fired = await self.fire(store, job, self.start, overlap, missed)
        assert fired.done is True
        assert fired.runs[1] == missed
        assert await self.one(store, missed.id) == missed

    @pytest.mark.parametrize("overlap", list(Overlap))
    async def test_finished_runs_do_not_overlap(self, store: Store, overlap: str) -> None:
        job = await self.earlier(store, State.RUNNING)
        old = await self.one(store, slot_run_id("job", self.at(-60)))
        await store.commit([transitions.failed(old, self.start, transitions.Failure("boom"))])
        [slot] = (await self.fire(store, job, self.start, overlap)).runs
        assert slot == self.slot(self.start)

    @pytest.mark.parametrize("source", [s for s in Source if s is not Source.SCHEDULE])
    async def test_only_scheduled_runs_of_the_job_overlap(
        self, store: Store, source: Source
    ) -> None:
        job = await self.put(store)
        await store.add([self.run("mine", source=source), self.slot(self.at(-60), "other")])
        [slot] = (await self.fire(store, job, self.start)).runs
        assert slot.state is State.PENDING

    def two_firings(self, job: Job, overlap: str) -> list[Firing]:
        """Two slots of one job that are caught up in one call."""
        slots = self.at(-120), self.at(-60)
        return [
            self.firing(replace(job, version=job.version + n), slot, overlap)
            for n, slot in enumerate(slots)
        ]

    async def test_two_slots_of_one_call_overlap(self, store: Store) -> None:
        """The second overlaps the first."""
        job = await self.put(store)
        first, second = await store.fire(self.two_firings(job, "skip"))
        assert (first.done, first.runs[0].state) == (True, State.PENDING)
        assert (second.done, second.runs[0].reason) == (True, "overlap")

    async def test_a_refused_firing_refuses_later_firings_of_its_job(self, store: Store) -> None:
        """An edit before the call may give the job the version that the second firing expects. For
        example it was paused."""
        job = await self.put(store)
        firings = self.two_firings(job, "allow")
        assert await put_job(store, replace(job, enabled=False, next_run_at=None))
        assert [fired.done for fired in await store.fire(firings)] == [False, False]
        assert (await self.read_job(store)).next_run_at is None
        assert await self.all_ids(store) == []

    async def test_firings_of_different_jobs_are_independent(self, store: Store) -> None:
        jobs = [await self.put(store, name) for name in ("a", "b", "c")]
        await drop_job(store, "b")
        firings = [replace(self.firing(job, self.start, "skip"), next_run_at=None) for job in jobs]
        assert [fired.done for fired in await store.fire(firings)] == [True, False, True]
        assert [run.job_id for run in (await store.find(RunQuery())).items] == ["c", "a"]
        assert (await self.read_job(store, "a")).next_run_at is None

    async def test_dependents_of_a_slot_are_added_waiting(self, store: Store) -> None:
        job = await self.put(store)
        follower = self.run(
            "follower",
            job_id="next",
            source=Source.AFTER,
            state=State.WAITING,
            after=(slot_run_id("job", self.start),),
        )
        fired = await self.fire(store, job, self.start, "skip", follower)
        assert fired.runs == (self.slot(self.start), follower)
        assert await self.one(store, "follower") == follower
        assert await self.claim_ids(store) == [slot_run_id("job", self.start)]

    async def test_a_missed_slot_leaves_a_skipped_run(self, store: Store) -> None:
        job = await self.earlier(store, State.RUNNING)
        record = self.slot(
            self.start, state=State.SKIPPED, finished_at=self.start, reason="misfire"
        )
        firing = self.firing(job, self.start, "replace")
        [fired] = await store.fire([replace(firing, runs=(record,), last_run_at=None)])
        assert fired.runs == (record,)
        old = await self.one(store, slot_run_id("job", self.at(-60)))
        assert old.cancel_requested is False


class JobListTests(Suite):
    async def listed(self, store: Store, **query: Any) -> tuple[list[str], int | None]:
        page: Page[Any] = await store.jobs(JobQuery(**query))
        return [job.id for job in page.items], page.total

    async def test_jobs_are_listed_by_page_number_with_their_total(self, store: Store) -> None:
        for name in ("c", "a", "e", "b", "d"):
            await put_job(store, self.job(name))
        assert await self.listed(store) == (["a", "b", "c", "d", "e"], None)
        pages = [
            await self.listed(store, offset=offset, limit=2, with_total=True)
            for offset in (0, 2, 4, 6)
        ]
        assert pages == [(["a", "b"], 5), (["c", "d"], 5), (["e"], 5), ([], 5)]

    async def test_jobs_are_found_by_part_of_the_id_or_the_description(self, store: Store) -> None:
        await put_job(store, self.job("Mail.daily", description="Sends (all) letters"))
        await put_job(store, self.job("report", description="100% of the DAILY ärger"))
        await put_job(store, self.job("other"))
        assert await self.listed(store, text="daily", with_total=True) == (
            ["Mail.daily", "report"],
            2,
        )
        assert (await self.listed(store, text="(ALL)"))[0] == ["Mail.daily"]
        assert (await self.listed(store, text="100%"))[0] == ["report"]
        assert (await self.listed(store, text="ÄRGER"))[0] == ["report"]
        assert (await self.listed(store, text=".*"))[0] == []
        assert (await self.listed(store, text="daily", tag="none", with_total=True)) == ([], 0)

    async def test_jobs_are_listed_by_queue(self, store: Store) -> None:
        for name, queue in (("a", "default"), ("b", "mail"), ("c", "mail.more"), ("d", 'q"\\ü:')):
            policy = Policy.make(queue=queue, concurrency=1, concurrency_key='"queue": "none"')
            await put_job(store, self.job(name, policy=policy))
        assert await self.listed(store, queue="mail", with_total=True) == (["b"], 1)
        assert (await self.listed(store, queue="default"))[0] == ["a"]
        assert (await self.listed(store, queue='q"\\ü:'))[0] == ["d"]
        assert await self.listed(store, queue="none", with_total=True) == ([], 0)
        assert (await self.listed(store, queue="mail", text="B", enabled=True))[0] == ["b"]

    async def test_jobs_are_listed_in_another_order(self, store: Store) -> None:
        """Those without a value come last, those with equal values by id, both ways."""
        for name, at in (("a", 2), ("b", None), ("c", 1), ("d", None), ("e", 2)):
            when = None if at is None else self.at(at)
            moved = self.job(name, next_run_at=when, last_run_at=when, enabled=name != "e")
            await put_job(store, moved)
        for order in ("next_run_at", "last_run_at"):
            assert (await self.listed(store, order=order))[0] == ["c", "a", "e", "b", "d"]
            back = await self.listed(store, order=order, descending=True, with_total=True)
            assert back == (["a", "e", "c", "b", "d"], 5)
            pages = [
                (await self.listed(store, order=order, descending=True, limit=2, offset=at))[0]
                for at in (0, 2, 4, 6)
            ]
            assert pages == [["a", "e"], ["c", "b"], ["d"], []]
        assert (await self.listed(store, descending=True))[0] == ["e", "d", "c", "b", "a"]
        on = await self.listed(store, order="next_run_at", enabled=True, with_total=True)
        assert on == (["c", "a", "b", "d"], 4)
        assert await self.listed(store, enabled=False, with_total=True) == (["e"], 1)

    async def test_jobs_are_listed_by_when_they_were_edited(self, store: Store) -> None:
        for name, at in (("a", 2), ("b", 3), ("c", 1)):
            await put_job(store, self.job(name, updated_at=self.at(at)))
        assert (await self.listed(store, order="updated_at"))[0] == ["c", "a", "b"]
        back = (await self.listed(store, order="updated_at", descending=True))[0]
        assert back == ["b", "a", "c"]

    async def test_only_a_list_by_id_has_a_cursor(self, store: Store) -> None:
        for name in ("a", "b", "c"):
            await put_job(store, self.job(name, next_run_at=self.at(1)))
        assert (await store.jobs(JobQuery(limit=2))).cursor is not None
        for query in (
            JobQuery(limit=2, descending=True),
            JobQuery(limit=2, order="next_run_at"),
            JobQuery(limit=2, order="updated_at", descending=True),
        ):
            assert (await store.jobs(query)).cursor is None
