"""The arithmetic of rate limits, without a store."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.clock import EPOCH, to_us
from mainspring.core.model import Note, replace
from mainspring.stores.limits import (
    BUCKETS_PER_SPAN,
    RateAllowance,
    RateLimit,
)
from mainspring.stores.protocol import NoteWrite

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
