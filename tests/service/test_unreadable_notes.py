"""Notes whose value cannot be read: keys, sessions, the audit log, idempotency records."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from mainspring.service.api_keys import ApiKeys
from mainspring.service.sessions import Sessions
from tests.support.service import Api, Make, sample_scheduler


@pytest.fixture
async def api(make: Make, tmp_path: Path) -> Api:
    made: Api = await make(sample_scheduler(f"sqlite:///{tmp_path}/jobs.db", workers=0))
    return made


def damage(tmp_path: Path, kind: str, name: str = "%") -> None:
    with sqlite3.connect(tmp_path / "jobs.db") as connection:
        changed = connection.execute(
            "UPDATE mainspring_notes SET value = 'damaged' WHERE kind = ? AND name LIKE ?",
            (kind, name),
        )
        assert changed.rowcount > 0
    connection.close()


async def test_an_unreadable_key_is_never_valid_and_is_listed_as_revoked(
    api: Api, tmp_path: Path
) -> None:
    keys = ApiKeys(api.scheduler)
    bad, text = await keys.create("ops", "admin")
    good, other = await keys.create("good", "admin")
    damage(tmp_path, "api-key", bad.id)
    keys = ApiKeys(api.scheduler)
    assert await keys.check(text) is None
    assert await keys.check(f"ms_{bad.id}_") is None
    assert not await keys.still_valid(bad.id, 0)
    headers = {"Authorization": f"Bearer {other}"}
    listed = (await api.get("/api/v1/keys", headers=headers)).json()
    found = {one["id"]: (one["name"], one["state"]) for one in listed["items"]}
    assert found == {bad.id: ("(unreadable)", "revoked"), good.id: ("good", "active")}
    assert (await keys.revoke(bad.id)).name == "(unreadable)"


async def test_a_store_with_unreadable_keys_alone_still_needs_a_key(
    api: Api, tmp_path: Path
) -> None:
    await ApiKeys(api.scheduler).create("ops", "admin")
    damage(tmp_path, "api-key")
    assert (await api.get("/api/v1/jobs")).status_code == 401


async def test_an_unreadable_session_is_none(api: Api, tmp_path: Path) -> None:
    keys = ApiKeys(api.scheduler)
    key, _ = await keys.create("ops", "admin")
    text, _ = await Sessions(api.scheduler, keys).create(key)
    damage(tmp_path, "session")
    sessions = Sessions(api.scheduler, keys)
    assert await sessions.key(text) is None
    assert not await sessions.exists(text, 0)
    answer = await api.get("/api/v1/jobs", headers={"Cookie": f"mainspring_session_3000={text}"})
    assert answer.status_code == 401


async def test_unreadable_entries_of_the_audit_log_are_left_out(api: Api, tmp_path: Path) -> None:
    audit = api.app.state.service.audit
    for job in ("greet", "report"):
        await api.post(f"/api/v1/jobs/{job}/pause")
        await audit.flush()
    [newest, _] = (await api.scheduler.list_notes("audit")).items
    damage(tmp_path, "audit", newest.name)
    assert [one.path for one in (await audit.list()).items] == ["/api/v1/jobs/greet/pause"]


async def test_an_unreadable_idempotency_record_answers_409(api: Api, tmp_path: Path) -> None:
    sent = {"Idempotency-Key": "abc"}
    first = await api.post("/api/v1/jobs/report/trigger", headers=sent)
    assert first.status_code == 202
    damage(tmp_path, "idempotency")
    again = await api.post("/api/v1/jobs/report/trigger", headers=sent)
    assert again.status_code == 409
    assert "use a new key" in again.json()["detail"]
