"""Jobs that follow others: chains, diamonds, failures on the way, results handed on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mainspring import RunContext, Scheduler, State
from mainspring.errors import InvalidInput
from tests.engine.conftest import Make
from tests.engine.kit import Heard, ended


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
    heard = Heard(scheduler)
    ran = diamond(scheduler, fail="left")
    async with scheduler:
        root = await scheduler.trigger("extract")
        done = {
            name: await scheduler.wait(f"{name}@{root.id}", 10)
            for name in ("left", "right", "join", "report")
        }
        await heard.until("run.skipped", 2)
    assert sorted(name for name, _ in ran) == ["extract", "left", "right"]
    assert done["left"].state is State.FAILED
    assert done["right"].state is State.SUCCEEDED
    for name in ("join", "report"):
        assert (done[name].state, done[name].reason) == (State.SKIPPED, "upstream failed")


async def test_each_instance_is_its_own(make: Make) -> None:
    scheduler = make()
    ran = diamond(scheduler)
    async with scheduler:
        roots = [await scheduler.enqueue("extract") for _ in range(3)]
        for root in roots:
            await scheduler.wait(f"report@{root.id}", 10)
        assert len((await scheduler.list_runs(job="join")).items) == 3
    assert len(ran) == 15


async def test_a_retry_on_the_way_is_waited_for(make: Make) -> None:
    scheduler = make()

    @scheduler.job(retries=1, retry_delay="50ms")
    async def shaky(ctx: RunContext) -> int:
        if ctx.attempt == 1:
            raise RuntimeError
        return 5

    @scheduler.job(after=shaky)
    async def then(ctx: RunContext) -> int:
        return int(ctx.results["shaky"]) + 1

    async with scheduler:
        root = await shaky.enqueue()
        done = await scheduler.wait(f"then@{root.id}", 10)
    assert done.result == 6


async def test_scheduled_workflows_share_their_slot(make: Make) -> None:
    scheduler = make()

    @scheduler.job("300ms")
    async def tick() -> None: ...

    @scheduler.job(after=tick)
    async def tock() -> None: ...

    heard = Heard(scheduler)
    async with scheduler:
        event = await heard.until("run.succeeded", where=lambda e: e.job_id == "tock")
        await scheduler.pause_job("tick")
        run = event.run
        assert run is not None
        upstream = await scheduler.get_run(run.id.replace("tock", "tick"))
        assert run.scheduled_at == upstream.scheduled_at


@pytest.mark.parametrize("loop", [["a"], ["b"]])
async def test_circles_are_refused(make: Make, loop: list[str]) -> None:
    scheduler = make()
    if loop == ["a"]:
        with pytest.raises(InvalidInput, match="cannot come after itself"):
            scheduler.job(id="a", after="a")(_nothing)
        return
    scheduler.job(id="a", after="c")(_nothing)

    @scheduler.job(after="a")
    async def b() -> None: ...

    @scheduler.job(after="b")
    async def c() -> None: ...

    with pytest.raises(InvalidInput, match="comes after itself, by way of others"):
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
