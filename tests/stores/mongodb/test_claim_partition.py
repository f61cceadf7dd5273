"""Which lanes a claim takes from where others claim too."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from mainspring.stores.mongodb.claim_partition import Crowd
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
def one(time: Time) -> Crowd:
    return Crowd(random.Random(1), time)


def crowd_of(count: int, time: Time) -> list[Crowd]:
    """Clients that have met, and have heard of each other."""
    members = [Crowd(random.Random(n), time) for n in range(count)]
    introduce(members)
    return members


def introduce(members: Sequence[Crowd]) -> None:
    for one in members:
        one.met(True)
        for other in members:
            if other is not one:
                one.heard(other.me)


def run(priority: int, run_at: int) -> Document:
    return {"priority": priority, "run_at": run_at}


def leaves(one: Crowd, theirs: Document, ours: Document) -> bool:
    return one.leaves(theirs, ours, short=False)


def test_who_meets_nobody_takes_from_all(one: Crowd, time: Time) -> None:
    one.heard(Crowd(random.Random(2), time).me)
    assert one.deal(LANES) == (LANES, [])


def test_who_met_somebody_keeps_to_his_part_for_a_while(one: Crowd, time: Time) -> None:
    introduce([one, Crowd(random.Random(2), time)])
    for _ in range(20):
        ours, theirs = one.deal(LANES)
        assert len(ours) == len(theirs) == 4
        one.met(False)
    assert one.deal(LANES) == (LANES, [])


@pytest.mark.parametrize("count", [2, 3, 4])
def test_those_who_know_of_each_other_have_no_lane_in_common(time: Time, count: int) -> None:
    dealt = [lane for member in crowd_of(count, time) for lane in member.deal(LANES)[0]]
    assert sorted(dealt, key=LANES.index) == LANES


def test_more_than_there_are_parts_share_them(time: Time) -> None:
    dealt = [tuple(LANES.index(lane) for lane in m.deal(LANES)[0]) for m in crowd_of(8, time)]
    assert len(dealt) == 8
    assert sorted(set(dealt)) == [(part, part + LANE_PARTS) for part in range(LANE_PARTS)]


def test_who_hears_of_nobody_draws_his_part(one: Crowd) -> None:
    one.met(True)
    drawn = {one.deal(LANES)[0][0]["p"] for _ in range(50)}
    assert drawn == set(range(LANE_PARTS))


def test_nothing_is_left_to_who_has_gone_silent(time: Time) -> None:
    one, _, third = crowd_of(3, time)
    time.now = 0.9
    one.heard(third.me)
    assert len(one.deal(LANES)[0]) in (2, 4)  # of three
    time.now = 1.5
    assert len(one.deal(LANES)[0]) == 4  # of two


def test_who_hears_of_nobody_and_wants_more_leaves_nothing(one: Crowd, time: Time) -> None:
    assert not one.leaves(run(5, 100), run(5, 100), short=True)
    one.heard(Crowd(random.Random(2), time).me)
    assert one.leaves(run(5, 100), run(5, 100), short=True)


def test_only_who_claimed_lately_says_so(one: Crowd, time: Time) -> None:
    time.now = 10
    assert not one.claims
    one.came()
    assert one.claims
    time.now = 12
    assert not one.claims


def test_what_is_more_urgent_is_left_to_nobody(one: Crowd) -> None:
    assert not leaves(one, run(9, 500), run(5, 100))
    assert leaves(one, run(5, 100), run(9, 500))


def test_nobody_gets_more_than_a_second_ahead_of_the_others(one: Crowd, time: Time) -> None:
    assert leaves(one, run(5, 100), run(5, 300))
    time.now = 0.9
    assert leaves(one, run(5, 150), run(5, 900))
    time.now = 1.1
    assert not leaves(one, run(5, 200), run(5, 1000))  # it took those up to 300 a second ago
    assert not leaves(one, run(5, 299), run(5, 1000))  # and goes on until they are over
    assert leaves(one, run(5, 300), run(5, 1000))
    time.now = 2.2
    assert not leaves(one, run(5, 999), run(5, 2000))


def test_who_is_ahead_of_nobody_leaves_them_theirs(one: Crowd, time: Time) -> None:
    for second in range(0, 20, 2):
        time.now = second
        assert leaves(one, run(5, 100 * second), run(5, 100 * second + 150))


def test_runs_of_one_moment_are_nobodys_delay(one: Crowd, time: Time) -> None:
    for second in range(0, 20, 2):
        time.now = second
        assert leaves(one, run(5, 100), run(5, 100))
