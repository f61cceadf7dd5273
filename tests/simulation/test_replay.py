"""The same seed gives the same trace."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.simulation.scenario import simulate

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("seed", [1, 12])
def test_the_same_seed_gives_the_same_trace(seed: int) -> None:
    first, second = simulate(seed, trace=True), simulate(seed, trace=True)
    assert first.lines
    for one, other in zip(first.lines, second.lines, strict=True):
        assert one == other
    assert first.digest == second.digest == simulate(seed).digest


def test_another_process_gives_the_same_trace() -> None:
    """Other hashes, other addresses, another process id."""
    told = []
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-m", "tests.simulation", "--seed", "7", "--trace"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT / "src")},
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
        )
        told.append(done.stdout)
    assert told[0] == told[1]
    assert simulate(7).digest in told[0]


def test_other_seeds_give_other_traces() -> None:
    assert simulate(1).digest != simulate(2).digest
