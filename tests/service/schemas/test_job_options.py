"""A job that a client sends: its fields, the library's options, and how often rules are checked."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.core import schedules
from mainspring.core.options import JobOptions, option_names
from mainspring.service.schemas.job import OPTION_OF, Job, JobBody, JobFields
from mainspring.service.schemas.job_options import job_options
from mainspring.service.settings import ServiceSettings
from mainspring.webhooks import definition
from tests.support.service import WEBHOOK as SENT
from tests.support.service import Api
from tests.support.service_calls import refused


def test_every_field_that_can_be_sent_is_an_option_of_the_library_or_read_apart() -> None:
    fields = {OPTION_OF.get(name, name) for name in JobFields.model_fields}
    known = option_names(JobOptions) | {"handler", "name", "schedule", "every", "run_at"}
    assert fields <= known | set(definition.FIELDS) | {"secret_headers"}


def test_every_field_that_can_be_sent_is_answered_under_the_same_name() -> None:
    assert JobFields.model_fields.keys() <= set(Job.__struct_fields__)


@pytest.mark.parametrize(
    ("sent", "option", "value"),
    [
        ({"priority": None}, "priority", 5),
        ({"tags": None}, "tags", ()),
        ({"retryAttempts": 7}, "retries", 7),
        ({"executionType": "AT_LEAST_ONCE"}, "delivery", "at_least_once"),
        ({"name": "Mine", "metadata": {"a": 1}}, "metadata", {"a": 1, "name": "Mine"}),
    ],
)
def test_fields_become_options_of_the_library(
    sent: dict[str, Any], option: str, value: object
) -> None:
    options = job_options(JobBody.model_validate({**SENT, **sent}), ServiceSettings.read(), {})
    assert options[option] == value


async def test_a_new_job_is_defined_and_its_schedule_parsed_once(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def counted(module: Any, name: str) -> None:
        real = getattr(module, name)

        def call(*given: Any, **named: Any) -> Any:
            calls.append(name)
            return real(*given, **named)

        monkeypatch.setattr(module, name, call)

    counted(definition, "define")
    counted(schedules, "parse")
    await api.ok("POST", "/api/v1/jobs", json={**SENT, "successCodes": [200], "retryOn": ["5xx"]})
    assert sorted(calls) == ["define", "parse"]


@pytest.mark.parametrize("timeout", [30, 2, 499, 0.5])
async def test_a_bare_timeout_of_a_call_that_is_meant_as_seconds_is_refused(
    api: Api, timeout: float
) -> None:
    body = {"id": "call", "schedule": None, "endpoint": "https://example.org/"}
    for method, path, sent in [
        ("POST", "/api/v1/jobs", {**body, "timeout": timeout}),
        ("PATCH", "/api/v1/jobs/there", {"timeout": timeout}),
    ]:
        await api.post("/api/v1/jobs", json={**body, "id": "there"})
        answer = await refused(api, method, path, 422, json=sent)
        [error] = answer["errors"]
        assert error["field"] == "timeout"
        assert f'{timeout:g} is milliseconds: write "{timeout:g}s"' in error["message"]


@pytest.mark.parametrize("timeout", [500, 30_000, "30s", "200ms", None])
async def test_other_timeouts_of_a_call_are_accepted(api: Api, timeout: object) -> None:
    body = {"id": "call", "schedule": None, "endpoint": "https://example.org/", "timeout": timeout}
    assert (await api.post("/api/v1/jobs", json=body)).status_code == 201


async def test_a_handler_may_have_a_short_timeout(api: Api) -> None:
    body = {"id": "quick", "schedule": None, "handler": "report", "timeout": 30}
    assert (await api.post("/api/v1/jobs", json=body)).status_code == 201
