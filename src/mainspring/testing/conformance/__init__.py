"""The tests that every store must pass: each sentence of the Store protocol has its own.

    class TestMine(StoreConformance):
        def make_store(self):
            return MyStore(self.place / "file", self.clock)

A store that reads `self.clock` sets `reads_clock`, and is tried with a wall clock that is set back
and forward. A store that reads a clock of its own sets `tick` to a fraction of a second and
overrides `advance` to sleep. `make_peer` gives a second client of the same data. A store with
transactions says how a handler writes with their sessions: `write_effect`,
`write_effect_blocking`, `effects`.
`damage_run` and `damage_job` break a stored record, which must not stop any other.
"""

from __future__ import annotations

from mainspring.testing.conformance.add import Adding, Living
from mainspring.testing.conformance.claim import Claiming, Limiting, Renewing
from mainspring.testing.conformance.clock_steps import ClockSteps
from mainspring.testing.conformance.commit import Committing, Rescuing, Reviving
from mainspring.testing.conformance.election import Electing, Waking
from mainspring.testing.conformance.job_lists import ListingJobs
from mainspring.testing.conformance.jobs import Firing, KeepingJobs, WritingManyJobs
from mainspring.testing.conformance.names import Naming
from mainspring.testing.conformance.notes import Noting
from mainspring.testing.conformance.queries import Brief, Counting, Finding, Following, Pruning
from mainspring.testing.conformance.races import Racing
from mainspring.testing.conformance.round_trip import Keeping
from mainspring.testing.conformance.transactions import Transacting
from mainspring.testing.conformance.unreadable import Unreadable

__all__ = ["StoreConformance"]


class StoreConformance(
    Living,
    Adding,
    Claiming,
    Limiting,
    Renewing,
    Committing,
    Rescuing,
    Reviving,
    Finding,
    Brief,
    Following,
    Counting,
    Pruning,
    KeepingJobs,
    WritingManyJobs,
    ListingJobs,
    Firing,
    Electing,
    Waking,
    Keeping,
    Naming,
    Noting,
    Racing,
    Transacting,
    Unreadable,
    ClockSteps,
):
    """Subclass it under a name that begins with `Test`, and say how a store is made."""
