"""The kinds of notes that Mainspring keeps in the store. A program adds kinds of its own."""

from __future__ import annotations

RATE = "rate"
"""The latest starts under a rate, by the name of the limit."""

BREAKER = "breaker"
"""A circuit breaker that is not closed, by job."""

WORKER = "worker"
"""Live workers, by their id. They announce themselves whether they lead or not."""

TERM = "mainspring.term"
"""Who holds a name that one node at a time can hold, such as the leader's."""

UPTIME = "mainspring.uptime"
"""When no worker was alive."""

PAUSE = "mainspring.pause"
"""That all firing is paused."""

ABSENCE = "mainspring.absence"
"""Jobs that no live worker can run, by their id."""

START = "mainspring.start"
"""Which node made the run at the start of a job, by job."""

RETRY = "mainspring.retry"
"""Retries whose followers do not wait again yet."""

SECRET_KEY = "secret-key"
"""A shared store's own key for the secrets of webhooks; the name is the same."""

API_KEY = "api-key"
SESSION = "session"
AUDIT = "audit"
IDEMPOTENCY = "idempotency"


def is_reserved(kind: str) -> bool:
    """Whether only the engine and the stores may write notes of the kind: what a program puts
    there could stop its jobs."""
    return kind in (BREAKER, RATE, WORKER) or kind.startswith("mainspring.")
