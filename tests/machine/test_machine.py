"""Each store beside the memory store; and planted bugs, which the machine must find."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from mainspring.clock import Clock
from mainspring.store import Store
from mainspring.stores.memory import MemoryStore
from mainspring.stores.sqlite import SqliteStore
from tests.machine.machine import StoreMachine
from tests.machine.planted import PLANTED

HEALTH = list(HealthCheck)


class SqliteMachine(StoreMachine):
    def make_store(self, place: Path, clock: Clock) -> Store:
        return SqliteStore(str(place / "jobs.db"), clock)


TestSqlite = SqliteMachine.TestCase
TestSqlite.settings = settings(
    max_examples=100, stateful_step_count=30, deadline=None, suppress_health_check=HEALTH
)


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug: type[MemoryStore]) -> None:
    class Machine(StoreMachine):
        def make_store(self, place: Path, clock: Clock) -> Store:
            return bug(clock)

    search = settings(
        max_examples=400,
        stateful_step_count=30,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=HEALTH,
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Machine, settings=search)
