"""What a handler writes together with its run's completion."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

from mainspring.core.model import State
from mainspring.core.transitions import Change
from mainspring.errors import TransactionAborted
from mainspring.stores.memory.records import storable_change
from mainspring.stores.protocol import Held

if TYPE_CHECKING:
    from mainspring.stores.memory.store import MemoryStore

__all__ = ["MemoryTransaction"]


class MemoryTransaction:
    """A copy of the store's data to write in. The first to commit wins; another that began
    before that is aborted, as a database does it."""

    def __init__(self, store: MemoryStore, held: Held) -> None:
        self._store = store
        self._held = held
        self._before: dict[Any, Any] = {}
        self._session: dict[Any, Any] = {}

    async def begin(self) -> dict[Any, Any]:
        run = self._store._runs.get(self._held.id)
        mine = run and run.state is State.RUNNING and run.token == self._held.token
        if run is None or not mine or run.cancel_requested:
            raise TransactionAborted("the run is no longer this worker's, or is to be cancelled")
        self._before = self._store.data
        self._session = deepcopy(self._before)
        return self._session

    async def commit(self, change: Change) -> bool:
        store, change = self._store, storable_change(change)
        with store._guard:
            if store.data is not self._before:
                raise TransactionAborted("another transaction came between")
            done = store._commit(change, store._now())
            if done:
                store.data = deepcopy(self._session)
        return done

    async def rollback(self) -> None:
        """Nothing was kept."""

    def transient(self, error: BaseException) -> bool:
        return False
