"""Tells people by e-mail, Slack or any URL that runs fail, that a job has recovered, that slots
were missed, or that a breaker is open.

`[notify]` of mainspring.toml sets it up, or `notify.install(scheduler, {"team": {"slack": url}})`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mainspring.contrib.notify.news import NEWS
from mainspring.contrib.notify.notifier import Notifier
from mainspring.contrib.notify.settings import Settings, read_settings
from mainspring.core.policy import Span
from mainspring.scheduler.client import Client

__all__ = ["install", "install_settings", "read_settings"]


def install(
    scheduler: Client,
    targets: Mapping[str, Mapping[str, Any]],
    *,
    on: str | Iterable[str] = NEWS,
    throttle: Span = "15m",
) -> None:
    """Notify these targets while the scheduler or client is started. Call it in every process: each
    message is sent by one of them. The arguments are the keys of `[notify]` in a file
    (docs/reference/mainspring-toml.md)."""
    install_settings(scheduler, read_settings({"targets": targets, "on": on, "throttle": throttle}))


def install_settings(scheduler: Client, settings: Settings) -> None:
    """The same with settings that were read before."""
    for target in settings.targets:
        notifier = Notifier(scheduler, settings, target)
        scheduler.on("scheduler.started", notifier.start)
        scheduler.on("scheduler.stopped", notifier.stop)
        scheduler._before_close.append(notifier.finish)
        for name in ("run.failed", "breaker.opened", "schedule.missed"):
            scheduler.on(name, notifier.wake)
