"""Records the commands that a store sends to MongoDB and has the server explain them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from pymongo.monitoring import (
    CommandFailedEvent,
    CommandListener,
    CommandStartedEvent,
    CommandSucceededEvent,
)

from mainspring.stores.mongodb import store
from mainspring.stores.mongodb.database import Database, Document
from mainspring.stores.mongodb.url import driver_defaults

__all__ = ["Plan", "SentCommands"]

_PARTS = {"update": "updates", "delete": "deletes"}
_EXPLAINED = frozenset({"find", "aggregate", "distinct", "count", "findAndModify", *_PARTS})
_OF_THE_CALL = frozenset({"lsid", "txnNumber", "maxTimeMS", "writeConcern", "readConcern"}) | {
    "startTransaction",
    "autocommit",
}


@dataclass(frozen=True, slots=True)
class Plan:
    command: Document
    keys: int
    documents: int
    given: int
    stages: frozenset[str]

    @property
    def kind(self) -> str:
        return next(iter(self.command))

    @property
    def collection(self) -> str:
        return str(self.command[self.kind]).rpartition("_")[2]

    @property
    def condition(self) -> Document:
        """Of a find or a single write."""
        part = self.command[_PARTS[self.kind]][0]["q"] if self.kind in _PARTS else None
        found: Document = part or self.command.get("filter", {})
        return found

    @property
    def hint(self) -> Any:
        if self.kind in _PARTS:
            return self.command[_PARTS[self.kind]][0].get("hint")
        return self.command.get("hint")


class SentCommands(CommandListener):
    """Records the commands that a store sends."""

    def __init__(self) -> None:
        self.commands: list[Document] = []
        self.places: list[str] = []
        """Which server each was sent to."""

    @classmethod
    def record(cls, monkeypatch: pytest.MonkeyPatch) -> SentCommands:
        """For every store that connects from now on."""
        sent = cls()

        def defaults(url: str) -> dict[str, Any]:
            return {**driver_defaults(url), "event_listeners": [sent]}

        monkeypatch.setattr(store, "driver_defaults", defaults)
        return sent

    def started(self, event: CommandStartedEvent) -> None:
        self.commands.append(dict(event.command))
        self.places.append("{}:{}".format(*event.connection_id))

    def succeeded(self, event: CommandSucceededEvent) -> None:
        pass

    def failed(self, event: CommandFailedEvent) -> None:
        pass

    async def plans(self, db: Database) -> list[Plan]:
        """Of all that was sent since the last call, but for hints and inserts."""
        heard, self.commands = self.commands, []
        plans = [await _explained(db, one) for command in heard for one in _single(db, command)]
        self.commands.clear()
        return plans


def _single(db: Database, command: Document) -> Iterator[Document]:
    """A batch of writes can be explained only one by one."""
    kind = next(iter(command))
    if kind not in _EXPLAINED or command[kind] in (db.wakeups.name, f"{db.prefix}sessions"):
        return  # both collections stay small
    kept = {
        name: value
        for name, value in command.items()
        if not name.startswith("$") and name not in _OF_THE_CALL
    }
    if kind not in _PARTS:
        yield kept
        return
    for part in kept[_PARTS[kind]]:
        yield {**kept, _PARTS[kind]: [part]}


async def _explained(db: Database, command: Document) -> Plan:
    told = await db.handle.command("explain", command, verbosity="executionStats")
    if "stages" in told:  # an aggregate's first stage reads
        told = told["stages"][0]["$cursor"]
    stats = told["executionStats"]
    return Plan(
        command,
        stats["totalKeysExamined"],
        stats["totalDocsExamined"],
        stats["nReturned"],
        frozenset(_stages(stats)) | frozenset(_stages(told.get("queryPlanner", {}))),
    )


def _stages(found: Any) -> Iterator[str]:
    if isinstance(found, dict):
        if "stage" in found:
            yield found["stage"]
        for key, inner in found.items():
            if key != "rejectedPlans":
                yield from _stages(inner)
    elif isinstance(found, list):
        for inner in found:
            yield from _stages(inner)
