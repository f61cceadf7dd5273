"""A MongoDB store that writes its name and its call into every document, and loses responses.

Each write has one more field (`signed`), so that a watcher of the database can tell which client
made it. The connection may break before the server receives a command, or after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from pymongo import InsertOne, ReplaceOne, UpdateMany, UpdateOne
from pymongo.errors import NetworkTimeout

from mainspring.stores.mongodb import MongoStore
from mainspring.stores.mongodb.database import Collection, Database, Document
from tests.support.simulation.watching import METHOD, ConnectionFaults

_SIGNED = ("runs", "jobs")


class AttributedStore(MongoStore):
    def __init__(self, url: str, author: str, breaks: ConnectionFaults) -> None:
        super().__init__(url)
        self._author = author
        self._breaks = breaks

    async def open(self, *, create: bool = True) -> None:
        await super().open(create=create)
        session = self._open_session()
        db = session.db
        if not isinstance(db, _Database):
            session.db = _Database(db.client, db.handle, db.prefix, db.time, db.sessions)
            _KEPT[id(db.client)] = (self._author, self._breaks)


_KEPT: dict[int, tuple[str, ConnectionFaults]] = {}
"""By client: the class of the database has slots, and no room for more."""


class _Database(Database):
    __slots__ = ()

    def _collection(self, name: str) -> Collection:
        author, breaks = _KEPT[id(self.client)]
        plain = super()._collection(name)
        return cast(Collection, _Collection(plain, author, breaks, name in _SIGNED))


class _Collection:
    """A collection that adds the author to each write, and loses some of the answers."""

    def __init__(
        self, plain: Collection, author: str, breaks: ConnectionFaults, signs: bool
    ) -> None:
        self._plain = plain
        self._author = author
        self._breaks = breaks
        self._signs = signs

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._plain, name)
        if name not in _WRITES:
            return call
        place, sign = _WRITES[name]

        async def write(*given: Any, **more: Any) -> Any:
            signed = list(given)
            signed[place] = sign(self, signed[place])
            return await self._send(lambda: call(*signed, **more))

        return write

    async def _send(self, work: Callable[[], Any]) -> Any:
        broken = self._breaks.draw()
        if broken == "before":
            raise NetworkTimeout("injected: the connection broke before the write")
        answer = await work()
        if broken == "after":
            raise NetworkTimeout("injected: the connection broke behind the write")
        return answer

    @property
    def _text(self) -> str:
        return f"{self._author} {METHOD.get()}"

    def _with(self, document: Document) -> Document:
        return {**document, "signed": self._text} if self._signs else document

    def _signed(self, change: Any) -> Any:
        if not self._signs:
            return change
        if isinstance(change, dict):
            return {**change, "$set": {**change.get("$set", {}), "signed": self._text}}
        return [*change, {"$set": {"signed": {"$literal": self._text}}}]

    def _operation(self, one: Any) -> Any:
        if self._signs and isinstance(one, UpdateOne | UpdateMany):
            change = self._signed(one._doc)
            return type(one)(one._filter, change, upsert=bool(one._upsert), hint=one._hint)
        if self._signs and isinstance(one, ReplaceOne):
            return ReplaceOne(one._filter, self._with(cast(Document, one._doc)))
        if self._signs and isinstance(one, InsertOne):
            return InsertOne(self._with(one._doc))
        return one


_WRITES: dict[str, tuple[int, Callable[[_Collection, Any], Any]]] = {
    "insert_one": (0, _Collection._with),
    "insert_many": (0, lambda own, documents: [own._with(one) for one in documents]),
    "replace_one": (1, _Collection._with),
    "update_one": (1, _Collection._signed),
    "update_many": (1, _Collection._signed),
    "delete_one": (0, lambda own, where: where),
    "delete_many": (0, lambda own, where: where),
    "bulk_write": (0, lambda own, operations: [own._operation(one) for one in operations]),
}
"""The methods that write: which argument gets the author, and how."""
