"""`mainspring enqueue`: payloads, options, and waiting for the end."""

from __future__ import annotations

import asyncio
import signal
from datetime import date, datetime, timedelta
from pathlib import Path

import pytest

from mainspring import Client
from tests.support.command_line import Run, Start

StoredRuns = dict[str, str]


def test_prints_the_id_alone_in_a_pipe(run: Run, stored_runs: StoredRuns) -> None:
    answer = run("enqueue", "send_email", '{"to": "b"}')
    assert answer.code == 0
    found = run("runs", "show", answer.out.strip(), "--json").json
    assert (found["payload"], found["source"]) == ({"to": "b"}, "enqueue")


def test_payload_from_stdin(run: Run, stored_runs: StoredRuns) -> None:
    answer = run("enqueue", "send_email", "-", "--json", stdin='{"to": "c"}\n')
    assert answer.json["payload"] == {"to": "c"}


def test_delay_priority_queue_and_time_reach_the_run(run: Run, stored_runs: StoredRuns) -> None:
    made = run(
        "enqueue", "whoami", "--delay", "1h", "--priority", "9", "--queue", "mail", "--json"
    ).json
    assert (made["priority"], made["queue"]) == (9, "mail")
    created, due = (datetime.fromisoformat(made[name]) for name in ("created_at", "run_at"))
    assert due - created == timedelta(hours=1)
    later = run("enqueue", "whoami", "--at", "2030-01-01T09:00:00+02:00", "--json").json
    assert later["run_at"] == "2030-01-01T07:00:00Z"
    plain = run("enqueue", "whoami", "--at", "2030-01-01 09:00", "--json").json
    assert plain["run_at"] == "2030-01-01T09:00:00Z"


def test_a_second_run_with_the_same_dedupe_key_is_a_duplicate(
    run: Run, stored_runs: StoredRuns
) -> None:
    words = ("enqueue", "whoami", "--dedupe-key", "k", "--dedupe-for", "1h", "--json")
    first, second = run(*words).json, run(*words).json
    assert second["id"] == first["id"]
    assert (first["duplicate"], second["duplicate"]) == (False, True)


def test_wait_tells_the_end_by_its_exit_code(
    start: Start, run: Run, stored_runs: StoredRuns
) -> None:
    start("worker", "app:scheduler")
    good = run("enqueue", "send_email", '{"to": "d"}', "--wait", "--json")
    assert (good.code, good.json["result"]) == (0, "sent to d")
    bad = run("enqueue", "send_email", '{"to": "nobody"}', "--wait", "--json")
    assert (bad.code, bad.json["state"]) == (1, "failed")


def test_wait_gives_up(run: Run, stored_runs: StoredRuns) -> None:
    answer = run("enqueue", "whoami", "--wait", "--timeout", "50ms")
    assert answer.code == 1
    assert "did not end within 50 milliseconds: it is pending" in answer.err
    assert "mainspring doctor" in answer.err


def test_with_the_app_arguments_are_checked(run: Run, stored_runs: StoredRuns) -> None:
    assert run("enqueue", "send_email", '{"too": "b"}').code == 0
    refused = run("enqueue", "send_email", '{"too": "b"}', "--app", "app:scheduler").refusal
    assert "missing to" in refused


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nothing",), "there is no job 'nothing'"),
        (("whoami", "{to: b}"), "PAYLOAD is not JSON"),
        (("whoami", '{"to": NaN}'), "PAYLOAD is not JSON: JSON has no NaN"),
        (("whoami", "[" * 100_000), "PAYLOAD is not JSON: it is nested too deeply"),
        (("whoami", '{"to": {"$date": "soon"}}'), '{"$date": "soon"} is not a date'),
        (("whoami", f'"{"x" * 300_000}"'), "at most 262,144"),
        (("whoami", "--at", "noon"), "no ISO 8601"),
        (("whoami", "--delay", "5m", "--at", "2030-01-01"), "delay or at, not both"),
        (("whoami", "--dedupe-for", "5m"), "dedupe_key"),
        (("whoami", "--timeout", "5m"), "--wait"),
        (("whoami", "--priority", "10"), "priority is 0 to 9, not 10"),
        (("whoami", "--priority", "high"), "invalid value for '--priority'"),
        (("whoami", "{}", "--many", "x.jsonl"), "--many"),
        (("whoami", "--many", "missing.jsonl"), "missing.jsonl cannot be read"),
    ],
)
def test_wrong_input_is_refused_and_nothing_is_enqueued(
    run: Run, stored_runs: StoredRuns, words: tuple[str, ...], message: str
) -> None:
    answer = run("enqueue", *words)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err
    assert len(run("runs", "list", "--json").json["items"]) == 2


