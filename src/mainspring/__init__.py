"""Mainspring: jobs that run on time, once, everywhere."""

from mainspring.context import RunContext
from mainspring.errors import GiveUp, MainspringError, Retry
from mainspring.events import Event
from mainspring.model import Attempt, Job, Page, Run, State
from mainspring.policy import Backoff, Breaker, Misfire, Policy
from mainspring.scheduler import Scheduler
from mainspring.schedules import at, cron, every, rrule

__all__ = [
    "Attempt",
    "Backoff",
    "Breaker",
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
__version__ = "0.1.0"
