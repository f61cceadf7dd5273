"""Mainspring: jobs that run on time, once, everywhere.

Names are imported when they are first used: `mainspring --help` needs none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from mainspring.core.version import __version__ as __version__

if TYPE_CHECKING:
    from mainspring.core.context import RunContext
    from mainspring.core.events import Event
    from mainspring.core.model import Attempt, Job, Page, Run, State
    from mainspring.core.options import Enqueue
    from mainspring.core.policy import Backoff, Breaker, Misfire, Policy
    from mainspring.core.schedules.constructors import at, cron, every, rrule
    from mainspring.errors import GiveUp, MainspringError, Retry
    from mainspring.scheduler import Client, Scheduler

__all__ = [
    "Attempt",
    "Backoff",
    "Breaker",
    "Client",
    "Enqueue",
    "Event",
    "GiveUp",
    "Job",
    "MainspringError",
    "Misfire",
    "Page",
    "Policy",
    "Retry",
    "Run",
    "RunContext",
    "Scheduler",
    "State",
    "at",
    "cron",
    "every",
    "rrule",
]

_MODULES = {
    "core.context": ("RunContext",),
    "core.options": ("Enqueue",),
    "errors": ("GiveUp", "MainspringError", "Retry"),
    "core.events": ("Event",),
    "core.model": ("Attempt", "Job", "Page", "Run", "State"),
    "core.policy": ("Backoff", "Breaker", "Misfire", "Policy"),
    "scheduler": ("Client", "Scheduler"),
    "core.schedules": ("at", "cron", "every", "rrule"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
