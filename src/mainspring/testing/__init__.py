"""What Mainspring is tested with, shipped so that you can test with it too.

- `make_context`: what a handler is given, for calling it in a test of its own.
- `FakeClock`: time that moves when you say so.
- `run_virtual`, `VirtualLoop`, `VirtualClock`: asyncio on virtual time, replayed by a seed.
- `FaultyStore` with `RandomFaults` or `ScriptedFaults`: a store that fails as real ones do.
- `StoreConformance`: the tests that every store must pass. It needs pytest; the rest does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.testing.fake_clock import FakeClock
from mainspring.testing.fault_injection import (
    FaultPlan,
    FaultyStore,
    Injection,
    RandomFaults,
    ScriptedFaults,
)
from mainspring.testing.run_context import make_context
from mainspring.testing.virtual_time import (
    Deadlock,
    SimulationLimit,
    VirtualClock,
    VirtualLoop,
    run_virtual,
)

if TYPE_CHECKING:
    from mainspring.testing.conformance import StoreConformance

__all__ = [
    "Deadlock",
    "FakeClock",
    "FaultPlan",
    "FaultyStore",
    "Injection",
    "RandomFaults",
    "ScriptedFaults",
    "SimulationLimit",
    "StoreConformance",
    "VirtualClock",
    "VirtualLoop",
    "make_context",
    "run_virtual",
]


def __getattr__(name: str) -> Any:
    """`StoreConformance` on first use: only it needs pytest."""
    if name != "StoreConformance":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import pytest

    # Before the import, so that a failed assertion shows its values, as in a test file.
    pytest.register_assert_rewrite("mainspring.testing.conformance")
    from mainspring.testing.conformance import StoreConformance

    return StoreConformance
