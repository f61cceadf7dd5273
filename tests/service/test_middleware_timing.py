"""Constant-time comparison of keys, and the time limit of a body."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mainspring.service import api_keys, middleware
from tests.service.test_middleware import code, key
from tests.support.service import LONG, Api, Make

LIMITS = Path(__file__).parents[2] / "docs" / "reference" / "limits.md"


async def test_the_constant_time_comparison_decides_and_nothing_else(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A comparison that ends at the first difference would tell how much of a guess was right."""
    api: Api = await make(workers=0)
    good = (await key(api))["Authorization"]
    right = good.removeprefix("Bearer ms_")
    unknown = f"Bearer ms_{'0' * 12}_{'x' * 43}"
    asked: list[tuple[Any, Any]] = []
    verdict = False

    def compare(one: Any, other: Any) -> bool:
        asked.append((one, other))
        return verdict

    monkeypatch.setattr(api_keys, "hmac", SimpleNamespace(compare_digest=compare))
    assert await code(api, headers={"Authorization": good}) == 401
    hashed = hashlib.sha256(right.partition("_")[2].encode()).hexdigest()
    assert asked == [(hashed, hashed)]
    assert await code(api, headers={"Authorization": unknown}) == 401
    assert len(asked) == 2  # of an id that is not there too: the time tells nothing of that
    verdict = True
    assert await code(api, headers={"Authorization": good[:-1]}) == 200
    assert await code(api, headers={"Authorization": unknown}) == 401


async def test_a_body_that_does_not_come_is_waited_for_so_long(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert f"within {middleware.BODY_SECONDS:.0f} s" in LIMITS.read_text()
    monkeypatch.setattr(middleware, "BODY_SECONDS", 0.05)

    async def trickle() -> AsyncIterator[bytes]:
        yield b'{"schedule": '
        await asyncio.Event().wait()

    headers = {"Content-Type": "application/json"}
    async with asyncio.timeout(LONG):
        answer = await api.post("/api/jobs", content=trickle(), headers=headers)
    assert (answer.status_code, answer.json()["success"]) == (408, False)
    assert "did not arrive within" in answer.json()["error"]
    assert (await api.ok("GET", "/api/jobs?search=example"))["total"] == 0
