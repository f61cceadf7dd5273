"""Which lanes a claim takes while other clients claim too."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from mainspring.stores.mongodb.claim_partition import ClaimPartition
from mainspring.stores.mongodb.codec import LANE_PARTS
from mainspring.stores.mongodb.collections import Document

LANES = [{"h": handler, "p": part} for handler in "ab" for part in range(LANE_PARTS)]


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def one(time: Time) -> ClaimPartition:
    return ClaimPartition(random.Random(1), time)


def crowd_of(count: int, time: Time) -> list[ClaimPartition]:
    """Clients that have met, and have heard of each other."""
    members = [ClaimPartition(random.Random(n), time) for n in range(count)]
    introduce(members)
    return members


def introduce(members: Sequence[ClaimPartition]) -> None:
    for one in members:
        one.record_contention(True)
        for other in members:
            if other is not one:
                one.record_other(other.me)


def run(priority: int, run_at: int) -> Document:
    return {"priority": priority, "run_at": run_at}


def leaves(one: ClaimPartition, theirs: Document, ours: Document) -> bool:
    return one.may_skip(theirs, ours, wants_more=False)


def test_a_client_that_lost_no_claim_takes_every_lane(one: ClaimPartition, time: Time) -> None:
    one.record_other(ClaimPartition(random.Random(2), time).me)
    assert one.split(LANES) == (LANES, [])


def test_a_client_that_lost_a_claim_keeps_to_its_lanes_for_twenty_claims(
    one: ClaimPartition, time: Time
) -> None:
    introduce([one, ClaimPartition(random.Random(2), time)])
    for _ in range(20):
        ours, theirs = one.split(LANES)
        assert len(ours) == len(theirs) == 4
        one.record_contention(False)
    assert one.split(LANES) == (LANES, [])


@pytest.mark.parametrize("count", [2, 3, 4])
def test_clients_that_know_of_each_other_share_no_lane(time: Time, count: int) -> None:
    dealt = [lane for member in crowd_of(count, time) for lane in member.split(LANES)[0]]
    assert sorted(dealt, key=LANES.index) == LANES


def test_more_clients_than_parts_share_parts(time: Time) -> None:
    dealt = [tuple(LANES.index(lane) for lane in m.split(LANES)[0]) for m in crowd_of(8, time)]
    assert len(dealt) == 8
    assert sorted(set(dealt)) == [(part, part + LANE_PARTS) for part in range(LANE_PARTS)]


def test_a_client_that_hears_of_no_other_draws_a_random_part(one: ClaimPartition) -> None:
    one.record_contention(True)
    drawn = {one.split(LANES)[0][0]["p"] for _ in range(50)}
    assert drawn == set(range(LANE_PARTS))


def test_lanes_of_a_silent_client_are_divided_again(time: Time) -> None:
    one, _, third = crowd_of(3, time)
    time.now = 0.9
    one.record_other(third.me)
    assert len(one.split(LANES)[0]) in (2, 4)  # of three
    time.now = 1.5
    assert len(one.split(LANES)[0]) == 4  # of two


def test_a_client_alone_that_wants_more_runs_skips_none(one: ClaimPartition, time: Time) -> None:
    assert not one.may_skip(run(5, 100), run(5, 100), wants_more=True)
    one.record_other(ClaimPartition(random.Random(2), time).me)
    assert one.may_skip(run(5, 100), run(5, 100), wants_more=True)


def test_a_client_counts_as_claiming_for_a_short_time_after_a_claim(
    one: ClaimPartition, time: Time
) -> None:
    time.now = 10
    assert not one.claims
    one.record_claim()
    assert one.claims
    time.now = 12
    assert not one.claims


def test_runs_of_higher_priority_are_never_skipped(one: ClaimPartition) -> None:
    assert not leaves(one, run(9, 500), run(5, 100))
    assert leaves(one, run(5, 100), run(9, 500))


def test_a_client_gets_at_most_a_second_ahead_of_others(one: ClaimPartition, time: Time) -> None:
    assert leaves(one, run(5, 100), run(5, 300))
    time.now = 0.9
    assert leaves(one, run(5, 150), run(5, 900))
    time.now = 1.1
    assert not leaves(one, run(5, 200), run(5, 1000))  # it took those up to 300 a second ago
    assert not leaves(one, run(5, 299), run(5, 1000))  # and goes on until they are over
    assert leaves(one, run(5, 300), run(5, 1000))
    time.now = 2.2
    assert not leaves(one, run(5, 999), run(5, 2000))


def test_a_client_that_is_not_ahead_keeps_to_its_lanes(one: ClaimPartition, time: Time) -> None:
    for second in range(0, 20, 2):
        time.now = second
        assert leaves(one, run(5, 100 * second), run(5, 100 * second + 150))


def test_runs_due_at_the_same_moment_may_be_skipped(one: ClaimPartition, time: Time) -> None:
    for second in range(0, 20, 2):
        time.now = second
        assert leaves(one, run(5, 100), run(5, 100))
