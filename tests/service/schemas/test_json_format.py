"""Values in JSON: those that JSON lacks, and text that is no Unicode."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from mainspring import RunContext
from mainspring.service.schemas.documents import read_json_value, to_json_value
from tests.support.payloads import values
from tests.support.service import Api, Make, sample_scheduler

ODD = "caf\udce9.txt"
"""As `os.listdir` gives for a name that is no UTF-8. JSON can hold it, escaped, and one handler's
must not take an answer from everybody."""


ESCAPED = r"caf\udce9.txt"
"""What messages show of it, on every store. The values of a program stay as they are."""


@pytest.fixture(params=["memory", "sqlite"])
async def odd(request: Any, make: Make, tmp_path: Path) -> Api:
    store = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/odd.db"
    scheduler = sample_scheduler(store)

    @scheduler.job()
    async def listing(ctx: RunContext) -> dict[str, str]:
        ctx.log.info("reading %s", ODD)
        ctx.progress(1, 2, ODD)
        return {"file": ODD}

    api: Api = await make(scheduler)
    return api


async def read(api: Api, path: str) -> Any:
    answer = await api.get(path)
    assert answer.status_code == 200, answer.text
    return json.loads(answer.content)


async def test_a_run_that_holds_a_lone_surrogate_is_told_and_listed(odd: Api) -> None:
    run = await odd.scheduler.enqueue("listing")
    await odd.scheduler.wait(run.id, 10)
    told = await read(odd, f"/api/v1/runs/{run.id}")
    assert told["result"] == {"file": ODD}
    assert told["progress"]["message"] == ESCAPED
    [line] = told["attempts"][0]["log"]
    assert line.endswith(ESCAPED)
    [listed] = (await read(odd, "/api/v1/runs"))["items"]
    assert listed["progress"]["message"] == ESCAPED
    assert len((await read(odd, "/api/jobs/listing/executions"))["data"]) == 1


@given(values)
def test_an_answered_value_is_read_back_as_it_was(value: Any) -> None:
    assert read_json_value(to_json_value(value)) == value


@pytest.mark.parametrize(
    ("value", "answered"),
    [
        ({"age": {"$gt": 5}}, {"age": {"$gt": 5}}),
        ({"$date": "x"}, {"$$date": "x"}),
        ({"$$gt": 5}, {"$$$gt": 5}),
        ({"$date": "x", "b": 1}, {"$date": "x", "b": 1}),
    ],
)
def test_only_names_that_would_be_read_as_something_else_are_escaped(
    value: Any, answered: Any
) -> None:
    assert to_json_value(value) == answered
