"""Real workers on real servers that are killed, partitioned or have wrong clocks; chaos/ runs
more."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
from pymongo import MongoClient, WriteConcern

from mainspring.stores.mongodb import commit
from mainspring.stores.mongodb.database import Database
from tests.support.fault_scenarios import failover, orphaned_slots, skewed
from tests.support.mongodb.elections import kill_primary, step_down
from tests.support.mongodb.every_operation import do_everything
from tests.support.mongodb.majority_loss import KINDS, lose_unreplicated_writes
from tests.support.mongodb.query_plans import SentCommands
from tests.support.scenario_worker import PLANTED
from tests.support.servers.mongodb import ReplicaSet, with_database
from tests.support.servers.server import Document


@pytest.mark.thorough
async def test_a_primary_that_is_killed_and_one_that_steps_down(tmp_path: Path) -> None:
    with ReplicaSet() as servers:
        account = await failover(
            tmp_path,
            with_database(servers.url, "jobs"),
            [partial(kill_primary, servers), partial(step_down, servers)],
        )
    assert account.acknowledged > 50


@pytest.mark.thorough
async def test_writes_acknowledged_by_a_majority_survive_the_loss_of_the_primary(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ReplicaSet(election_timeout=10) as servers:
        acknowledged, lost = await lose_unreplicated_writes(servers)
        assert acknowledged == BEFORE_THE_CUT
        assert lost == {}
        # The same with one server's word for it: the test would notice, whatever was written.
        acknowledged, lost = await lose_unreplicated_writes(servers, "&w=1")
        assert all(acknowledged[kind] > BEFORE_THE_CUT[kind] for kind in KINDS)
        # What came before the cut may be lost too: one server's word for it is no more.
        assert lost >= acknowledged - Counter(BEFORE_THE_CUT)
        # And where that slipped into completions alone.
        monkeypatch.setattr(commit, "_send", _one_servers_word(commit._send))
        acknowledged, lost = await lose_unreplicated_writes(servers)
        assert set(lost) == {"ended", "cancelled"}


BEFORE_THE_CUT = {"added": 60, "claimed": 40, "ended": 10, "cancelled": 2, "put": 2, "fired": 1}


def _one_servers_word(send: Callable[..., Awaitable[int]]) -> Callable[..., Awaitable[int]]:
    """A store that sends these writes with `w: 1`."""

    async def sent(db: Database, items: Sequence[commit.EncodedChange]) -> int:
        handle = db.handle.with_options(write_concern=WriteConcern(1))
        return await send(dataclasses.replace(db, handle=handle), items)

    return sent


async def test_killed_leaders_lose_and_repeat_no_slot(tmp_path: Path, database_url: str) -> None:
    assert await orphaned_slots(tmp_path, database_url, kills=2) > 5


@pytest.mark.thorough
async def test_workers_with_wrong_clocks(tmp_path: Path, database_url: str) -> None:
    assert await skewed(tmp_path, database_url) == []


@pytest.mark.thorough
async def test_a_store_that_trusts_the_workers_clocks_would_be_noticed(
    tmp_path: Path, database_url: str
) -> None:
    assert await skewed(tmp_path, database_url, planted="own-clock")


@pytest.mark.thorough
async def test_no_write_uses_the_clock_of_a_router(
    sharded_url: str, database_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a write or an aggregate that a router passes on, `$$NOW` is the router's; in a find it is
    the shard's. chaos/test_skew.py runs workers through routers whose clocks are wrong."""
    url = with_database(sharded_url, database_name)
    sent = await _sent_by_every_operation(url, monkeypatch)
    assert _commands_with("$$NOW", sent) == {"find"}
    assert _commands_with("$currentDate", sent) == {"update"}


@pytest.mark.thorough
async def test_a_store_that_trusts_a_routers_clock_would_be_noticed(
    sharded_url: str, database_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = with_database(sharded_url, database_name)
    monkeypatch.setattr(Database, "now", Database.now)  # put back when the test has ended
    PLANTED["routers-clock"](url)
    sent = await _sent_by_every_operation(url, monkeypatch)
    assert _commands_with("$$NOW", sent) == {"aggregate", "find"}


async def _sent_by_every_operation(url: str, monkeypatch: pytest.MonkeyPatch) -> SentCommands:
    sent = SentCommands.record(monkeypatch)
    with MongoClient[Document](url) as client:
        client.get_default_database().create_collection("effects")
    await do_everything(url)
    return sent


def _commands_with(text: str, sent: SentCommands) -> set[str]:
    return {next(iter(one)) for one in sent.commands if text in str(one)}
