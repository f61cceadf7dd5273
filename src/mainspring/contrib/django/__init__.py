"""Mainspring in a Django project: `from mainspring.contrib.django import job, scheduler`.

`scheduler` is the one of the project, made from `settings.MAINSPRING` when it is first imported:
also before the apps are ready, and in each process of a server that forks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mainspring.contrib.django.project_scheduler import project_scheduler

    scheduler = project_scheduler()
    job = scheduler.job

__all__ = ["job", "scheduler"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mainspring.contrib.django.project_scheduler import project_scheduler

    return project_scheduler() if name == "scheduler" else project_scheduler().job
