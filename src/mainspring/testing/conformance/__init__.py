"""The tests that every store must pass. They check the contract in the docstrings of
`stores/protocol.py`.

    class TestMine(StoreConformance):
        def make_store(self):
            return MyStore(self.place / "file", self.clock)

A store that reads `self.clock` sets `reads_clock`, and the suite also sets that clock back and
forward. A store that reads its own clock sets `tick` to a fraction of a second and overrides
`advance` to sleep. `make_peer` returns a second client of the same data. For a store with
transactions override `write_effect`, `write_effect_blocking` and `effects`, which write and read
as a handler does; for one that takes part in transactions of its callers also
`caller_transaction`. `damage_run` and `damage_job` damage a stored record; other records must still
work.
"""

from __future__ import annotations

from mainspring.testing.conformance.add import AddTests, OpenTests
from mainspring.testing.conformance.claim import ClaimTests, LimitTests, RenewTests
from mainspring.testing.conformance.clock_steps import ClockStepTests
from mainspring.testing.conformance.commit import CommitTests, RescueTests, ReviveTests
from mainspring.testing.conformance.jobs import FireTests, JobBatchTests, JobListTests, JobTests
from mainspring.testing.conformance.notes import ElectionTests, NoteTests, WaitTests
from mainspring.testing.conformance.queries import (
    BriefTests,
    CountTests,
    FindTests,
    PruneTests,
    UpstreamTests,
)
from mainspring.testing.conformance.races import RaceTests
from mainspring.testing.conformance.rates import RateTests
from mainspring.testing.conformance.round_trip import NameTests, RoundTripTests
from mainspring.testing.conformance.statistics import StatisticsTests
from mainspring.testing.conformance.transactions import TransactionTests
from mainspring.testing.conformance.unreadable import UnreadableTests
from mainspring.testing.conformance.within import WithinTests

__all__ = ["StoreConformance"]


class StoreConformance(
    OpenTests,
    AddTests,
    ClaimTests,
    LimitTests,
    RateTests,
    RenewTests,
    CommitTests,
    RescueTests,
    ReviveTests,
    FindTests,
    BriefTests,
    UpstreamTests,
    CountTests,
    StatisticsTests,
    PruneTests,
    JobTests,
    JobBatchTests,
    JobListTests,
    FireTests,
    ElectionTests,
    WaitTests,
    RoundTripTests,
    NameTests,
    NoteTests,
    RaceTests,
    TransactionTests,
    WithinTests,
    UnreadableTests,
    ClockStepTests,
):
    """Subclass it under a name that begins with `Test`, and override `make_store`."""
