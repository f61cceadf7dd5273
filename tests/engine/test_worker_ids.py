"""Ids of workers: which node, which process, which start of the machine."""

from __future__ import annotations

import random

import pytest

from mainspring.engine.worker_ids import host_was_restarted, make_worker_id, process_is_gone

ME = "web-1:300:aaaa00000003"


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
        ("web-1:100:bbbb00000001", True),
        ("web-1:100:aaaa00000001", False),
        ("web-2:100:bbbb00000001", False),  # another host: nothing is known of it
        ("web-1:100:000000000001", False),  # it did not know its own boot
        ("web-1:100:00000001", False),  # of an earlier version
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
    assert not process_is_gone(f"another:{2**30}:{end}", mine)
