"""Durations: how they are read, refused and written in words."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.durations import duration, humanize, humanize_measured
from mainspring.errors import InvalidInput


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("30s", 30),
        ("5m", 300),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        (" 1D ", 86_400),
        ("1w", 604_800),
        ("500ms", 0.5),
        ("1.5h", 5400),
        ("PT5M", 300),
        ("P1DT2H", 93_600),
        ("P1W", 604_800),
        ("pt0.5s", 0.5),
        (0, 0),
        (90, 90),
        (0.25, 0.25),
        (timedelta(minutes=2), 120),
    ],
)
def test_reads_what_people_write(given: str | float | timedelta, seconds: float) -> None:
    assert duration(given) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "given",
    [
        *("", " ", "5", "5x", "m5", "5m5m", "P", "PT", "1h-", "1e3s", "٣s"),
        *("9" * 60 + "w", "x" * 900, "999999999999w"),
        *(math.nan, math.inf, 1e300, 10**400),
        *(True, None, b"5m", [5]),
    ],
)
def test_refuses_the_rest(given: str) -> None:
    with pytest.raises(InvalidInput, match=r"^timeout .* cannot be used.*timedelta"):
        duration(given, what="timeout")


def test_a_bare_number_in_a_text_gets_advice() -> None:
    with pytest.raises(InvalidInput, match='a text needs a unit: "300s"'):
        duration("300")


@pytest.mark.parametrize(
    ("span", "words"),
    [
        (timedelta(0), "0 seconds"),
        (timedelta(seconds=1), "1 second"),
        (timedelta(hours=1, minutes=30), "1 hour 30 minutes"),
        (timedelta(days=8, milliseconds=5), "8 days 5 milliseconds"),
        (timedelta(minutes=-2), "minus 2 minutes"),
    ],
)
def test_a_duration_is_written_in_words(span: timedelta, words: str) -> None:
    assert humanize(span) == words


@given(st.timedeltas(min_value=timedelta(0)))
def test_a_span_survives_its_words(span: timedelta) -> None:
    units = {"day": "d", "hour": "h", "minute": "m", "second": "s", "milli": "ms", "micro": "us"}
    words = humanize(span).split()
    text = "".join(
        number + next(short for long, short in units.items() if unit.startswith(long))
        for number, unit in zip(words[::2], words[1::2], strict=True)
    )
    assert duration(text) == span


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0042, "4.2 ms"), (0.1, "0.1 s"), (2.54, "2.5 s"), (185.4, "3 minutes 5 seconds")],
)
def test_a_measured_duration_is_rounded(seconds: float, text: str) -> None:
    assert humanize_measured(seconds) == text
