"""API keys: how they are made, checked, revoked, and what is kept of them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from mainspring.errors import InvalidInput
from mainspring.service.api_keys import ApiKeys
from mainspring.testing import FakeClock
from tests.support.service import Api, Make, sample_scheduler
from tests.support.service_calls import code, key


@pytest.mark.parametrize(
    "wrong",
    ["Bearer ms_000000000000_x", "Bearer x", "Bearer", "Basic dTpw", "Bearer ms__", "Bearer ☃"],
)
async def test_wrong_keys_open_nothing(make: Make, wrong: str) -> None:
    api: Api = await make(workers=0)
    await key(api)
    headers = [(b"Authorization", wrong.encode())]
    assert (await api.get("/api/v1/jobs", headers=headers)).status_code == 401


async def test_a_key_with_another_secret_opens_nothing(make: Make) -> None:
    api: Api = await make(workers=0, loopback=False)
    header = (await key(api))["Authorization"]
    assert await code(api, headers={"Authorization": header[:-1] + "~"}) == 401
    assert await code(api, headers={"Authorization": header}) == 200


async def test_a_key_expires_by_the_stores_clock() -> None:
    clock = FakeClock()
    async with sample_scheduler(clock=clock, workers=0) as scheduler:
        keys = ApiKeys(scheduler, clock)
        _, text = await keys.create("short", "read", timedelta(minutes=1))
        assert await keys.check(text) is not None
        clock.advance(61)
        assert await keys.check(text) is None
        assert await keys.any_exists() is True  # so that nothing is open again


async def test_a_revoked_key_is_noticed_by_other_instances_within_seconds() -> None:
    clock = FakeClock()
    async with sample_scheduler(clock=clock, workers=0) as scheduler:
        here, there = ApiKeys(scheduler, clock), ApiKeys(scheduler, clock)
        made, text = await here.create("mine", "read")
        assert await there.check(text) is not None
        await here.revoke(made.id)
        assert await here.check(text) is None
        clock.advance(6)
        assert await there.check(text) is None


async def test_only_a_hash_is_kept() -> None:
    async with sample_scheduler(workers=0) as scheduler:
        _, text = await ApiKeys(scheduler).create("mine", "read")
        [note] = (await scheduler.list_notes("api-key")).items
        assert text.split("_", 2)[2] not in str(note)


@pytest.mark.parametrize("span", [0, "0s"])
async def test_a_key_that_is_expired_from_the_start_is_refused(api: Api, span: Any) -> None:
    answer = await api.post(
        "/api/v1/keys", json={"name": "ci", "scope": "admin", "expiresIn": span}
    )
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "expiresIn"
    assert (await api.get("/api/v1/jobs")).status_code == 200  # nobody is locked out
    with pytest.raises(InvalidInput, match="longer than zero"):
        await ApiKeys(api.scheduler).create("ci", "admin", timedelta(seconds=-1))
