"""What is news of a job, and what the throttle holds back."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from mainspring import State
from mainspring.contrib.notify.news import NEWS, Facts, Told, news_of
from mainspring.core.clock import to_us
from mainspring.core.model import Source
from mainspring.core.statistics import LastRun

AT = datetime(2026, 11, 19, 12, tzinfo=UTC)
LAST = LastRun("run-7", State.FAILED, Source.ENQUEUE, AT, AT, "ValueError: no\n  <b>")


@dataclass
class Receiver:
    """A target, as the notes say what it was told."""

    on: tuple[str, ...] = NEWS
    told: Told = field(default_factory=Told)
    waits: bool = False

    def hears(self, facts: Facts, minute: float = 0) -> list[str]:
        now = AT + timedelta(minutes=minute)
        news = news_of(facts, self.told, self.on, timedelta(minutes=15), now)
        self.told, self.waits = news.told, news.waits
        return list(news.lines)


def test_a_failure_is_told_once_with_its_error() -> None:
    team = Receiver()
    line = "1 run failed; the last was run-7 at 2026-11-19 12:00 UTC: ValueError: no <b>"
    assert team.hears(Facts(1, True, LAST)) == [line]
    assert team.hears(Facts(1, True, LAST), 1) == []
    assert not team.waits


def test_failures_within_the_throttle_are_counted_in_the_next_message() -> None:
    team = Receiver()
    team.hears(Facts(1, True, LAST))
    assert team.hears(Facts(5, True), 14.9) == []
    assert team.waits
    assert team.hears(Facts(43, True), 15) == ["42 runs failed since 2026-11-19 12:00 UTC"]


def test_a_recovery_is_told_at_once_and_only_after_a_failure_that_was_told() -> None:
    team = Receiver()
    assert team.hears(Facts(0, False)) == []
    team.hears(Facts(1, True))
    assert team.hears(Facts(1, False), 1) == ["has recovered: its last run succeeded"]
    assert team.hears(Facts(2, True), 2) == []  # a job that flaps
    assert team.hears(Facts(2, False), 3) == []
    assert team.hears(Facts(2, False), 20) == ["1 run failed since 2026-11-19 12:00 UTC"]
    assert team.hears(Facts(2, False), 21) == []


def test_failures_before_a_recovery_are_told_with_it() -> None:
    team = Receiver()
    team.hears(Facts(1, True))
    assert team.hears(Facts(4, False), 1) == [
        "3 runs failed since 2026-11-19 12:00 UTC",
        "has recovered: its last run succeeded",
    ]


def test_missed_slots_are_told_with_their_number() -> None:
    team = Receiver()
    gap = (to_us(AT), 3)
    assert team.hears(Facts(missed=(gap,))) == ["no process fired 3 slots in time"]
    later = (to_us(AT + timedelta(minutes=5)), 1)
    assert team.hears(Facts(missed=(gap, later)), 6) == []
    assert team.waits
    assert team.hears(Facts(missed=(gap, later)), 16) == ["no process fired 1 slot in time"]


def test_an_open_breaker_is_told_until_it_closes() -> None:
    team = Receiver()
    assert "is open" in team.hears(Facts(breaker=True))[0]
    assert team.hears(Facts(breaker=True), 100) == []
    assert "has closed" in team.hears(Facts(breaker=False), 101)[0]


def test_missed_slots_that_were_found_after_the_clock_was_read_are_told_once() -> None:
    team = Receiver()
    gap = (to_us(AT + timedelta(seconds=1)), 3)
    assert team.hears(Facts(missed=(gap,))) == ["no process fired 3 slots in time"]
    assert team.hears(Facts(missed=(gap,)), 20) == []


def test_a_breaker_that_flaps_is_told_once_in_the_throttle() -> None:
    team = Receiver()
    assert len(team.hears(Facts(breaker=True))) == 1
    assert len(team.hears(Facts(breaker=False), 1)) == 1
    assert team.hears(Facts(breaker=True), 2) == []
    assert team.waits
    assert team.hears(Facts(breaker=False), 3) == []
    assert "is open" in team.hears(Facts(breaker=True), 15)[0]


def test_the_end_of_a_breaker_that_was_open_before_is_no_news() -> None:
    team = Receiver(told=Facts(breaker=True).baseline(to_us(AT)))
    assert team.hears(Facts(breaker=False), 1) == []


def test_only_what_was_asked_for_is_told() -> None:
    everything = Facts(1, True, LAST, ((to_us(AT), 1),), True)
    for kind in NEWS[:1] + NEWS[2:]:
        assert len(Receiver((kind,)).hears(everything)) == 1
    only_recovery = Receiver(("recovery",))
    assert only_recovery.hears(everything) == []
    assert only_recovery.hears(Facts(1, False), 1) == ["has recovered: its last run succeeded"]


def test_a_job_that_is_made_again_begins_at_none() -> None:
    team = Receiver(told=Told(failed=9, failing=True))
    assert team.hears(Facts(0, False)) == []
    assert team.hears(Facts(1, True)) == ["1 run failed"]
