"""The tables of stored fields, the records made from them, and how damaged records are read."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from mainspring.core.model import State, Webhook, replace
from mainspring.errors import InvalidInput
from mainspring.stores import codec
from mainspring.stores.codec import (
    JOB,
    RUN,
    job_from_record,
    job_to_record,
    read_webhook,
    run_from_record,
    run_to_record,
)
from mainspring.testing.conformance import round_trip

FULL_RUN, FULL_JOB, AT = round_trip.RUN, round_trip.JOB, round_trip.AT


def through_json(record: dict[str, Any]) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(json.dumps(record))
    return read


def test_every_field_of_a_webhook_comes_back_from_the_record_of_its_job() -> None:
    webhook, plain = FULL_JOB.webhook, Webhook(url="")
    names = Webhook.__struct_fields__
    assert [name for name in names if getattr(webhook, name) == getattr(plain, name)] == []
    assert job_from_record(through_json(job_to_record(FULL_JOB))).webhook == webhook


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


def test_a_change_of_a_field_that_no_store_keeps_is_refused() -> None:
    with pytest.raises(InvalidInput, match="a run has no stored field 'duplicate'"):
        RUN.field("duplicate")


def webhook_text(body: str) -> str:
    return msgspec.json.encode(Webhook(url="https://example.com/", body=body)).decode()


def test_a_long_definition_is_not_kept() -> None:
    """Each edit of a large body makes another: thousands of them would fill the memory."""
    text = webhook_text("x" * codec.LONGEST_CACHED)
    first, second = read_webhook(text), read_webhook(text)
    assert first == second
    assert first is not second
