"""What befalls PostgreSQL servers while workers use them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg

from tests.support.servers.postgresql import Postgres
from tests.support.servers.server import ServerFailed

Fault = Callable[[], None]


def crash(server: Postgres, away: float = 0) -> Fault:
    """The server dies at once, and comes back so many seconds later on its data."""

    def fault() -> None:
        server.kill()
        time.sleep(away)
        server.start()

    return fault


def freeze(server: Postgres, seconds: float) -> Fault:
    """Every process of the server stops, with its connections open, and goes on later."""

    def fault() -> None:
        server.freeze()
        time.sleep(seconds)
        server.resume()

    return fault


@contextmanager
def promoted_standby() -> Iterator[tuple[str, Fault]]:
    """A URL that names a primary and its standby, and what kills the one and promotes the other.
    A commit waits for the standby, so that nothing acknowledged is lost."""
    with Postgres() as primary:
        standby = primary.standby()
        try:
            with psycopg.connect(primary.url, autocommit=True) as connection:
                connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
                connection.execute("SELECT pg_reload_conf()")
                _wait_until_synchronous(connection)

            def promote() -> None:
                primary.kill()
                standby.promote()

            hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
            options = "target_session_attrs=read-write&connect_timeout=2"
            yield f"postgresql://postgres@{hosts}/postgres?{options}", promote
        finally:
            standby.stop()


def _wait_until_synchronous(connection: psycopg.Connection) -> None:
    for _ in range(600):
        rows = connection.execute("SELECT sync_state FROM pg_stat_replication").fetchall()
        if rows == [("sync",)]:
            return
        time.sleep(0.1)
    raise ServerFailed(f"the standby does not follow: {rows}")
