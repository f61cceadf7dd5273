"""URLs of MongoDB: what they name, what is refused, and that no password is shown."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo import MongoClient

from mainspring.errors import InvalidInput
from mainspring.stores import open_store
from mainspring.stores.mongodb import MongoStore
from mainspring.stores.mongodb.url import MongoUrl
from mainspring.stores.protocol import JobQuery, RunQuery
from mainspring.testing.store_calls import claim_runs
from tests.support.mongodb.query_plans import SentCommands
from tests.support.mongodb.store import CLAIM, opened, some_runs
from tests.support.servers.server import Document


def test_a_url_names_database_and_prefix() -> None:
    plain = MongoUrl.of("mongodb://h")
    assert (plain.database, plain.prefix) == ("mainspring", "mainspring_")
    full = MongoUrl.of("mongodb://u:p@h1,h2/app%2Dx?tls=true&mainspringPrefix=jobs_&w=1")
    assert full == ("mongodb://u:p@h1,h2/app%2Dx?tls=true&w=1", "app-x", "jobs_")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "a URL or a client"),
        ({"url": "mongodb://h", "client": ...}, "a URL or a client"),
        ({"client": ..., "database": "a/b"}, "name of a database"),
        ({"client": ..., "prefix": "$"}, "mainspringPrefix"),
    ],
)
def test_a_store_takes_a_url_or_a_client(given: dict[str, Any], message: str) -> None:
    if "client" in given:
        given = {**given, "client": MongoClient[Document](connect=False)}
    with pytest.raises(InvalidInput, match=message):
        MongoStore(**given)


@pytest.mark.parametrize(
    "url",
    [
        "mongodb://",
        "mongodb:///db",
        "mongodb://h/a.b",
        "mongodb://h/$x",
        "mongodb://h/x?mainspringPrefix=",
        "mongodb://h/x?mainspringPrefix=$cmd",
        "mongodb://h/x?mainspringPrefix=a%00b",
    ],
)
def test_a_url_that_names_nothing_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        open_store(url)


@pytest.mark.parametrize(
    "url",
    [
        "mongodb://me:hush@h:port/db",
        "mongodb://me:hush/hush@h",
        "mongodb://me:hush/hush@h/db",
        "mongodb://me:hush?hush@h/db",
        "mongodb://me:hush@hush@h/db",
        "mongodb://me:hush:hush@h/db",
        "mongodb://me:hush%@h/db",
        "mongodb://h/db?tls=true&tlsCAFile=/nowhere&tlsCertificateKeyFilePassword=hush",
        "mongodb://h/$?authMechanismProperties=AWS_SESSION_TOKEN:hush",
    ],
)
async def test_a_password_is_never_told(url: str) -> None:
    """Least of all with the URLs that are refused because a password was not escaped."""
    with pytest.raises(InvalidInput) as told:
        await MongoStore(url).open()
    assert "hush" not in str(told.value)
    if "hush/hush@h/db" in url:
        assert "write / ? # @ : % as %2F" in str(told.value)


@pytest.mark.parametrize("option", ["tlsCertificateKeyFile", "tlsCAFile"])
async def test_a_certificate_that_is_not_there_is_named(option: str) -> None:
    with pytest.raises(InvalidInput, match=r"cannot be used: .*/nowhere/key\.pem"):
        await MongoStore(f"mongodb://h/db?tls=true&{option}=/nowhere/key.pem").open()


async def test_reads_come_from_the_primary_whatever_the_url_says(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A URL that is shared with other programs may well ask for a secondary."""
    sent = SentCommands.record(monkeypatch)
    async with opened(
        f"{database_url}&readPreference=secondary&readConcernLevel=available"
    ) as store:
        await store.add(await some_runs(store, "a", dedupe_key="k"))
        await claim_runs(store, CLAIM)
        await store.counts()
        await store.find(RunQuery())
        await store.jobs(JobQuery())
        await store.wait(0.05)
        told = await store._db.client.admin.command("hello")
    assert set(sent.places) == {told["primary"]}
    reads = [one for one in sent.commands if {"find", "aggregate", "distinct"} & one.keys()]
    outside = [one for one in reads if "autocommit" not in one]
    assert {one["readConcern"]["level"] for one in outside} <= {"local", "majority", "snapshot"}
    begun = [one for one in sent.commands if "startTransaction" in one]
    assert {one["readConcern"]["level"] for one in begun} == {"snapshot"}
    assert {one.get("$readPreference", {"mode": "primary"})["mode"] for one in reads} == {"primary"}
