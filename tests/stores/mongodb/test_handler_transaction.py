"""Effect-once on real servers: sessions of the driver, conflicts, lost answers, routers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pymongo import AsyncMongoClient, MongoClient
from pymongo.errors import AutoReconnect

from mainspring import RunContext, Scheduler, State
from mainspring.core.model import Outcome, Run
from mainspring.stores.mongodb import MongoStore
from mainspring.stores.mongodb.handler_transaction import MongoTransaction
from tests.support.doc_examples import DOCS, blocks
from tests.support.effect_counts import effect_test
from tests.support.engine import EventRecorder
from tests.support.servers.mongodb import with_database
from tests.support.servers.server import Document

PAGE = DOCS / "how-to" / "write-effects-once.md"


@pytest.fixture(params=["replica set", pytest.param("sharded", marks=pytest.mark.thorough)])
def url(request: pytest.FixtureRequest, database_name: str) -> str:
    """A database with a collection of the user's, spread over the shards where there are some."""
    fixture = request.param.replace(" ", "_") + "_url"
    url: str = request.getfixturevalue(fixture)
    with MongoClient[Document](url) as client:
        if request.param == "sharded":
            key = {"_id": "hashed"}
            client.admin.command("shardCollection", f"{database_name}.effects", key=key)
            client.admin.command("shardCollection", f"{database_name}.mainspring_runs", key=key)
        else:
            client[database_name].create_collection("effects")
        client[database_name].create_collection("counters")
    return with_database(url, database_name)


def effects(url: str) -> list[str]:
    with MongoClient[Document](url) as client:
        return sorted(one["name"] for one in client.get_default_database().effects.find({}))


async def write(session: Any, name: str) -> None:
    """Sessions belong to the client that made them; it is there to be asked for collections."""
    database = session.client.get_default_database()
    await database.effects.insert_one({"name": name}, session=session)


async def done(scheduler: Scheduler, run: Run) -> Run:
    return await scheduler.wait(run.id, 60)


async def test_a_session_belongs_to_the_client_that_was_given_to_the_store(url: str) -> None:
    """And that client stays open when the store closes."""
    database = url.partition("?")[0].rpartition("/")[2]
    async with AsyncMongoClient[Document](url) as client:
        effects = client[database].effects
        await effects.insert_one({"name": "before"})
        scheduler = Scheduler(MongoStore(client=client, database=database))

        @scheduler.job(delivery="effect_once")
        async def send(ctx: RunContext) -> None:
            async with ctx.transaction() as session:
                await effects.insert_one({"name": "mine"}, session=session)

        @scheduler.job(delivery="effect_once")
        def send_plainly(ctx: RunContext) -> None:
            with ctx.transaction() as session:
                own = session.client[database].effects
                own.insert_one({"name": "plain"}, session=session)

        async with scheduler:
            for job in (send, send_plainly):
                assert (await done(scheduler, await job.enqueue())).state is State.SUCCEEDED
        names = [one["name"] async for one in effects.find({})]
        assert sorted(names) == ["before", "mine", "plain"]


async def test_those_who_write_the_same_document_all_come_through(url: str) -> None:
    """MongoDB aborts the second at once: it is tried again, and no retry is used up."""
    scheduler = Scheduler(url, workers=8)

    @scheduler.job(delivery="effect_once")
    async def count(ctx: RunContext) -> None:
        async with ctx.transaction() as session:
            counters = session.client.get_default_database().counters
            await counters.update_one(
                {"_id": "all"}, {"$inc": {"count": 1}}, upsert=True, session=session
            )
            await write(session, ctx.run_id)

    async with scheduler:
        runs = await count.enqueue_many([{}] * 24)
        ended = [await done(scheduler, run) for run in runs]
    assert {(run.state, run.failures) for run in ended} == {(State.SUCCEEDED, 0)}
    assert effects(url) == sorted(run.id for run in runs)
    with MongoClient[Document](url) as client:
        [counter] = client.get_default_database().counters.find({})
    assert counter["count"] == 24
    collided = [a for run in ended for a in run.attempts if a.outcome is Outcome.RELEASED]
    assert all("was rolled back" in str(attempt.error) for attempt in collided)


