"""Mainspring: jobs that run on time, once, everywhere.

Names are imported when they are first used: `mainspring --help` needs none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from mainspring.core.version import __version__ as __version__

if TYPE_CHECKING:
    from mainspring.core.context import RunContext as RunContext
    from mainspring.core.events import Event as Event
    from mainspring.core.model import Attempt as Attempt
    from mainspring.core.model import Job as Job
    from mainspring.core.model import Page as Page
    from mainspring.core.model import Run as Run
    from mainspring.core.model import State as State
    from mainspring.core.options import Enqueue as Enqueue
    from mainspring.core.policy import Backoff as Backoff
    from mainspring.core.policy import Breaker as Breaker
    from mainspring.core.policy import Misfire as Misfire
    from mainspring.core.policy import Policy as Policy
    from mainspring.core.resources import per_run as per_run
    from mainspring.core.schedules.constructors import at as at
    from mainspring.core.schedules.constructors import cron as cron
    from mainspring.core.schedules.constructors import every as every
    from mainspring.core.schedules.constructors import rrule as rrule
    from mainspring.errors import GiveUp as GiveUp
    from mainspring.errors import MainspringError as MainspringError
    from mainspring.errors import Retry as Retry
    from mainspring.scheduler import Client as Client
    from mainspring.scheduler import Scheduler as Scheduler

_MODULES = {
    "core.context": ("RunContext",),
    "core.options": ("Enqueue",),
    "errors": ("GiveUp", "MainspringError", "Retry"),
    "core.events": ("Event",),
    "core.model": ("Attempt", "Job", "Page", "Run", "State"),
    "core.policy": ("Backoff", "Breaker", "Misfire", "Policy"),
    "core.resources": ("per_run",),
    "scheduler": ("Client", "Scheduler"),
    "core.schedules": ("at", "cron", "every", "rrule"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
