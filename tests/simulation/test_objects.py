"""The simulated cluster on the object store, over a bucket in memory that fails in every way. In
short: `python -m tests.simulation --store objects --seeds 400` runs more."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.objects.planted_bugs import PLANTED, Planted, hunt
from tests.support.objects.simulated_cluster import simulate_on_objects
from tests.support.simulation.monitor import INVARIANTS

MET = ("claimed", "made pending", "raised", "returned")
"""What happens in every seed. The workload has changed if something is missing."""


def _held(seed: int, *, stress: bool = False) -> Counter[str]:
    """Run a seed; return how often each thing happened in it."""
    report = simulate_on_objects(seed, stress=stress)
    told = "\n".join(map(str, report.violations))
    again = f"python -m tests.simulation --store objects --seed {seed} --trace"
    assert not report.violations, f"{told}\nagain: {again}" + " --stress" * stress
    assert [what for what in MET if not report.counted[what]] == []
    return report.counted


@pytest.mark.parametrize("seed", [0, 4])
def test_a_seed_with_the_limits_of_the_store(seed: int) -> None:
    counted = _held(seed)
    assert counted["snapshots"] < 5


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [1, 3])
def test_a_seed_with_a_snapshot_at_every_other_write(seed: int) -> None:
    counted = _held(seed)
    assert counted["snapshots"] > counted["heads"] / 3
    assert counted["segments"] > 3


@pytest.mark.thorough
def test_a_seed_under_stress() -> None:
    _held(9, stress=True)


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.name.replace(" ", "-"))
def test_planted_bug_is_caught_on_objects(bug: Planted) -> None:
    assert bug.caught_by <= INVARIANTS.keys()
    report = hunt(bug)
    assert report is not None, f"nothing noticed it: {bug.description}"
    assert report.violations[0].invariant in bug.caught_by, "\n".join(map(str, report.violations))