@contextmanager
def commits(patch: pytest.MonkeyPatch, *story: str) -> Iterator[list[str]]:
    """What becomes of the first commits: `lost` are done and their answers lost, `refused` never
    get there. Neither can be told from the other by who sent them."""
    whole = MongoTransaction._commit
    left = list(story)

    async def commit(self: MongoTransaction) -> None:
        fate = left.pop(0) if left else ""
        if fate == "refused":
            raise AutoReconnect("the connection broke")
        await whole(self)
        if fate == "lost":
            raise AutoReconnect("the connection broke")

    patch.setattr(MongoTransaction, "_commit", commit)
    yield left


@pytest.mark.parametrize("fate", ["lost", "refused"])
async def test_a_commit_whose_answer_was_lost_is_found(
    url: str, fate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = Scheduler(url)
    told = []

    @scheduler.job(delivery="effect_once", on_success=lambda ctx, result: told.append(result))
    async def send(ctx: RunContext) -> None:
        async with ctx.transaction() as session:
            await write(session, f"attempt {ctx.attempt}")
            ctx.result = ctx.attempt

    recorder = EventRecorder(scheduler)
    with commits(monkeypatch, fate):
        async with scheduler:
            run = await done(scheduler, await send.enqueue())
            await recorder.until("run.succeeded")
    attempt = 1 if fate == "lost" else 2
    assert (run.state, run.attempt, run.failures) == (State.SUCCEEDED, attempt, 0)
    assert (effects(url), told) == ([f"attempt {attempt}"], [attempt])
    assert len(recorder.of("run.succeeded")) == 1


def test_the_page_runs_as_it_stands(database_url: str, tmp_path: Path) -> None:
    [block] = [one.text for one in blocks(PAGE) if one.kind == "mongodb"]
    assert block.count("mongodb://db1,db2,db3/shop?replicaSet=rs") == 1
    script = tmp_path / "page.py"
    script.write_text(block.replace("mongodb://db1,db2,db3/shop?replicaSet=rs", database_url))
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


_KILLED = """
import asyncio, sys
from mainspring import RunContext, Scheduler
from mainspring.stores.mongodb.handler_transaction import MongoTransaction
from tests.stores.mongodb.test_handler_transaction import define_send_and_steps

async def stand_still(self):
    print("locked", flush=True)
    await asyncio.Event().wait()

MongoTransaction._commit = stand_still
scheduler = Scheduler(sys.argv[1], lease="3s", workers=10)
define_send_and_steps(scheduler)
scheduler.run()
"""


def define_send_and_steps(scheduler: Scheduler) -> None:
    """A job that writes in a transaction, and one whose first attempt never ends."""

    @scheduler.job(delivery="effect_once")
    async def send(ctx: RunContext) -> None:
        async with ctx.transaction() as session:
            await write(session, "sent")

    @scheduler.job()
    async def step(ctx: RunContext) -> None:
        if ctx.attempt == 1:
            sys.stdout.write("began\n")
            sys.stdout.flush()
            await asyncio.Event().wait()


async def test_a_worker_killed_in_its_transaction_holds_up_no_rescue(url: str) -> None:
    """The server would keep the run's document locked for a minute, and with it every rescue that
    is sent in one batch with its own."""
    scheduler = Scheduler(url, lease="3s")
    define_send_and_steps(scheduler)
    async with Scheduler(url, workers=0) as producer:
        define_send_and_steps(producer)
        steps = await producer.enqueue_many("step", [None] * 4)
        sent = await producer.enqueue("send")
    victim = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _KILLED, url, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert victim.stdout is not None
        lines = [await victim.stdout.readline() for _ in range(5)]
        assert sorted(lines) == [b"began\n"] * 4 + [b"locked\n"]
    finally:
        victim.kill()
        await victim.wait()
    recorder = EventRecorder(scheduler)
    async with scheduler, asyncio.timeout(50):  # the server's own limit is 60 s, and more
        ended = [await done(scheduler, run) for run in (sent, *steps)]
        await recorder.until("run.rescued", 5)
    assert {(run.state, run.attempt) for run in ended} == {(State.SUCCEEDED, 2)}
    assert effects(url) == ["sent"]


@pytest.mark.thorough
@pytest.mark.timeout(300)  # several kills, each followed by a lapse
async def test_a_handler_killed_anywhere_leaves_one_effect(
    database_url: str, tmp_path: Path
) -> None:
    """In short; `make chaos` does it at length, on a cluster too."""
    tally = await effect_test(
        tmp_path, url=database_url, runs=240, kills=10, stops=0, seed=1, timeout=240
    )
    assert tally.again > 0, "no kill met a handler: it shows nothing"
