"""Finds the handlers that the default handler of this process stands in for."""

from __future__ import annotations

from mainspring.core.model import Owner
from mainspring.core.node_runs import is_node_handler
from mainspring.engine.context import EngineContext
from mainspring.engine.live_workers import find_workers
from mainspring.stores.protocol import JobQuery
from mainspring.webhooks.service import HANDLER

LEAST_PAUSE = 0.5
"""Seconds between two searches. A search costs a count of the unfinished runs."""


class DefaultHandler:
    """The names of handlers that runs are due for and that no worker has of its own.

    A name that belongs to a worker is never served here, not even while that worker restarts: those
    that this process has seen a worker have, and those of jobs that code defines. (The store keeps
    no other record of the handlers of workers that are gone.)
    """

    def __init__(self, engine: EngineContext) -> None:
        self._engine = engine
        self._search_at = 0.0
        self._of_workers = {HANDLER}  # webhooks, also where their extra is not installed
        self.names: frozenset[str] = frozenset()

    async def search(self) -> None:
        """Bring `names` up to date, if there is a default handler and the last search is long
        enough ago."""
        clock = self._engine.clock
        began = clock.monotonic()
        if self._engine.registry.default is None or began < self._search_at:
            return
        await self._engine.retrying_store.repeat("default handler", self._search)
        took = clock.monotonic() - began
        self._search_at = clock.monotonic() + max(LEAST_PAUSE, 20 * took)

    async def _search(self) -> None:
        store = self._engine.store
        due = (await store.counts()).due
        names = {*self.names, *(name for name in due if not is_node_handler(name))}
        self._of_workers |= self._engine.registry.names()
        for worker in await find_workers(store):
            self._of_workers |= worker.handlers
        unknown = frozenset(names - self._of_workers - self.names)
        if unknown:
            query = JobQuery(ids=unknown, limit=len(unknown))
            jobs = (await store.jobs(query)).items
            self._of_workers |= {job.id for job in jobs if job.owner is Owner.CODE}
        self.names = frozenset(names - self._of_workers)
