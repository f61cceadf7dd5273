"""Which candidates a claim takes where others claim the same heads."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from mainspring.stores.mongodb.crowd import Crowd
from mainspring.stores.mongodb.database import Document

LIMIT = 10


def member(seed: int) -> Crowd:
    return Crowd(random.Random(seed), lambda: 0.0)


@pytest.fixture
def crowd() -> Crowd:
    return member(1)


def candidates(*priorities: int) -> list[Document]:
    """In the order of the claim, ten of each priority."""
    return [{"_id": f"{p}-{n}", "priority": p} for p in priorities for n in range(10)]


def claims_in_vain(ours: Crowd, theirs: Crowd) -> Iterator[bool]:
    """Rounds of two clients that choose at the same moment; whose write comes second finds what
    is left of its choice. Gives whether that was nothing."""
    runs = [{"_id": f"{n}", "priority": 5} for n in range(2000)]
    while runs:
        first = ours.chosen(runs[: ours.width(LIMIT)], LIMIT)
        second = theirs.chosen(runs[: theirs.width(LIMIT)], LIMIT)
        gone = [run["_id"] for run in first]
        left = [run for run in second if run["_id"] not in gone]
        ours.met(False)
        theirs.met(len(left) < len(second))
        yield not left
        runs = [run for run in runs if run not in first and run not in left]


def test_who_meets_nobody_takes_the_first(crowd: Crowd) -> None:
    assert crowd.width(LIMIT) == LIMIT
    runs = candidates(9, 5)
    assert crowd.chosen(runs[:LIMIT], LIMIT) == runs[:LIMIT]


def test_who_met_somebody_looks_at_more_for_a_while(crowd: Crowd) -> None:
    crowd.met(True)
    for _ in range(20):
        assert crowd.width(LIMIT) == 4 * LIMIT
        crowd.met(False)
    assert crowd.width(LIMIT) == LIMIT


def test_a_higher_priority_is_never_left_out(crowd: Crowd) -> None:
    """Chance decides among the lowest that still fit, and leaves those below alone."""
    runs = candidates(9, 5, 1)
    seen: set[str] = set()
    for _ in range(50):
        chosen = crowd.chosen(runs, 14)
        assert len(chosen) == 14
        assert chosen[:10] == runs[:10]
        assert {run["priority"] for run in chosen[10:]} == {5}
        assert [runs.index(run) for run in chosen] == sorted(runs.index(run) for run in chosen)
        seen |= {run["_id"] for run in chosen[10:]}
    assert len(seen) == 10


def test_fewer_than_wanted_are_all_taken(crowd: Crowd) -> None:
    runs = candidates(3)
    assert crowd.chosen(runs, 14) == runs


def test_sampling_spares_claims_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    sampling = list(claims_in_vain(member(1), member(2)))
    assert not any(sampling[1:-1])  # at first they have not met, at last both take what is left
    monkeypatch.setattr(Crowd, "width", lambda self, limit: limit)
    assert all(claims_in_vain(member(1), member(2)))


def introduced(*members: Crowd) -> None:
    for one in members:
        one.met(True)
        for other in members:
            if other is not one:
                one.heard(other.me)


def test_those_who_know_of_each_other_choose_nothing_twice() -> None:
    crowd = [member(n) for n in range(4)]
    introduced(*crowd)
    runs = [{"_id": f"{n}", "priority": 5} for n in range(400)]
    chosen = [run["_id"] for one in crowd for run in one.chosen(runs, 60)]
    assert len(chosen) == len(set(chosen)) == 240


def test_nothing_is_left_to_who_has_gone_silent() -> None:
    now = 0.0
    one = Crowd(random.Random(1), lambda: now)
    gone = member(2)
    introduced(one, gone)
    runs = [{"_id": f"{n}", "priority": 5} for n in range(40)]
    mine = one.chosen(runs, 40)
    assert 0 < len(mine) < 40
    left = [run for run in runs if run not in mine]
    assert one.chosen(left, 40) == left  # nothing of its own: anybody's
    now = 2.0
    assert one.chosen(runs, 40) == runs


def test_only_who_claimed_lately_says_so() -> None:
    now = 0.0
    one = Crowd(random.Random(1), lambda: now)
    assert not one.claims
    one.width(LIMIT)
    assert one.claims
    now = 2.0
    assert not one.claims
