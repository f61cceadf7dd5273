"""The public Python API: `Scheduler` registers jobs, enqueues runs, starts and stops."""

from mainspring.scheduler.scheduler import Scheduler

__all__ = ["Scheduler"]
