"""A job that a client sends: its fields, the library's options, and how often rules are checked."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.core import schedules
from mainspring.core.options import JobOptions, PolicyOptions, option_names
from mainspring.core.policy import OPTIONS
from mainspring.service.schemas import job
from mainspring.service.schemas.job import SENT, JobBody
from mainspring.service.schemas.job_options import job_options
from mainspring.service.settings import ServiceSettings
from mainspring.webhooks import definition
from tests.support.service import WEBHOOK, Api
from tests.support.service_calls import refused

LIBRARY_ONLY = {"retry_on", "give_up_on", "run_on_start"}
"""Options that mean something to a program alone: error classes, and its start."""


def test_every_option_of_the_library_is_in_each_list() -> None:
    """`Policy` reads it, `PolicyOptions` types it, `Job` has it over HTTP."""
    options = {*OPTIONS}
    assert option_names(PolicyOptions) == options
    over_http = {sent.option or name for name, sent in SENT.items() if sent.only != "endpoint"}
    assert options - LIBRARY_ONLY <= over_http
    assert over_http - {"schedule", "handler", "name", "url"} <= option_names(JobOptions)


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
    options = job_options(JobBody.model_validate({**WEBHOOK, **sent}), ServiceSettings.read(), {})
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
    await api.ok(
        "POST", "/api/v1/jobs", json={**WEBHOOK, "successCodes": [200], "retryOn": ["5xx"]}
    )
    assert sorted(calls) == ["define", "parse"]


async def test_an_edit_renders_the_stored_job_once_and_the_new_one_once(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await api.ok("POST", "/api/v1/jobs", json=WEBHOOK)
    rendered: list[int] = []
    render = job.Job.of

    def counted(stored: Any, *more: Any, **options: Any) -> Any:
        rendered.append(stored.version)
        return render(stored, *more, **options)

    monkeypatch.setattr(job.Job, "of", counted)
    await api.ok("PATCH", f"/api/v1/jobs/{made['id']}", json={**made, "priority": 7})
    assert len(rendered) == len({*rendered}) == 2


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
