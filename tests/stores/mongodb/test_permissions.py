"""Which permissions a database user needs: passwords, roles, indexes made by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from mainspring.core import transitions
from mainspring.errors import StoreError, StoreUnavailable
from mainspring.stores.mongodb import MongoStore, schema
from mainspring.testing.store_calls import claim_runs
from tests.support.mongodb.every_operation import do_everything, some_runs
from tests.support.mongodb.store import CLAIM, opened
from tests.support.servers.mongodb import ReplicaSet, with_database
from tests.support.servers.server import Document

BY_HAND = ["find", "insert", "update", "remove", "listIndexes", "listCollections"]
"""What docs/how-to/use-mongodb.md says a program needs where somebody else makes the indexes."""


@pytest.fixture(scope="module")
def guarded() -> Iterator[ReplicaSet]:
    """A server that asks for a password."""
    with ReplicaSet(1, auth=True) as servers:
        yield servers


async def test_a_wrong_password_is_no_reason_to_wait(guarded: ReplicaSet) -> None:
    url = guarded.add_user("user", "right", {"role": "readWrite", "db": "jobs"})
    with pytest.raises(StoreError, match="refused the user or the password") as told:
        await MongoStore(with_database(url, "jobs").replace(":right@", ":wrong@")).open()
    assert not isinstance(told.value, StoreUnavailable)


async def test_retention_needs_no_more_rights(guarded: ReplicaSet) -> None:
    """An index that expires runs would: to change its time takes `collMod`."""
    url = with_database(
        guarded.add_user("keeper", "k", {"role": "readWrite", "db": "kept"}), "kept"
    )
    async with opened(url) as store:
        await store.add(await some_runs(store, "a", "b", dedupe_key="k"))
        held = await claim_runs(store, CLAIM)
        now = await store.now()
        await store.commit([transitions.succeeded(run, now, None) for run in held])
        assert await store.maintain(now + timedelta(seconds=1), 10) == len(held)
    with MongoClient[Document](url) as client:
        index = {"name": "ended", "expireAfterSeconds": 60}
        with pytest.raises(OperationFailure, match="not authorized"):
            client["kept"].command("collMod", "mainspring_runs", index=index)
        assert list(client["kept"]["mainspring_keys"].find()) == []


async def test_a_user_who_may_not_write_is_told_so(guarded: ReplicaSet) -> None:
    url = guarded.add_user("reader", "r", {"role": "read", "db": "jobs"})
    with pytest.raises(StoreError, match="readWrite"):
        await MongoStore(with_database(url, "jobs")).open()


async def test_a_user_with_read_write_alone_can_do_everything(guarded: ReplicaSet) -> None:
    url = guarded.add_user("plain", "p/w:x@y", {"role": "readWrite", "db": "jobs"})
    await do_everything(with_database(url, "jobs"))


# -- indexes by hand ------------------------------------------------------------------------

_FILLER = re.compile(r"//.*|const mainspring = db\.getSiblingDB\(\"byhand\"\);|if \(.*|")
_MAKES = re.compile(
    r"\s*mainspring\.createCollection\((\".*?\")(, \{capped: true, size: \d+\})?\);"
)
_INDEX = re.compile(r"mainspring\.getCollection\((\".*?\")\)\.createIndex\((\{.*?\}), (\{.*\})\);")


def by_hand(servers: ReplicaSet, script: str, database: str) -> None:
    """Do what each line of the script says, as an operator with every right."""
    with servers.client() as client:
        for line in script.splitlines():
            if made := _MAKES.fullmatch(line):
                more: Any = {"capped": True, "size": schema.WAKEUPS_BYTES} if made[2] else {}
                client[database].create_collection(json.loads(made[1]), **more)
            elif index := _INDEX.fullmatch(line):
                collection, keys, options = map(json.loads, index.groups())
                client[database][collection].create_index(list(keys.items()), **options)
            else:
                assert _FILLER.fullmatch(line), line


async def test_indexes_by_hand_and_a_role_that_may_make_none(guarded: ReplicaSet) -> None:
    url = "mongodb://h/byhand"
    by_hand(guarded, MongoStore(url).info().setup_script or "", "byhand")
    with guarded.client() as client:
        client["byhand"].create_collection("effects")
        where = {"db": "byhand", "collection": ""}
        client["byhand"].command(
            "createRole",
            "works",
            privileges=[{"resource": where, "actions": BY_HAND}],
            roles=[],
        )
    url = with_database(
        guarded.add_user("worker", "w", {"role": "works", "db": "byhand"}), "byhand"
    )
    await do_everything(url)
    with guarded.client() as client:
        for index in schema.INDEXES:
            made = client["byhand"][f"mainspring_{index.collection}"].index_information()
            assert made[index.name]["key"] == list(index.keys)
            assert made[index.name].get("partialFilterExpression") == index.only
        # Without the cap it cannot work, and this user cannot mend that.
        client["byhand"]["mainspring_wakeups"].drop()
        client["byhand"].create_collection("mainspring_wakeups")
        with pytest.raises(StoreError, match=r"should be capped.*mainspring store schema"):
            await MongoStore(url).open()
        client["byhand"]["mainspring_runs"].drop_index("due")
        client["byhand"]["mainspring_wakeups"].drop()
        client["byhand"].create_collection("mainspring_wakeups", capped=True, size=65536)
        with pytest.raises(StoreError, match="may not do this"):
            await MongoStore(url).open()
