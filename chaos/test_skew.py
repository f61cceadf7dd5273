"""Workers with clocks an hour off, for longer.

For routers see tests/stores/mongodb/test_fault_scenarios.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.mongodb.fault_scenarios import skewed
from tests.support.servers.mongodb import ReplicaSet, with_database


@pytest.mark.timeout(600)
async def test_default_leases_with_wrong_clocks(tmp_path: Path) -> None:
    """Handlers are held for more than a lease of thirty seconds."""
    with ReplicaSet(election_timeout=10) as servers:
        assert await skewed(tmp_path, with_database(servers.url, "jobs"), lease=30) == []
