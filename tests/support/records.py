"""Runs and firings as most tests of stores need them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from mainspring.core.model import Job, Run
from mainspring.core.policy import Overlap
from mainspring.stores.protocol import Firing


def a_run(now: datetime, run_id: str, **fields: Any) -> Run:
    """A run that is due now."""
    times = dict.fromkeys(("created_at", "scheduled_at", "run_at"), now)
    return Run(**{"id": run_id, "job_id": "job", "handler": "work", **times, **fields})


def a_firing(job: Job, *runs: Run, **fields: Any) -> Firing:
    """A firing of the slot at which the first of these runs is scheduled."""
    at = runs[0].scheduled_at
    times: dict[str, Any] = {"next_run_at": at + timedelta(minutes=1), "last_run_at": at}
    given = {"job_id": job.id, "version": job.version, "overlap": Overlap.ALLOW, **times}
    return Firing(runs=runs, **{**given, **fields})
