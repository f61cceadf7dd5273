"""Jobs that follow others: chains, diamonds, failures on the way, results handed on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mainspring import RunContext, Scheduler, State
from mainspring.core import transitions
from mainspring.core.model import replace
from mainspring.engine import follower_releaser
from mainspring.errors import InvalidInput, MainspringError
from mainspring.stores.memory import MemoryStore
from tests.support.engine import EventRecorder, ended
from tests.support.scheduler_fixtures import Make


def diamond(scheduler: Scheduler, fail: str = "") -> list[tuple[str, dict[str, Any]]]:
    ran: list[tuple[str, dict[str, Any]]] = []

    def step(name: str, **policy: Any) -> None:
        @scheduler.job(id=name, **policy)
        async def body(ctx: RunContext) -> str:
            ran.append((name, dict(ctx.results)))
            if name == fail:
                raise RuntimeError(name)
            return name.upper()

    step("extract")
    step("left", after="extract")
    step("right", after=["extract"])
    step("join", after=("left", "right"))
    step("report", after="join")
    return ran


async def test_a_diamond_runs_in_order_and_hands_results_on(make: Make) -> None:
    scheduler = make()
    ran = diamond(scheduler)
    async with scheduler:
        root = await scheduler.trigger("extract")
        last = f"report@{root.id}"
        assert (await scheduler.get_run(last)).state is State.WAITING
        await scheduler.wait(last, 10)
    names = [name for name, _ in ran]
    assert names[0] == "extract"
    assert sorted(names[1:3]) == ["left", "right"]
    assert names[3:] == ["join", "report"]
    results = dict(ran)
    assert results["left"] == {"extract": "EXTRACT"}
    assert results["join"] == {"left": "LEFT", "right": "RIGHT"}
    assert results["report"] == {"join": "JOIN"}


async def test_what_comes_after_a_failure_is_skipped(make: Make) -> None:
    scheduler = make()
    recorder = EventRecorder(scheduler)
    ran = diamond(scheduler, fail="left")
    async with scheduler:
        root = await scheduler.trigger("extract")
        done = {
            name: await scheduler.wait(f"{name}@{root.id}", 10)
            for name in ("left", "right", "join", "report")
        }
        await recorder.until("run.skipped", 2)
    assert sorted(name for name, _ in ran) == ["extract", "left", "right"]
    assert done["left"].state is State.FAILED
    assert done["right"].state is State.SUCCEEDED
    for name in ("join", "report"):
        assert (done[name].state, done[name].reason) == (State.SKIPPED, "upstream failed")


async def test_scheduled_workflows_share_their_slot(make: Make) -> None:
    scheduler = make()

    @scheduler.job("300ms")
    async def tick() -> None: ...

    @scheduler.job(after=tick)
    async def tock() -> None: ...

    recorder = EventRecorder(scheduler)
    async with scheduler:
        event = await recorder.until("run.succeeded", where=lambda e: e.job_id == "tock")
        await scheduler.pause_job("tick")
        run = event.run
        assert run is not None
        upstream = await scheduler.get_run(run.id.replace("tock", "tick"))
        assert run.scheduled_at == upstream.scheduled_at


async def test_cycles_are_refused(make: Make) -> None:
    scheduler = make()
    with pytest.raises(InvalidInput, match="cannot come after itself"):
        scheduler.job(id="a", after="a")(_nothing)
    scheduler.job(id="a", after="c")(_nothing)

    @scheduler.job(after="a")
    async def b() -> None: ...

    @scheduler.job(after="b")
    async def c() -> None: ...

    with pytest.raises(InvalidInput, match=r"would come after itself \(a → b → c → a\): none"):
        await scheduler.start()


async def test_cycles_made_through_the_api_are_refused(make: Make) -> None:
    scheduler = make()
    scheduler.job(id="work")(_nothing)
    async with scheduler:
        await scheduler.add_job("one", handler="work")
        await scheduler.add_job("two", handler="work", after="one")
        await scheduler.add_job("three", handler="work", after="two")
        with pytest.raises(InvalidInput, match="one → two → three → one"):
            await scheduler.update_job("one", after="three")
        assert (await scheduler.get_job("one")).policy.after == ()

        @scheduler.job(id="late", after="three")
        async def late() -> None: ...

        await scheduler.get_job("late")


async def test_an_unknown_name_is_refused(make: Make) -> None:
    scheduler = make()
    scheduler.job(id="work")(_nothing)
    async with scheduler:
        with pytest.raises(InvalidInput, match="after 'wrok', and there is no such job"):
            await scheduler.add_job("then", handler="work", after="wrok")
        await scheduler.add_job("then", handler="work", after="work")
        with pytest.raises(InvalidInput, match="there is no such job"):
            await scheduler.update_job("then", after=["work", "wrok"])
        assert [job.id for job in (await scheduler.list_jobs()).items] == ["then", "work"]


async def test_an_unknown_name_in_code_is_refused_at_the_start(make: Make) -> None:
    scheduler = make()
    scheduler.job(id="then", after="first")(_nothing)
    with pytest.raises(InvalidInput, match="'then' comes after 'first', and there is no such job"):
        await scheduler.start()
    scheduler.job(id="first")(_nothing)  # in any order, as long as it is there at the start
    async with scheduler:
        await scheduler.get_job("then")
    other = make()
    other.job(id="last", after="then")(_nothing)  # another program's
    async with other:
        await other.get_job("last")


async def test_a_join_of_two_roots_is_refused(make: Make) -> None:
    """One instance has one root: what needs two of them could never run."""
    scheduler = make()
    for name, after in {"a": (), "b": (), "x": ("a",), "y": ("b",)}.items():
        scheduler.job(id=name, after=after)(_nothing)
    async with scheduler:
        for apart in (["a", "b"], ["x", "y"], ["x", "b"]):
            with pytest.raises(InvalidInput, match=r"different workflows \(a, b\): no workflow"):
                await scheduler.add_job("join", handler="a", after=apart)
        await scheduler.add_job("split", handler="a", after="a")
        await scheduler.add_job("join", handler="a", after=["x", "split"])
        with pytest.raises(InvalidInput, match="'join' comes after jobs of different workflows"):
            await scheduler.update_job("split", after="b")
    scheduler.job(id="joined", after=["x", "y"])(_nothing)
    with pytest.raises(InvalidInput, match="different workflows"):
        await scheduler.start()


async def _nothing() -> None: ...


async def test_a_paused_follower_is_left_out(make: Make) -> None:
    scheduler = make()
    ran = diamond(scheduler)
    async with scheduler:
        await scheduler.pause_job("left")
        root = await scheduler.trigger("extract")
        await ended(scheduler, root)
        await scheduler.wait(f"report@{root.id}", 10)
        await asyncio.sleep(0)
    assert [name for name, _ in ran] == ["extract", "right", "join", "report"]


async def test_a_follower_that_was_left_by_a_dead_process_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that dies between the end of a run and the look for its followers."""
    monkeypatch.setattr(follower_releaser, "WAITING_SWEEP", 0.2)
    store = MemoryStore()
    scheduler = Scheduler(store)

    @scheduler.job()
    async def step() -> None: ...

    async with scheduler:
        root = await scheduler.enqueue("step", delay="1h")
        behind = await scheduler.enqueue("step", after=[root.id])
        ended = transitions.cancelled(root, await store.now(), "by another process")
        over = replace(ended, set={**ended.set, "state": State.SUCCEEDED})
        assert await store.commit([over]) == [True]
        assert (await scheduler.wait(behind.id, 20)).state is State.SUCCEEDED


