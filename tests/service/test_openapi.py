"""Schemathesis over the API's own description: no 5xx, and every answer as it is described.

Some requests it makes up are good by the schema and refused all the same (a cron expression is
more than a text): that is no fault, so those checks are not asked for. `chaos/test_requests.py`
sends what no schema would.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from mainspring.dashboard.app import create_app
from mainspring.service.settings import ServiceSettings
from tests.support.service import ROUTES, sample_scheduler

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
SKIPPED = {"/api/v1/events"}
"""Streams do not end: `tests/service/api/test_events.py` tests them."""

SCHEDULER = sample_scheduler(workers=0)
APP = create_app(SCHEDULER, ServiceSettings.read(), without_keys=True)
SCHEMA = schemathesis.openapi.from_dict(APP.openapi())
SCHEMA.app = APP
FOUND: list[Any] = list(SCHEMA.get_all_operations())
OPERATIONS = [found.ok() for found in FOUND]
KNOWN = {"jobs": "known", "runs": "", "keys": ""}
"""An id of each kind that is there: made-up ids would only ever meet a 404."""


@pytest.fixture(scope="module", autouse=True)
def started() -> Iterator[None]:
    with SCHEDULER.blocking as blocking:
        blocking.add_job("known", handler="greet", schedule="@daily")
        KNOWN["runs"] = blocking.enqueue("greet", {"name": "x"}).id
        key, _ = blocking.wait_for(APP.state.service.keys.create("test", "read"))
        KNOWN["keys"] = key.id
        yield


@pytest.mark.parametrize(
    "operation",
    [one for one in OPERATIONS if one.path not in SKIPPED],
    ids=lambda one: str(one.label),
)
def test_every_answer_is_as_described(operation: Any) -> None:
    count = itertools.count()

    @settings(
        max_examples=25,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy())
    def check(case: Any) -> None:
        if "id" in case.path_parameters and next(count) % 2:
            [kind] = [kind for kind in KNOWN if f"/{kind}/" in operation.path]
            case.path_parameters["id"] = KNOWN[kind]
        case.call_and_validate(checks=CHECKS)

    check()


def test_only_creations_and_triggers_describe_a_location_and_a_replay() -> None:
    described = {
        f"{method.upper()} {path} {status}": set(answer.get("headers", {}))
        for path, operations in APP.openapi()["paths"].items()
        for method, operation in operations.items()
        for status, answer in operation["responses"].items()
    }
    assert {one for one, headers in described.items() if "Idempotency-Replayed" in headers} == {
        *("POST /api/jobs 201", "POST /api/v1/jobs 201", "POST /api/v1/jobs/{id}/trigger 202"),
    }
    assert {one for one, headers in described.items() if "Location" in headers} == {
        *("POST /api/jobs 201", "POST /api/v1/jobs 201", "POST /api/v1/jobs/{id}/trigger 202"),
    }


def test_every_endpoint_is_described() -> None:
    assert APP.openapi()["openapi"] == "3.1.0"
    routes = {f"{method} {route.path}" for route in ROUTES for method in route.methods}
    assert {str(one.label) for one in OPERATIONS} == routes
