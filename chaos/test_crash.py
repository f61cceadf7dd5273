"""Four workers on one SQLite file, killed and stopped over and over: 5,000 runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.process_crashes import crash_test


@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", [1, 2])
async def test_killed_and_stopped_workers_lose_and_repeat_nothing(
    tmp_path: Path, seed: int
) -> None:
    account = await crash_test(tmp_path, runs=5000, kills=60, stops=4, seed=seed, timeout=300)
    assert account.kills == 60
    print(account)