async def test_a_job_that_runs_after_failures_learns_what_failed(make: Make) -> None:
    scheduler = make()

    @scheduler.job
    async def extract() -> int:
        return 3

    @scheduler.job(after=extract)
    async def load() -> None:
        raise OSError("disk full")

    @scheduler.job(after=[extract, load], after_failure="run")
    async def report(ctx: RunContext) -> dict[str, Any]:
        failed = {name: run.error for name, run in ctx.results.failed.items()}
        return {"results": dict(ctx.results), "failed": failed}

    async with scheduler:
        root = await scheduler.trigger("extract")
        done = await scheduler.wait(f"report@{root.id}", 10)
    assert done.result == {"results": {"extract": 3}, "failed": {"load": "OSError: disk full"}}


async def test_an_enqueued_run_may_run_after_failures_although_its_job_does_not(
    make: Make,
) -> None:
    scheduler = make()

    @scheduler.job
    async def part(n: int) -> int:
        if n % 2:
            raise ValueError("odd")
        return n

    @scheduler.job
    async def total(ctx: RunContext) -> list[Any]:
        failed = [run.run_id for run in ctx.results.failed_runs]
        return [[run.result for run in ctx.results.runs], failed, list(ctx.results.failed)]

    async with scheduler:
        parts = await scheduler.enqueue_many("part", [{"n": n} for n in range(4)])
        ids = [run.id for run in parts]
        run = await scheduler.enqueue("total", after=ids, after_failure="run")
        skipped = await scheduler.enqueue("total", after=ids)
        done = await scheduler.wait(run.id, 10)
        assert done.result == [[0, None, 2, None], [ids[1], ids[3]], ["part"]]
        assert (await scheduler.wait(skipped.id, 10)).state is State.SKIPPED


