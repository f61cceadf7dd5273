"""What a store has, and what its docstrings promise."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import mainspring
from mainspring.stores.memory import MemoryStore
from mainspring.stores.mongodb import MongoStore
from mainspring.stores.protocol import Store
from mainspring.stores.sqlite import SqliteStore
from mainspring.testing import FaultyStore

MEMBERS = {
    "open", "close", "info", "now", "add", "claim", "renew", "commit", "find", "counts",
    "maintain", "jobs", "put_jobs", "fire", "notes", "put_notes", "wait", "transaction",
}  # fmt: skip


@pytest.mark.parametrize("store", [Store, MemoryStore, SqliteStore, MongoStore, FaultyStore])
def test_a_store_has_the_18_members_of_the_protocol_and_no_others(store: type) -> None:
    public = {name for name in vars(store) if not name.startswith("_")}
    assert public == MEMBERS


def test_nothing_above_the_stores_asks_which_store_it_has() -> None:
    source = Path(mainspring.__file__).parent
    for file in source.rglob("*.py"):
        if file.relative_to(source).parts[0] in ("stores", "testing"):  # FaultyStore wraps a store
            continue
        found = re.findall(r"isinstance\([^()]*Store\b|getattr\([a-z_.]*store\b", file.read_text())
        assert found == [], file
