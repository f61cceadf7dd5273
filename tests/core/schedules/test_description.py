"""Cron expressions and recurrence rules in plain English."""

from __future__ import annotations

from datetime import datetime

import pytest

from mainspring.core.schedules import cron, rrule

FIRST = datetime(2027, 1, 1, 9, 30)


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("0 9 * * 1-5", "At 09:00, Monday through Friday"),
        ("*/5 * * * *", "Every 5 minutes"),
        ("* * * * * *", "Every second"),
        ("15,45 8-18 * * *", "At minutes 15 and 45, in hours 8 through 18"),
        ("30 * * * *", "At minute 30 past every hour"),
        ("5/10 * * * *", "Every 10 minutes from minute 5"),
        ("0 9,17 L * *", "At 09:00 and 17:00, on the last day of the month"),
        ("0 0 LW * *", "At 00:00, on the last weekday of the month"),
        ("0 12 * * 5#3", "At 12:00, on the third Friday of the month"),
        ("0 12 * * FRIL", "At 12:00, on the last Friday of the month"),
        ("0 0 13 * 5", "At 00:00, on day 13 of the month or on Friday"),
        ("0 0 */2 * 0", "At 00:00, on every second day of the month if it is Sunday"),
        (
            "0 0 * NOV-FEB */3",
            "At 00:00, on Sunday, Wednesday and Saturday, in November through February",
        ),
        (
            "30 0 9 1 1 ? 2027",
            "At 09:00:30, on day 1 of the month, in January, in 2027",
        ),
        ("0,15,30,45 * * * *", "Every 15 minutes"),
        ("*/7 * * * *", "Every 7 minutes from minute 0 through 56"),
        ("20/15 * * * *", "At minutes 20, 35 and 50 past every hour"),
        ("0 */5 * * *", "At 00:00, 05:00, 10:00, 15:00 and 20:00"),
        ("*/7 */5 * * *", "Every 7 minutes from minute 0 through 56, in hours 0, 5, 10, 15 and 20"),
        ("0 0 */7 * *", "At 00:00, on days 1, 8, 15, 22 and 29 of the month"),
        ("*/60 * * * *", "At minute 0 past every hour"),
        ("0-59/1 */1 * * *", "Every minute"),
        ("19-32,20,33,40 * * * *", "At minutes 19 through 33 and 40 past every hour"),
        ("0-40/5 * * * *", "Every 5 minutes from minute 0 through 40"),
        ("30 */2 * * *", "At minute 30, every 2 hours"),
        ("5 4-6/1 * * *", "At 04:05, 05:05 and 06:05"),
        ("0 20-2 * * *", "At minute 0, in hours 20 through 2"),
        ("* 9 * * *", "Every minute, in hour 9"),
        ("*/30 */2 * * *", "Every 30 minutes, in every second hour"),
        ("30 * * * * *", "At second 30 of every minute"),
        ("30 5,10 * * * *", "At second 30, in minutes 5 and 10 of every hour"),
        ("*/10 */5 9 * * *", "Every 10 seconds, in every fifth minute, in hour 9"),
        ("0 0 1,L * *", "At 00:00, on day 1 and the last day of the month"),
        ("0 0 4-5 * *", "At 00:00, on days 4 and 5 of the month"),
        ("0 0 20-L * *", "At 00:00, on days 20 through the last day of the month"),
        ("0 0 5/9 * *", "At 00:00, on days 5, 14 and 23 of the month"),
        ("0 0 L-0 * *", "At 00:00, on the last day of the month"),
        ("0 0 L-1 * *", "At 00:00, on the day before the last of the month"),
        ("0 0 L-3 * *", "At 00:00, on the day 3 days before the last of the month"),
        ("0 0 15W * *", "At 00:00, on the weekday nearest to day 15 of the month"),
        (
            "0 0 1 * */2",
            "At 00:00, on day 1 of the month if it is Sunday, Tuesday, Thursday or Saturday",
        ),
        ("0 0 13 * FRI,MON", "At 00:00, on day 13 of the month or on Monday or Friday"),
        ("0 0 13 * 0-6", "At 00:00"),
        ("0 0 5,* * MON", "At 00:00"),
        ("0 0 * * 7,0", "At 00:00, on Sunday"),
        ("0 0 * * FRI-MON", "At 00:00, Friday through Monday"),
        ("0 0 * * MON,FRIL", "At 00:00, on Monday and the last Friday of the month"),
        ("0 0 * * MON-TUE#1", "At 00:00, on the first Monday and the first Tuesday of the month"),
        ("0 0 * */4 *", "At 00:00, in January, May and September"),
        ("0 0 * FEB,JAN,3 *", "At 00:00, in January through March"),
        ("0 0 0 * * ? 2027/2", "At 00:00, in every second year from 2027"),
        (
            "0 0 0 * * ? 2027-2040/3,2050",
            "At 00:00, in 2027, 2030, 2033, 2036, 2039 and 2050",
        ),
    ],
)
def test_cron_expressions(expression: str, words: str) -> None:
    assert cron(expression).describe() == f"{words}, UTC"


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("FREQ=DAILY", "Every day, at 09:30"),
        (
            "FREQ=WEEKLY;INTERVAL=2;BYDAY=MO,WE;BYSECOND=0",
            "Every 2 weeks, on Monday and Wednesday, at 09:30",
        ),
        (
            "FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=7;BYMINUTE=0;BYSECOND=0;COUNT=3",
            "Every month, on the last Friday, at 07:00, 3 times",
        ),
        ("FREQ=HOURLY;BYSECOND=0", "Every hour, at minute 30"),
        (
            "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=-1;BYSECOND=0;UNTIL=20300101",
            "Every year, in February, on the last day of the month, at 09:30, until 2030-01-01",
        ),
        ("FREQ=YEARLY", "Every year, in January, on day 1 of the month, at 09:30"),
        ("FREQ=MONTHLY", "Every month, on day 1 of the month, at 09:30"),
        ("FREQ=WEEKLY", "Every week, on Friday, at 09:30"),
        (
            "FREQ=MONTHLY;BYMONTHDAY=1,-1",
            "Every month, on the first and the last day of the month, at 09:30",
        ),
        ("FREQ=MONTHLY;BYMONTHDAY=1,15", "Every month, on days 1 and 15 of the month, at 09:30"),
        (
            "FREQ=MONTHLY;BYMONTHDAY=13;BYDAY=FR",
            "Every month, on day 13 of the month if it is Friday, at 09:30",
        ),
        ("FREQ=YEARLY;BYDAY=21MO", "Every year, on the 21st Monday, at 09:30"),
        (
            "FREQ=YEARLY;BYDAY=11MO,22TU",
            "Every year, on the 11th Monday and the 22nd Tuesday, at 09:30",
        ),
        (
            "FREQ=YEARLY;BYWEEKNO=-1;BYDAY=MO",
            "Every year, in the last week of the year, on Monday, at 09:30",
        ),
        (
            "FREQ=YEARLY;BYYEARDAY=-1,100",
            "Every year, on the 100th and the last day of the year, at 09:30",
        ),
        (
            "FREQ=MONTHLY;BYDAY=MO,TU;BYSETPOS=-2",
            "Every month, on Monday and Tuesday, at 09:30, only the second to last of these",
        ),
        ("FREQ=WEEKLY;BYDAY=MO,TU,WE,TH,FR", "Every week, on Monday through Friday, at 09:30"),
        ("FREQ=DAILY;BYDAY=MO,TU", "Every day, if it is Monday or Tuesday, at 09:30"),
        (
            "FREQ=DAILY;BYMONTHDAY=12,21;BYDAY=MO",
            "Every day, if it is day 12 or 21 of the month and it is Monday, at 09:30",
        ),
        ("FREQ=DAILY;COUNT=1", "Every day, at 09:30, once"),
        ("FREQ=DAILY;UNTIL=20271231T000000Z", "Every day, at 09:30, until 2027-12-31 00:00 UTC"),
        ("FREQ=DAILY;UNTIL=20271231T235959", "Every day, at 09:30, until 2027-12-31 23:59:59"),
        (
            "FREQ=HOURLY;BYHOUR=8,9,10,11,12,13,14",
            "Every hour, at minute 30, in hours 8 through 14",
        ),
        ("FREQ=HOURLY;INTERVAL=2;BYMINUTE=0", "Every 2 hours"),
        ("FREQ=SECONDLY;BYMINUTE=5", "Every second, in minute 5"),
    ],
)
def test_rules(rule: str, words: str) -> None:
    assert rrule(rule, start=FIRST).describe() == f"{words}, UTC"


def test_times_beside_a_rule_are_counted() -> None:
    once = rrule("DTSTART:20270101T090000\nRRULE:FREQ=DAILY\nRDATE:20270101T120000")
    assert once.describe() == "Every day, at 09:00, and once more, UTC"
    twice = rrule(
        "DTSTART:20270101T090000\nRRULE:FREQ=DAILY\nRDATE:20270101T120000,20270102T120000"
    )
    assert twice.describe() == "Every day, at 09:00, and 2 more times, UTC"
