"""The tables of stored fields, the records made from them, and how damaged records are read."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mainspring.core.model import Job, Note, Run, State, Webhook, replace
from mainspring.errors import InvalidInput
from mainspring.stores import codec
from mainspring.stores.codec import (
    JOB,
    NOTE,
    RUN,
    job_from_record,
    job_to_record,
    note_from_record,
    note_to_record,
    read_webhook,
    run_from_record,
    run_to_record,
)
from mainspring.stores.sqlite import schema
from mainspring.stores.sqlite.files import FileLock
from mainspring.testing.conformance import round_trip

FULL_RUN, FULL_JOB, AT = round_trip.RUN, round_trip.JOB, round_trip.AT
FULL_NOTE = Note(kind="k", name="n", value={"at": AT}, version=3, expires_at=AT)
PLAIN_RUN = Run(id="r", job_id="j", handler="h", created_at=AT, scheduled_at=AT, run_at=AT)
PLAIN_JOB = Job(id="j", handler="h", created_at=AT, updated_at=AT)


def through_json(record: dict[str, Any]) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(json.dumps(record))
    return read


def test_every_field_of_a_webhook_comes_back_from_the_record_of_its_job() -> None:
    webhook, plain = FULL_JOB.webhook, Webhook(url="")
    names = Webhook.__struct_fields__
    assert [name for name in names if getattr(webhook, name) == getattr(plain, name)] == []
    assert job_from_record(through_json(job_to_record(FULL_JOB))).webhook == webhook


@pytest.mark.parametrize("run", [FULL_RUN, PLAIN_RUN], ids=["full", "plain"])
def test_a_run_comes_back_from_its_record(run: Run) -> None:
    assert run_from_record(through_json(run_to_record(run))) == run


@pytest.mark.parametrize("job", [FULL_JOB, PLAIN_JOB], ids=["full", "plain"])
def test_a_job_comes_back_from_its_record(job: Job) -> None:
    assert job_from_record(through_json(job_to_record(job))) == job


@pytest.mark.parametrize("note", [FULL_NOTE, Note(kind="k", name="n", value=None)])
def test_a_note_comes_back_from_its_record(note: Note) -> None:
    assert note_from_record(through_json(note_to_record(note))) == note


def test_a_record_leaves_out_what_is_empty() -> None:
    assert not {"payload", "after", "attempts", "worker"} & set(run_to_record(PLAIN_RUN))
    assert "payload" in run_to_record(replace(PLAIN_RUN, payload=False))


@pytest.mark.parametrize("name", [name for name in RUN.fields if name != "id"])
def test_a_damaged_field_of_a_run_leaves_the_others_readable(name: str) -> None:
    record = run_to_record(FULL_RUN) | {name: {"damaged": 1}}
    run = run_from_record(record)
    assert name in (run.unreadable or "")
    whole = replace(FULL_RUN, unreadable=run.unreadable)
    assert replace(run, **{name: getattr(FULL_RUN, name)}) == whole
    assert name != "state" or run.state is State.WAITING


@pytest.mark.parametrize("name", [name for name in JOB.fields if name != "id"])
def test_a_damaged_field_of_a_job_leaves_the_others_readable(name: str) -> None:
    record = job_to_record(FULL_JOB) | {name: {"damaged": 1}}
    job = job_from_record(record)
    assert name in (job.unreadable or "")
    whole = replace(FULL_JOB, unreadable=job.unreadable)
    assert replace(job, **{name: getattr(FULL_JOB, name)}) == whole


def test_a_record_without_a_required_field_is_unreadable() -> None:
    record = run_to_record(FULL_RUN)
    del record["run_at"]
    run = run_from_record(record)
    assert run.id == FULL_RUN.id
    assert "run_at" in (run.unreadable or "")


def test_a_brief_run_has_no_payload_result_and_attempts() -> None:
    assert RUN.not_brief == {"payload", "result", "attempts"}
    brief = RUN.brief_copy(FULL_RUN)
    assert brief == replace(FULL_RUN, payload=None, result=None, attempts=(), brief=True)


def test_a_change_of_a_field_that_no_store_keeps_is_refused() -> None:
    with pytest.raises(InvalidInput, match="a run has no stored field 'duplicate'"):
        RUN.field("duplicate")


def test_sqlite_has_a_column_for_every_field_of_a_run_and_a_note(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with closing(schema.connect(path, create=True)) as connection:
        schema.migrate(connection, path, FileLock(path.with_suffix(".lock"), 1))
        for table, fields in (
            ("mainspring_runs", RUN.fields),
            ("mainspring_jobs", JOB.fields),
            ("mainspring_notes", NOTE.fields),
        ):
            columns = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
            assert set(fields) <= columns


def webhook_text(body: str) -> str:
    return msgspec.json.encode(Webhook(url="https://example.com/", body=body)).decode()


def test_a_short_definition_is_decoded_once() -> None:
    assert read_webhook(webhook_text("short")) is read_webhook(webhook_text("short"))


def test_a_long_definition_is_not_kept() -> None:
    """Each edit of a large body makes another: thousands of them would fill the memory."""
    text = webhook_text("x" * codec.LONGEST_CACHED)
    first, second = read_webhook(text), read_webhook(text)
    assert first == second
    assert first is not second
