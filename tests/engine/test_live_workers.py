"""Which workers are alive, and their ids: which node, which process, which start of the machine."""

from __future__ import annotations

import asyncio
import os
import random
import sys

import pytest

from mainspring import Client, Scheduler, __version__
from mainspring.engine.live_workers import (
    host_was_restarted,
    make_worker_id,
    process_is_gone,
)
from mainspring.stores.memory import MemoryStore
from mainspring.testing import VirtualClock
from tests.support.engine import on_virtual_time

ME = "web-1:300:1111aaaa555500000003"


def test_workers_of_one_process_differ_and_share_their_boot() -> None:
    one, two = make_worker_id(random.Random(1)), make_worker_id(random.Random(2))
    assert one != two
    assert not host_was_restarted(one, two)


def test_a_worker_is_named_by_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAINSPRING_NODE", "rack 7:é")
    assert make_worker_id(random.Random(1)).startswith("rack-7--:")


@pytest.mark.parametrize(
    ("worker", "restarted"),
    [
        ("web-1:100:1111bbbb666600000001", True),
        ("web-1:100:1111aaaa555500000001", False),
        ("web-2:100:1111bbbb666600000001", False),  # another host: nothing is known of it
        ("web-1:100:2222bbbb666600000001", False),  # another machine of the same name
        ("web-1:100:11110000666600000001", False),  # it did not know its own boot
        ("dead", False),
        (None, False),
    ],
)
def test_a_restart_is_known_on_the_same_host_only(worker: str | None, restarted: bool) -> None:
    assert host_was_restarted(worker, ME) is restarted


def test_a_process_on_this_host_is_gone_if_its_number_is_free_or_was_used_again() -> None:
    mine = make_worker_id(random.Random(1))
    host, pid, end = mine.split(":")
    assert not process_is_gone(mine, mine)
    assert process_is_gone(f"{host}:{pid}:{end[:-1]}x", mine)
    assert process_is_gone(f"{host}:{2**30}:{end}", mine)


def test_nothing_is_known_of_a_process_in_another_container_or_on_another_machine() -> None:
    """Even if it has the same host name."""
    mine = make_worker_id(random.Random(1))
    host, pid, end = mine.split(":")
    assert not process_is_gone(f"{host}:{pid}:{end[:8]}zzzz{end[12:]}", mine)
    assert not process_is_gone(f"{host}:{2**30}:{end[:8]}zzzz{end[12:]}", mine)
    assert not process_is_gone(f"{host}:{2**30}:zzzzzzzzzzzz{end[12:]}", mine)
    assert not process_is_gone("dead", mine)


@on_virtual_time()
async def test_workers_are_listed_with_what_they_say_of_themselves() -> None:
    clock = VirtualClock()
    store = MemoryStore(clock)
    first = Scheduler(store, clock=clock, inline=True, queues=["default", "mail"], workers=7)
    async with first:
        await asyncio.sleep(1)
        async with Scheduler(store, clock=clock, inline=True, workers=3):
            await asyncio.sleep(1)
            async with Client(store, clock=clock, inline=True) as client:
                workers = await client.list_workers()
    one, two = sorted(workers, key=lambda worker: worker.capacity or 0)
    assert (one.capacity, two.capacity, two.running) == (3, 7, 0)
    assert (one.queues, two.queues) == (None, frozenset({"default", "mail"}))
    assert (one.is_leader, two.is_leader) == (False, True)
    assert one.node == one.id.partition(":")[0]
    assert (one.pid, one.version) == (os.getpid(), __version__)
    assert one.started_at is not None
    assert one.seen_at is not None
    assert (one.memory or 0) > 1_000_000 or sys.platform != "linux"
