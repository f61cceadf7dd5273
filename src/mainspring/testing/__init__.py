"""What Mainspring is tested with, shipped so that you can test with it too.

- `TestScheduler`: your scheduler on virtual time and in memory, for tests of your program.
- `make_context`: what a handler is given, for calling it in a test of its own.
- `FakeClock`: time that moves when you say so.
- `run_virtual`, `VirtualLoop`, `VirtualClock`: asyncio on virtual time, replayed by a seed.
- `FaultyStore` with `RandomFaults` or `ScriptedFaults`: a store that fails as real ones do.
- `StoreConformance`: the tests that every store must pass. It needs pytest; the rest does not.

Names are imported when they are first used, because pytest loads `pytest_plugin.py`, with the
fixture `mainspring_test`, in every program that has Mainspring installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mainspring.testing.conformance import StoreConformance
    from mainspring.testing.fault_injection import (
        FaultPlan,
        FaultyStore,
        Injection,
        RandomFaults,
        ScriptedFaults,
    )
    from mainspring.testing.stubs import SentRequest, WebhookStub, make_context
    from mainspring.testing.virtual_scheduler import BlockingTestScheduler, TestScheduler
    from mainspring.testing.virtual_time import (
        Deadlock,
        FakeClock,
        SimulationLimit,
        VirtualClock,
        VirtualLoop,
        run_virtual,
    )

__all__ = [
    "BlockingTestScheduler",
    "Deadlock",
    "FakeClock",
    "FaultPlan",
    "FaultyStore",
    "Injection",
    "RandomFaults",
    "ScriptedFaults",
    "SentRequest",
    "SimulationLimit",
    "StoreConformance",
    "TestScheduler",
    "VirtualClock",
    "VirtualLoop",
    "WebhookStub",
    "make_context",
    "run_virtual",
]

_MODULES = {
    "conformance": ("StoreConformance",),
    "fault_injection": (
        *("FaultPlan", "FaultyStore", "Injection", "RandomFaults", "ScriptedFaults"),
    ),
    "stubs": ("SentRequest", "WebhookStub", "make_context"),
    "virtual_scheduler": ("BlockingTestScheduler", "TestScheduler"),
    "virtual_time": (
        *("Deadlock", "FakeClock", "SimulationLimit", "VirtualClock", "VirtualLoop", "run_virtual"),
    ),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "StoreConformance":
        import pytest

        # Before the import, so that a failed assertion shows its values, as in a test file.
        pytest.register_assert_rewrite("mainspring.testing.conformance")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
