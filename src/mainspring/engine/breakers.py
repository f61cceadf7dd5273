"""Circuit breakers of jobs. Each process counts its own."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from mainspring.core.durations import duration
from mainspring.core.policy import Breaker

__all__ = ["BreakerEvent", "Breakers"]

BreakerEvent = Literal["opened", "half_open", "closed"]


@dataclass(slots=True)
class _Circuit:
    failures: int = 0
    opened_at: float | None = None
    probing: bool = False


class Breakers:
    """Closed: all runs may start. Open: none may, for `reset`. Then one run probes the job: its
    outcome closes the breaker or opens it again."""

    def __init__(self) -> None:
        self._circuits: dict[str, _Circuit] = {}

    def admit(
        self, job_id: str, breaker: Breaker, now: float
    ) -> tuple[timedelta | None, BreakerEvent | None]:
        """Return how long this run has to wait (None: it may start), and how the state changed."""
        circuit = self._circuits.get(job_id)
        if circuit is None or circuit.opened_at is None:
            return None, None
        reset = duration(breaker.reset)
        left = reset - timedelta(seconds=now - circuit.opened_at)
        if left > timedelta():
            return left, None
        if circuit.probing:
            return min(reset, timedelta(seconds=1)), None
        circuit.probing = True
        return None, "half_open"

    def record(self, job_id: str, breaker: Breaker, now: float, *, ok: bool) -> BreakerEvent | None:
        """Count the outcome of an attempt; return how the state changed."""
        circuit = self._circuits.setdefault(job_id, _Circuit())
        if ok:
            was_open = circuit.opened_at is not None
            del self._circuits[job_id]
            return "closed" if was_open else None
        circuit.failures += 1
        if circuit.probing or (circuit.opened_at is None and circuit.failures >= breaker.failures):
            circuit.opened_at, circuit.probing = now, False
            return "opened"
        return None

    def abandon(self, job_id: str) -> None:
        """A probe ended without an outcome (cancelled, lost): let the next run probe."""
        if job_id in self._circuits:
            self._circuits[job_id].probing = False

    def state(self, job_id: str) -> str:
        circuit = self._circuits.get(job_id)
        if circuit is None or circuit.opened_at is None:
            return "closed"
        return "half_open" if circuit.probing else "open"
