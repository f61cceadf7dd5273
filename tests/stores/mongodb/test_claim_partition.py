"""Which lanes a claim takes while other clients claim too."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from mainspring.stores.mongodb.claim_partition import ClaimPartition
from mainspring.stores.mongodb.codec import LANE_PARTS

LANES = [{"r": 4, "h": handler, "p": part} for handler in "ab" for part in range(LANE_PARTS)]


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


def test_a_client_that_lost_no_claim_takes_every_lane(one: ClaimPartition, time: Time) -> None:
    one.record_other(ClaimPartition(random.Random(2), time).me)
    assert one.own_lanes(LANES) == LANES


def test_a_client_that_lost_a_claim_keeps_to_its_lanes_for_twenty_claims(
    one: ClaimPartition, time: Time
) -> None:
    introduce([one, ClaimPartition(random.Random(2), time)])
    for _ in range(20):
        assert len(one.own_lanes(LANES)) == 4
        one.record_contention(False)
    assert one.own_lanes(LANES) == LANES


@pytest.mark.parametrize("count", [2, 3, 4])
def test_clients_that_know_of_each_other_share_no_lane(time: Time, count: int) -> None:
    dealt = [lane for member in crowd_of(count, time) for lane in member.own_lanes(LANES)]
    assert sorted(dealt, key=LANES.index) == LANES


def test_more_clients_than_parts_share_parts(time: Time) -> None:
    dealt = [tuple(LANES.index(lane) for lane in m.own_lanes(LANES)) for m in crowd_of(8, time)]
    assert len(dealt) == 8
    assert sorted(set(dealt)) == [(part, part + LANE_PARTS) for part in range(LANE_PARTS)]


def test_a_client_that_hears_of_no_other_draws_a_random_part(one: ClaimPartition) -> None:
    one.record_contention(True)
    drawn = {one.own_lanes(LANES)[0]["p"] for _ in range(50)}
    assert drawn == set(range(LANE_PARTS))


def test_lanes_of_a_silent_client_are_divided_again(time: Time) -> None:
    one, _, third = crowd_of(3, time)
    time.now = 0.9
    one.record_other(third.me)
    assert len(one.own_lanes(LANES)) in (2, 4)  # of three
    time.now = 1.5
    assert one.own_lanes(LANES) == LANES  # once a second
    assert len(one.own_lanes(LANES)) == 4  # of two


def test_a_client_counts_as_claiming_for_a_short_time_after_a_claim(
    one: ClaimPartition, time: Time
) -> None:
    time.now = 10
    assert not one.claims
    one.record_claim()
    assert one.claims
    time.now = 12
    assert not one.claims


def test_runs_of_higher_priority_are_never_left_to_others(time: Time) -> None:
    one, _ = crowd_of(2, time)
    [mine, *_] = own = one.own_lanes(LANES)
    [theirs, *_] = (lane for lane in LANES if lane not in own)
    high = [{**mine, "r": 0}, {**mine, "r": 2}, {**theirs, "r": 1}, mine, theirs]
    assert one.own_lanes(high) == high[:1]
    assert one.own_lanes(high[1:]) == high[1:]  # its own part has none of that priority


def test_a_client_whose_part_has_nothing_due_takes_every_lane(time: Time) -> None:
    one, _ = crowd_of(2, time)
    theirs = [lane for lane in LANES if lane not in one.own_lanes(LANES)]
    assert one.own_lanes(theirs) == theirs


def test_a_client_claims_from_all_lanes_once_a_second(time: Time) -> None:
    """Otherwise it might leave runs for ever to a client that has no handler for them."""
    one, other = crowd_of(2, time)
    sizes = []
    for _ in range(40):
        time.now += 0.125
        one.record_other(other.me)
        one.record_contention(True)
        sizes.append(len(one.own_lanes(LANES)))
    assert sizes.count(len(LANES)) == 5
    assert sizes.count(len(LANES) // 2) == 35
