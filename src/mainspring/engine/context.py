"""`EngineContext`: the store, clocks, settings and caches that every component of one engine uses.

Each component receives it when it is made, so no component needs a global variable.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mainspring.core.clock import CarriedClock, Clock
from mainspring.core.events import Event, Events
from mainspring.core.handlers import Registry
from mainspring.core.model import Run, State
from mainspring.engine.job_cache import JobCache
from mainspring.engine.settings import Settings
from mainspring.engine.store_retry import Outages, RetryingStore
from mainspring.stores.protocol import Store

EVENT_OF = {
    State.SUCCEEDED: "run.succeeded",
    State.FAILED: "run.failed",
    State.CANCELLED: "run.cancelled",
    State.SKIPPED: "run.skipped",
}
"""The event that reports the end of a run, by the state it ended in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineContext:
    store: Store
    """Raises what the store raises: for operations that a caller waits for, and for sweeps."""
    retrying_store: RetryingStore
    outages: Outages
    clock: Clock
    time: CarriedClock
    events: Events
    rng: random.Random
    registry: Registry
    jobs: JobCache
    settings: Settings
    resources: Mapping[str, Any]

    def emit(
        self,
        name: str,
        run: Run | None = None,
        error: BaseException | str | None = None,
        job_id: str | None = None,
        **data: Any,
    ) -> None:
        if self.events.wanted(name):
            job_id = run.job_id if run else job_id
            self.events.emit(Event(name, self.time.now(), job_id, run, error, data))