def test_each_line_of_a_file_becomes_a_run(run: Run, stored_runs: StoredRuns, folder: Path) -> None:
    lines = "".join(f'{{"to": "{n}"}}\n\n' for n in range(2500))
    (folder / "many.jsonl").write_text(lines)
    answer = run("enqueue", "send_email", "--many", "many.jsonl", "--delay", "1h", "--json")
    assert answer.json == {"job_id": "send_email", "enqueued": 2500}
    said = run("enqueue", "send_email", "--many", "-", stdin=lines)
    assert said.out == "enqueued 2,500 runs of send_email\n"
    assert (
        run("enqueue", "send_email", "--many", "-", stdin="").out
        == "the file has no lines: nothing was enqueued\n"
    )


@pytest.mark.parametrize("source", ["many.jsonl", "-"])
def test_a_bad_line_stops_everything_before_it_begins(
    run: Run, stored_runs: StoredRuns, folder: Path, source: str
) -> None:
    lines = '{"to": "a"}\n' * 1500 + "oops\n"
    (folder / "many.jsonl").write_text(lines)
    refused = run("enqueue", "send_email", "--many", source, stdin=lines).refusal
    assert f"{source.replace('-', 'stdin')}, line 1501 is not JSON" in refused
    assert len(run("runs", "list", "--json").json["items"]) == 2


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ('{"day": {"$date": "2026-11-17"}}', {"day": date(2026, 11, 17)}),
        ('{"day": {"$$date": "2026-11-17"}}', {"day": {"$date": "2026-11-17"}}),
        ('{"price": {"$gt": 5}}', {"price": {"$gt": 5}}),
    ],
)
def test_every_command_reads_payloads_as_json_output_writes_them(
    run: Run, stored_runs: StoredRuns, folder: Path, text: str, read: object
) -> None:
    assert run("jobs", "add", "notes", "--handler", "elsewhere", "--payload", text).code == 0
    ids = [run("enqueue", "notes", text).out.strip(), run("enqueue", "notes").out.strip()]
    ids += run("chain", f"notes={text}", "notes").out.split()
    (folder / "lines.jsonl").write_text(text)
    assert run("enqueue", "notes", "--many", "lines.jsonl").code == 0
    ids += [one["id"] for one in run("runs", "list", "--job", "notes", "--json").json["items"]]

    async def payloads() -> list[object]:
        async with Client("sqlite:///mainspring.db", inline=True) as client:
            return [(await client.get_run(run_id)).payload for run_id in ids]

    assert asyncio.run(payloads()) == [read] * len(ids)


def test_ctrl_c_while_waiting_says_that_the_run_goes_on(
    run: Run, stored_runs: StoredRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wait(client: Client, run_id: str, timeout: object) -> None:
        signal.raise_signal(signal.SIGINT)
        await asyncio.Event().wait()

    monkeypatch.setattr(Client, "wait", wait)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job may ignore it
    answer = run("enqueue", "whoami", "--wait")
    signal.signal(signal.SIGINT, before)
    [made] = run("runs", "list", "--job", "whoami", "--json").json["items"]
    assert made["state"] == "pending"
    told = f"stopped waiting; run {made['id']} goes on: `mainspring runs show {made['id']}`"
    assert (answer.code, answer.err) == (1, f"error: {told}\n")


WEEK = ("--from", "2026-01-05", "--to", "2026-01-12")


def test_past_slots_are_run_once(run: Run, stored_runs: StoredRuns) -> None:
    plan = run("backfill", "daily_report", *WEEK, "--dry-run")
    assert plan.out == "5 slots of daily_report: 5 runs would be added, 0 left alone\n"
    assert "older than the runs that are kept" in plan.err
    first = run("backfill", "daily_report", *WEEK, "--limit", "2", "--json").json
    # At 09:00 in Asia/Kolkata, in which the dates are read too.
    assert first["added"] == ["daily_report@20260105T033000Z", "daily_report@20260106T033000Z"]
    assert first["next_slot"] == "2026-01-07T03:30:00Z"
    rest = run("backfill", "daily_report", *WEEK)
    assert rest.out == ("5 slots of daily_report: 3 runs added, 2 left alone\n  2 pending\n")
    shown = run("runs", "show", first["added"][0], "--json").json
    assert (shown["source"], shown["priority"]) == ("backfill", 0)


def test_what_is_wrong_is_said(run: Run, stored_runs: StoredRuns) -> None:
    refused = run("backfill", "daily_report", "--from", "soon").refusal
    assert "--from 'soon' is no ISO 8601 date-time" in refused
    assert (
        "later than start"
        in run("backfill", "daily_report", "--from", "2026-02-01", "--to", "2026-01-01").err
    )
    assert "has no schedule" in run("backfill", "send_email", "--from", "2026-01-01").err
    assert run("backfill", "nobody", "--from", "2026-01-01").code == 2
