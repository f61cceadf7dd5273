"""PgBouncer in transaction mode: with the prepared statements of the driver, which PgBouncer before
1.21 does not know, and without."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from mainspring import Scheduler, State
from tests.support.postgresql import SharedSchema
from tests.support.servers.postgresql import PgBouncer

pytestmark = pytest.mark.skipif(
    shutil.which("pgbouncer") is None, reason="PgBouncer is not on the PATH: apt install pgbouncer"
)


@pytest.fixture
def pooler(postgresql_url: str) -> Iterator[str]:
    """The URL of a pooler with two connections to the server."""
    with PgBouncer(postgresql_url, mode="transaction", most=2) as started:
        yield started.url


@pytest.mark.parametrize("options", ["", "&prepare=false", "&listen_url={server}"])
async def test_a_scheduler_works_behind_a_pooler(
    pooler: str, schema: SharedSchema, options: str
) -> None:
    """The two connections are shared by four clients with many more."""
    more = options.format(server=quote(schema.server, safe=""))
    listen = "" if "listen_url" in options else "&listen=false"
    url = f"{pooler}?schema={schema.name}{more}{listen}"
    done: list[int] = []
    schedulers = [Scheduler(url, workers=4, poll="100ms") for _ in range(3)]
    for scheduler in schedulers:

        @scheduler.job(id="work", concurrency=3)
        async def work(n: int) -> None:
            done.append(n)

    async with schedulers[0], schedulers[1], schedulers[2]:
        runs = await schedulers[0].enqueue_many("work", [{"n": n} for n in range(120)])
        ended = [await schedulers[1].wait(run.id, 60) for run in runs]
    assert {(run.state, run.attempt) for run in ended} == {(State.SUCCEEDED, 1)}
    assert sorted(done) == list(range(120))


async def test_hints_through_a_pooler_in_transaction_mode_are_not_needed(
    pooler: str, schema: SharedSchema
) -> None:
    """LISTEN by way of the pooler hears nothing, and says nothing wrong: polling finds the work."""
    scheduler = Scheduler(f"{pooler}?schema={schema.name}", poll="200ms")

    @scheduler.job()
    async def work() -> None: ...

    async with scheduler:
        run = await work.enqueue()
        assert (await scheduler.wait(run.id, 30)).state is State.SUCCEEDED
