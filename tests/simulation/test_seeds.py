"""A cluster on virtual time, under faults, seed by seed. `make simulate` runs 20,000 seeds."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.simulation.scenario import simulate

SEEDS = 30
STRESSED = 15
CHUNK = 15

MET = (
    "at its limit",
    "at most once",
    "cancel requested",
    "duplicate",
    "made skipped overlap",
    "outcome timed_out",
    "rescued",
    "returned",
    "revived",
    "slots",
)
"""What happens in every chunk of seeds. The workload has changed if something is missing."""


@pytest.mark.parametrize(
    "first",
    [0, *(pytest.param(first, marks=pytest.mark.thorough) for first in range(CHUNK, SEEDS, CHUNK))],
)
def test_seeds(first: int) -> None:
    counted = _held(first)
    assert [what for what in MET if not counted[what]] == []


@pytest.mark.thorough
@pytest.mark.parametrize("first", range(0, STRESSED, CHUNK))
def test_seeds_under_stress(first: int) -> None:
    counted = _held(first, stress=True)
    assert counted["rescued"]
    assert counted["renewed late"]


def _held(first: int, *, stress: bool = False) -> Counter[str]:
    """Run a chunk of seeds; return how often each thing happened in them."""
    counted: Counter[str] = Counter()
    for seed in range(first, first + CHUNK):
        report = simulate(seed, stress=stress)
        told = "\n".join(map(str, report.violations))
        again = f"python -m tests.simulation --seed {seed} --trace" + " --stress" * stress
        assert not report.violations, f"{told}\nagain: {again}"
        counted += report.counted
    return counted
