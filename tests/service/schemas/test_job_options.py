"""A job that a client sends: its fields, the library's options, and how often rules are checked."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.core.options import JobOptions, PolicyOptions, option_names
from mainspring.core.policy import OPTIONS
from mainspring.service.schemas.job import SENT, JobBody
from mainspring.service.schemas.job_options import job_options
from mainspring.service.settings import ServiceSettings
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


async def test_a_handler_may_have_a_short_timeout(api: Api) -> None:
    body = {"id": "quick", "schedule": None, "handler": "report", "timeout": 30}
    assert (await api.post("/api/v1/jobs", json=body)).status_code == 201