@pytest.mark.parametrize("bulk", [False, True], ids=["one", "bulk"])
async def test_a_retry_revives_what_its_failure_skipped(make: Make, bulk: bool) -> None:
    scheduler = make()
    broken = True

    @scheduler.job
    async def extract() -> str:
        if broken:
            raise OSError("disk full")
        return "rows"

    @scheduler.job(after=extract)
    async def load(ctx: RunContext) -> str:
        return f"loaded {ctx.results['extract']}"

    @scheduler.job(after=load)
    async def report(ctx: RunContext) -> str:
        return f"reported {ctx.results['load']}"

    async with scheduler:
        root = await scheduler.trigger("extract")
        other = await scheduler.trigger("extract")
        last = f"report@{root.id}"
        for run_id in (last, f"report@{other.id}"):
            assert (await scheduler.wait(run_id, 10)).reason == "upstream failed"
        broken = False
        if bulk:
            assert (await scheduler.retry_runs([root.id])).done == 1
        else:
            await scheduler.retry(root.id)
        assert (await scheduler.wait(last, 10)).result == "reported loaded rows"
        assert (await scheduler.get_run(f"report@{other.id}")).state is State.SKIPPED


async def test_a_chain_runs_in_order_and_stops_at_a_failure(make: Make) -> None:
    scheduler = make()
    ran: list[str] = []

    @scheduler.job
    async def first(word: str = "?") -> str:
        ran.append(f"first {word}")
        return word

    @scheduler.job
    async def second(ctx: RunContext) -> str:
        ran.append(f"second {ctx.results['first']}")
        raise OSError("disk full")

    @scheduler.job
    async def third() -> None:
        ran.append("third")

    async with scheduler:
        links = (("first", {"word": "a"}), second, "third")
        runs = await scheduler.chain(*links)
        assert [run.job_id for run in runs] == ["first", "second", "third"]
        assert (await scheduler.wait(runs[-1].id, 10)).state is State.SKIPPED
        picture = (await scheduler.workflow(runs[0].id)).text()
        bounded = await scheduler.workflow(runs[0].id, searched=1)
        unknown = await scheduler.workflow(runs[0].id, searched=0)
        with pytest.raises(InvalidInput, match="searched is a number of runs"):
            await scheduler.workflow(runs[0].id, searched=-1)
        runs = await scheduler.chain(*links, after_failure="run")
        assert (await scheduler.wait(runs[-1].id, 10)).state is State.SUCCEEDED
    assert ran == ["first a", "second a", "first a", "second a", "third"]
    assert ([node.job_id for node in unknown.nodes], unknown.complete) == (["first"], False)
    assert not bounded.complete
    assert picture.splitlines() == [
        "first  succeeded",
        "└─ second  failed  (OSError: disk full)",
        "   └─ third  skipped  (upstream failed)",
    ]


async def test_a_chain_with_a_wrong_link_queues_nothing(make: Make) -> None:
    scheduler = make()

    @scheduler.job
    async def first(word: str) -> str:
        return word

    async with scheduler:
        for links in (
            (),
            (("first", {"word": "a"}), "nobody"),
            (("first", {"word": "a"}), ("first", {"wrod": "a"})),
            (("first", {"word": "a"}, 3),),
        ):
            with pytest.raises(MainspringError):
                await scheduler.chain(*links)
        with pytest.raises(InvalidInput, match="after_failure is one of skip, run, not 'stop'"):
            await scheduler.chain(("first", {"word": "a"}), after_failure="stop")  # type: ignore[arg-type]
        assert (await scheduler.list_runs()).items == []


@pytest.mark.parametrize("in_bulk", [True, False], ids=["in bulk", "one by one"])
async def test_a_cancelled_workflow_that_is_tried_again_keeps_its_order(
    make: Make, in_bulk: bool
) -> None:
    scheduler = make()
    order: list[str] = []
    may_end = asyncio.Event()
    began = asyncio.Event()

    @scheduler.job()
    async def extract() -> int:
        order.append("extract begins")
        began.set()
        await may_end.wait()
        order.append("extract ends")
        return 3

    @scheduler.job(after="extract")
    async def load(ctx: RunContext) -> int:
        order.append("load")
        return int(ctx.results["extract"]) * 2

    @scheduler.job(after=["extract", "load"], after_failure="run")
    async def report(ctx: RunContext) -> str:
        order.append("report")
        return f"{ctx.results['load']} rows"

    async with scheduler:
        root = await scheduler.trigger("extract")
        names = [f"report@{root.id}", f"load@{root.id}", root.id]
        await began.wait()
        await scheduler.cancel_runs()
        for name in names:
            assert (await scheduler.wait(name, 10)).state is State.CANCELLED
        order.clear()
        if in_bulk:
            assert (await scheduler.retry_runs(state="cancelled")).done == 3
        else:  # the root first
            for name in reversed(names):
                await scheduler.retry(name)
        assert (await scheduler.get_run(names[1])).state is State.WAITING
        may_end.set()
        last = await scheduler.wait(names[0], 10)
        assert (last.state, last.result) == (State.SUCCEEDED, "6 rows")
    assert order == ["extract begins", "extract ends", "load", "report"]
