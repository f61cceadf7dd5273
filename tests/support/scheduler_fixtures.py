from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from mainspring import Scheduler
from mainspring.stores import open_store
from mainspring.stores.memory import MemoryStore
from mainspring.stores.protocol import Store

Make = Callable[..., Scheduler]


@pytest.fixture(params=[pytest.param("memory", marks=pytest.mark.thorough), "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str | Store:
    """Where the jobs are kept: what `Scheduler` takes first. Outlives a scheduler."""
    if request.param == "memory":
        return MemoryStore()
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A store that several schedulers, threads and processes share."""
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
async def make(place: str | Store) -> AsyncIterator[Make]:
    """Makes schedulers on the test's store; whatever still runs is stopped at the end."""
    made: list[Scheduler] = []

    def scheduler(store: str | Store | None = None, **options: Any) -> Scheduler:
        made.append(Scheduler(place if store is None else store, **options))
        return made[-1]

    yield scheduler
    for one in reversed(made):
        await one.stop(graceful=False)


@pytest.fixture
async def second_client(place: str | Store) -> AsyncIterator[Store]:
    """The same store through another client: what a second process would hold."""
    if not isinstance(place, str):
        yield place
        return
    store = open_store(place)
    await store.open()
    yield store
    await store.close()
