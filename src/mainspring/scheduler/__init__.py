"""The public Python API: `Client` enqueues and controls runs; `Scheduler` also runs them."""

from mainspring.scheduler.client import Client
from mainspring.scheduler.scheduler import Scheduler

__all__ = ["Client", "Scheduler"]
