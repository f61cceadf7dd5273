"""`Idempotency-Key` where the client chooses the id: whose job is it that is there? And of runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from mainspring.core.model import Job, replace
from mainspring.stores import open_store
from mainspring.stores.memory import MemoryStore
from mainspring.testing import FaultyStore
from mainspring.webhooks import WebhookSettings
from mainspring.webhooks.vault import new_key
from tests.support.engine import SwitchableFaults
from tests.support.service import Api, Make, sample_scheduler
from tests.support.service_calls import refused

ROUND: dict[str, Any] = {
    "id": "mine",
    "every": "15m",
    "jitter": "3s",
    "timeout": "5s",
    "tags": ["a", "b"],
    "metadata": {"team": [1, 2.5, None]},
    "endpoint": "https://api.example.com/mine",
    "headers": {"Authorization": "Bearer me", "X-Plain": "1"},
    "body": {"a": [1, {"b": None}]},
    "retryOn": ["5xx"],
}
BODIES: list[dict[str, Any]] = [
    ROUND,
    {"name": "Mine", "endpoint": "https://api.example.com/mine", "schedule": "0 9 * * 1-5"},
    {"id": "mine", "endpoint": "https://api.example.com/mine", "schedule": "RRULE:FREQ=DAILY"},
    {"id": "mine", "handler": "greet", "payload": {"name": "Ada"}, "runAt": "2999-01-01T00:00:00Z"},
]


@pytest.mark.parametrize("store", ["memory", "sqlite"])
@pytest.mark.parametrize("body", BODIES)
async def test_a_job_that_was_made_is_known_again_by_what_was_asked(
    make: Make, tmp_path: Path, body: dict[str, Any], store: str
) -> None:
    """Where the client chose the id, and the answer was lost."""
    inner = MemoryStore() if store == "memory" else open_store(f"sqlite:///{tmp_path}/jobs.db")
    faults = SwitchableFaults()
    faults.error = "after"
    webhooks = WebhookSettings(secret_keys=[new_key()])
    scheduler = sample_scheduler(FaultyStore(inner, faults), workers=0, webhooks=webhooks)
    api: Api = await make(scheduler)
    faults.failing = {"put_jobs"}
    sent: dict[str, Any] = {"json": body, "headers": {"Idempotency-Key": "abc"}}
    await refused(api, "POST", "/api/v1/jobs", 503, **sent)
    faults.failing = set()
    again = await api.post("/api/v1/jobs", **sent)
    assert (again.status_code, again.json()["id"]) == (201, "mine")
    assert again.headers["idempotency-replayed"] == "true"


THEIRS: list[dict[str, Any]] = [
    {"endpoint": "https://api.example.com/theirs"},
    {"headers": {**ROUND["headers"], "Authorization": "Bearer them"}},
    {"headers": {"X-Plain": "1"}},
    {"body": {"a": []}},
    {"every": "16m"},
    {"tags": ["a"]},
    {"enabled": False},
    {"metadata": None},
    {"priority": 9},
]


@pytest.mark.parametrize("theirs", THEIRS, ids=str)
async def test_a_job_that_somebody_else_made_meanwhile_is_not_taken_for_ones_own(
    api: Api, monkeypatch: pytest.MonkeyPatch, theirs: dict[str, Any]
) -> None:
    """The key is noted, then somebody else takes the id, then the job is to be made."""
    add_job = api.scheduler.add_job

    async def add_second(*given: Any, **more: Any) -> Job:
        monkeypatch.undo()
        await api.ok("POST", "/api/v1/jobs", json={**ROUND, **theirs})
        return await add_job(*given, **more)

    monkeypatch.setattr(api.scheduler, "add_job", add_second)
    sent: dict[str, Any] = {"json": ROUND, "headers": {"Idempotency-Key": "abc"}}
    for _ in range(2):  # and it stays so
        document = await refused(api, "POST", "/api/v1/jobs", 409, **sent)
        assert "there is already a job 'mine'" in document["detail"]
    await api.ok("DELETE", "/api/v1/jobs/mine")
    made = await api.post("/api/v1/jobs", **sent)
    assert made.status_code == 201
    assert "signingSecret" in made.json()


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_a_trigger_that_is_sent_again_makes_one_run(
    make: Make, tmp_path: Path, store: str
) -> None:
    url = "memory://" if store == "memory" else f"sqlite:///{tmp_path}/jobs.db"
    api: Api = await make(sample_scheduler(url, workers=2))
    sent: dict[str, Any] = {"json": {"payload": {"name": "Ada"}}, **_key()}
    path = "/api/v1/jobs/greet/trigger"
    answers = await asyncio.gather(*(api.post(path, **sent) for _ in range(5)))
    assert {answer.status_code for answer in answers} == {202}
    [run] = {answer.json()["id"] for answer in answers}
    await api.scheduler.wait(run, 10)  # also when it has ended
    later = await api.post(path, **sent)
    assert later.headers["idempotency-replayed"] == "true"
    assert (later.json()["id"], later.json()["state"]) == (run, "succeeded")
    assert len((await api.ok("GET", "/api/v1/runs?job=greet"))["items"]) == 1
    other = {**sent, "json": {"payload": {"name": "Eve"}}}
    told = await refused(api, "POST", path, 422, **other)
    assert "another body" in told["detail"]
    # The key of one job says nothing of another's, nor of a job that is made.
    assert (await api.ok("POST", "/api/v1/jobs/report/trigger", **_key()))["id"] != run
    await api.ok("POST", "/api/v1/jobs", json=ROUND, **_key())


def _key() -> dict[str, Any]:
    return {"headers": {"Idempotency-Key": "abc"}}


async def test_a_run_whose_answer_was_lost_is_found_by_its_key(api: Api) -> None:
    """As after a crash between the run and the note that it was made."""
    first = await api.ok("POST", "/api/v1/jobs/greet/trigger", **_key())
    [note] = (await api.scheduler.list_notes("idempotency")).items
    await api.scheduler.put_note(replace(note, value={**note.value, "answer": None}))
    again = await api.ok("POST", "/api/v1/jobs/greet/trigger", **_key())
    assert again["id"] == first["id"]


async def test_a_refused_trigger_frees_its_key(api: Api) -> None:
    path = "/api/v1/jobs/greet/trigger"
    await refused(api, "POST", path, 422, json={"payload": {"nome": "Ada"}}, **_key())
    made = await api.ok("POST", path, json={"payload": {"name": "Ada"}}, **_key())
    [stored] = (await api.ok("GET", "/api/v1/runs"))["items"]
    assert stored["id"] == made["id"]


async def test_in_bulk_a_key_is_refused(api: Api) -> None:
    sent = {"jobs": [ROUND]}
    told = await refused(api, "POST", "/api/v1/jobs/bulk", 422, json=sent, **_key())
    assert "Idempotency-Key is for creating or triggering one job" in told["detail"]
    assert (await api.get("/api/v1/jobs/mine")).status_code == 404


@pytest.mark.parametrize(("form", "name"), [("/api/v1", "id"), ("/api", "jobId")])
async def test_a_key_whose_job_was_deleted_is_told_so(api: Api, form: str, name: str) -> None:
    sent: dict[str, Any] = {"json": BODIES[1], "headers": {"Idempotency-Key": "abc"}}
    found = await api.ok("POST", f"{form}/jobs", **sent)
    made = found.get("data", found)[name]
    assert (await api.delete(f"/api/v1/jobs/{made}")).status_code == 204
    answer = await api.post(f"{form}/jobs", **sent)
    assert (answer.status_code, answer.json()["code"]) == (409, "job_deleted")
    assert f"{made!r}, which this Idempotency-Key created, was deleted" in answer.json()["detail"]
    await refused(api, "GET", f"/api/v1/jobs/{made}", 404)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/api/v1/runs/bulk", {"action": "cancel", "match": {}}),
        ("PATCH", "/api/v1/jobs/mine", {"priority": 9}),
        ("POST", "/api/v1/chains", {"links": [{"jobId": "mine"}]}),
        ("POST", "/api/v1/keys", {"name": "ada", "scope": "read"}),
        ("POST", "/api/v1/jobs/mine/pause", None),
        ("POST", "/api/v1/pause", None),
        ("DELETE", "/api/v1/jobs/mine", None),
    ],
)
async def test_a_key_is_refused_where_it_would_mean_nothing(
    api: Api, method: str, path: str, body: dict[str, Any] | None
) -> None:
    await api.ok("POST", "/api/v1/jobs", json=ROUND)
    run = await api.scheduler.enqueue("greet")
    answer = await refused(api, method, path, 422, json=body, headers={"Idempotency-Key": "abc"})
    assert "Idempotency-Key is for creating" in answer["detail"]
    assert (await api.scheduler.get_job("mine")).policy.priority == 5
    assert not (await api.scheduler.get_run(run.id)).finished
    assert (await api.ok("GET", "/api/v1/keys"))["items"] == []
