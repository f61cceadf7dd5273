from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mainspring.stores.sqlite import SqliteStore
from tests.support.sqlite_store import opened


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    async with opened(tmp_path / "jobs.db") as store:
        yield store
