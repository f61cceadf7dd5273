"""The arithmetic of rate limits, without a store."""

from __future__ import annotations

from datetime import datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.clock import EPOCH, to_us
from mainspring.core.model import Job, Note, replace
from mainspring.core.policy import Policy
from mainspring.stores.limits import (
    BUCKETS_PER_SPAN,
    RateAllowance,
    RateLimit,
    next_start,
    rate_limit,
)
from mainspring.stores.memory import MemoryStore
from mainspring.stores.protocol import NoteWrite
from mainspring.testing import FakeClock

LIMIT = RateLimit("job:a", 5, 1_000_000)


def kept(write: NoteWrite, now: int) -> Note:
    """A note as a store keeps it."""
    assert write.note is not None
    assert write.ttl is not None
    return replace(write.note, expires_at=EPOCH + timedelta(microseconds=now) + write.ttl)


@given(st.lists(st.tuples(st.integers(0, 400_000), st.integers(1, 7)), max_size=60))
def test_no_span_has_more_starts_than_the_limit(steps: list[tuple[int, int]]) -> None:
    now, starts = 10**15, list[int]()
    note: Note | None = None
    for wait, wanted in steps:
        now += wait
        live = [note] if note is not None and to_us(note.expires_at or EPOCH) > now else []
        rates = RateAllowance({"a": LIMIT}, live, now)
        for _ in range(wanted):
            if rates.allows("a"):
                rates.take("a")
                starts.append(now)
        for write in rates.writes():
            note = kept(write, now)
            assert len(note.value["starts"]) <= BUCKETS_PER_SPAN + 2
    for at, first in enumerate(starts):
        assert sum(start < first + LIMIT.span for start in starts[at:]) <= LIMIT.max_starts


async def test_when_the_next_run_may_start_is_told() -> None:
    store = MemoryStore(FakeClock())
    policy = Policy.make(rate="5/s")
    job = Job(id="a", handler="a", created_at=EPOCH, updated_at=EPOCH, policy=policy)
    assert await next_start(store, job) is None
    limit = rate_limit(job)
    assert limit == LIMIT
    now = await store.now()
    rates = RateAllowance({"a": LIMIT}, [], to_us(now))
    for _ in range(5):
        rates.take("a")
    await store.put_notes(rates.writes())
    at = await next_start(store, job)
    assert isinstance(at, datetime)
    assert at - now == timedelta(seconds=1.05)
    assert await next_start(store, replace(job, policy=Policy())) is None
