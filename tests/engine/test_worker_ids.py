"""Ids of workers: which node, which process, which start of the machine."""

from __future__ import annotations

import random

import pytest

from mainspring.engine.worker_ids import host_was_restarted, make_worker_id, process_is_gone

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
