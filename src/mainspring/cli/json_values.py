"""JSON in and out: payloads that users give; jobs and runs with the fields of the Python API."""

from __future__ import annotations

import json
import sys
from typing import Any

from msgspec import structs

from mainspring.cli.errors import BAD_INPUT, CommandError
from mainspring.core import codec
from mainspring.core.model import Job, Run
from mainspring.webhooks.service import masked_webhook


def run_document(run: Run) -> dict[str, Any]:
    fields = structs.asdict(run)
    del fields["brief"]
    values = {"payload": plain_json(run.payload), "result": plain_json(run.result)}
    return {**fields, **values, "duration": run.duration}


def job_document(job: Job) -> dict[str, Any]:
    schedule = job.schedule
    return {
        **structs.asdict(job),
        "payload": plain_json(job.payload),
        "metadata": plain_json(job.metadata),
        "schedule": None
        if schedule is None
        else {**schedule.to_dict(), "description": schedule.describe()},
        "policy": job.policy.to_dict(),
        "origins": job.policy_origins(),
        "webhook": None if job.webhook is None else masked_webhook(job.webhook),
    }


def plain_json(value: Any) -> Any:
    """A payload or result in JSON's own types; what JSON lacks is tagged, as it is stored."""
    return json.loads(codec.encode(value, limit=2**31))


def read_payload(text: str, option: str) -> Any:
    """The payload that `option` gives as JSON; `-` reads it from stdin."""
    try:
        return parse_json(sys.stdin.read() if text == "-" else text)
    except ValueError as error:
        where = f"{option}, read from stdin," if text == "-" else option
        raise CommandError(
            f"{where} is not JSON: {error}",
            code=BAD_INPUT,
            advice='in a shell, put it in single quotes: \'{"to": "a@example.org"}\'',
        ) from None


def parse_json(text: str) -> Any:
    """A payload as `--json` and the HTTP API write it: `{"$date": "2026-11-17"}` is a date, and
    `{"$$date": …}` the object `{"$date": …}`. Raises ValueError for what is not such JSON."""
    try:
        return codec.untag(json.loads(text, parse_constant=_refuse_constant))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"JSON has no {name}")
