"""Values in documents: no text is an operator, and text that MongoDB cannot keep is refused."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.errors import InvalidInput, StoreError
from mainspring.testing.store_calls import claim_runs, get_runs
from tests.support.mongodb.store import CLAIM, opened, some_runs


async def test_text_is_never_taken_for_an_operator(database_url: str) -> None:
    async with opened(database_url) as store:
        odd: list[Any] = [{"$ne": None}, {"$gt": 0}]
        await store.add(await some_runs(store, "a", payload={"$where": "1", "a.b": {"$gt": ""}}))
        [held] = await claim_runs(store, CLAIM)
        assert held.payload == {"$where": "1", "a.b": {"$gt": ""}}
        assert await get_runs(store, ["$ne", "a.b"]) == {}
        for wrong in odd:
            with pytest.raises((InvalidInput, StoreError, TypeError)):
                await get_runs(store, [wrong])


async def test_an_id_that_is_no_unicode_is_refused(database_url: str) -> None:
    async with opened(database_url) as store:
        with pytest.raises(InvalidInput, match="cannot keep"):
            await store.add(await some_runs(store, "caf\udce9"))
