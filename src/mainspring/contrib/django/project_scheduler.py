"""The scheduler of a Django project: its options are the settings', its handlers leave no stale
database connection, and what it enqueues belongs to the transaction that is under way."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

from django.core.checks import Error
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from mainspring.contrib.django.connections import fresh_connections
from mainspring.contrib.django.options import read_options
from mainspring.contrib.django.project_store import (
    ProjectStore,
    database_alias,
    store_of_settings,
)
from mainspring.core.model import Owner, Run, Source
from mainspring.engine.engine import Engine
from mainspring.engine.run_operations import EnqueueBatch
from mainspring.errors import InvalidState, MainspringError
from mainspring.scheduler import Scheduler
from mainspring.scheduler.client import traced
from mainspring.scheduler.definitions import draft_job

log = logging.getLogger("mainspring")

T = TypeVar("T")

_transactions: ContextVar[tuple[Any, ...]] = ContextVar("mainspring_transactions", default=())
"""The connections of the caller, in plain code, that are in an `atomic` block."""


@functools.cache
def project_scheduler() -> ProjectScheduler:
    """The scheduler of the project. Where the settings are wrong, it can still be imported: the
    checks show what is wrong, and it does not start."""
    options, mistakes = read_options()
    return ProjectScheduler(mistakes, **{"around": fresh_connections, **options})


class ProjectScheduler(Scheduler):
    """The scheduler that `settings.MAINSPRING` describes.

    In a web process it opens at its first use, so after a fork, and only enqueues: `manage.py
    mainspring worker` runs the jobs.
    """

    opens_itself = True

    def __init__(self, mistakes: list[Error], **options: Any) -> None:
        self.mistakes = mistakes
        self._of_settings = ProjectStore()
        store: Any = "memory://" if mistakes else self._of_settings
        super().__init__(store, **options)

    @property
    def url(self) -> str | None:
        store = store_of_settings() if self._store is self._of_settings else self._url
        return store if isinstance(store, str) else None

    def open(self) -> None:
        """Open the store now, in plain code, to enqueue. Otherwise the first use opens it."""
        self.blocking.now()

    def open_before_transactions(self) -> None:
        """Open a store that lies in a SQLite database of Django."""
        alias = None if self.started or self.mistakes else self._database()
        if alias is not None and self._may_lock_file(connections[alias]):
            try:
                self.open()
            except MainspringError as error:  # an enqueue raises it; other requests need none
                log.warning("the store of the jobs cannot be opened: %s", error)

    def close(self) -> None:
        """Close the store where its first use has opened it. The next use opens it again."""
        if self._opened_itself and not self._is_forked:
            self.blocking.stop()
            self._was_stopped = False

    def run_on_loop(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the event loop of listeners, which all requests share."""
        if not self.started:
            self.open()
        return asyncio.run_coroutine_threadsafe(make(), self._program_loop).result()

    def define_job(self, id: str, handler: str, **options: Any) -> None:
        """Define a job of code for a registered handler, unless it is defined."""
        if id not in self._jobs_in_code:
            zone, defaults = self._timezone, self._defaults
            draft = draft_job(id, handler, Owner.CODE, zone, defaults=defaults, **options)
            self._jobs_in_code[id] = draft
            self._store_if_started(draft)

    def wait_outside_transactions(
        self, coroutine: Coroutine[Any, Any, T], called: str, instead: str
    ) -> T:
        """As `blocking.wait_for`, but what is enqueued belongs to no transaction under way."""
        return super()._wait_for(coroutine, called, instead)

    # Steps

    async def _start(self, *arguments: Any) -> None:
        self._refuse_mistakes()
        await super()._start(*arguments)

    def _open_at_first_use(self) -> Engine:
        self._refuse_mistakes()
        return super()._open_at_first_use()

    def _refuse_mistakes(self) -> None:
        for mistake in self.mistakes:
            raise ImproperlyConfigured(f"{mistake.msg} {mistake.hint} ({mistake.id})")

    def _database(self) -> str | None:
        """The alias of the database of Django that the store lies in. (A `TestScheduler` has put
        another store in its place.)"""
        return database_alias() if self._store is self._of_settings else None

    def _may_lock_file(self, connection: Any) -> bool:
        return bool(connection.vendor == "sqlite" and connection.alias == self._database())

    def _wait_for(self, coroutine: Coroutine[Any, Any, T], called: str, instead: str) -> T:
        """In plain code. Django's connections are those of the caller's thread: the event loop that
        runs the coroutine would have others."""
        opened = connections.all(initialized_only=True)
        transactions = tuple(one for one in opened if one.in_atomic_block)
        if not self.started and any(map(self._may_lock_file, transactions)):
            coroutine.close()
            raise InvalidState(
                "the file of the store is not open yet, and your transaction may hold its lock:"
                " call scheduler.open() before the transaction begins. (In a web server the first"
                " request does it.)"
            )
        token = _transactions.set(transactions)
        try:
            return super()._wait_for(coroutine, called, instead)
        finally:
            _transactions.reset(token)

    async def _enqueue(
        self,
        batches: Sequence[EnqueueBatch],
        source: Source = Source.ENQUEUE,
        *,
        within: Any = None,
    ) -> list[Run]:
        """Add the runs in the caller's transaction where the store lies in the same database, else
        after the commit of all transactions that are under way."""
        transactions = _transactions.get()
        if within is not None or not transactions:
            return await super()._enqueue(batches, source, within=within)
        alias = self._database()
        for connection in transactions:
            if connection.alias == alias:
                if connection.vendor == "sqlite":
                    await self._refuse_unstored_jobs(batches)
                return await super()._enqueue(batches, source, within=connection)
        runs = self._runs
        facts = await self._call(runs.read_facts({batch.job_id for batch in batches}, source))
        plan = runs.plan(traced(batches), facts, self._zone, source)
        log.debug(
            "%s added after the commit on %s: the store takes part in no transaction there",
            ", ".join(run.id for run in plan.runs),
            ", ".join(connection.alias for connection in transactions),
        )

        def add() -> None:
            added = self._call(self._runs.add_plan(plan))
            super(ProjectScheduler, self)._wait_for(added, "on_commit", "enqueue")

        for connection in transactions:
            add = functools.partial(connection.on_commit, add)
        add()
        return [instance[0] for instance in plan.instances]

    async def _refuse_unstored_jobs(self, batches: Sequence[EnqueueBatch]) -> None:
        """Raise for a job that was defined since the start and cannot be stored, because the
        transaction holds the lock of the file."""
        new = [late for one in batches if (late := self._late_jobs.get(one.job_id)) is not None]
        _, waiting = (
            await asyncio.wait([*map(asyncio.wrap_future, new)], timeout=1) if new else ((), ())
        )
        if waiting:
            raise InvalidState(
                f"{batches[0].job_id!r} is new to the store, and the transaction under way holds"
                " the lock of its file: repeat the transaction. Import what defines jobs before a"
                " transaction begins: jobs.py and tasks.py of each app are imported at the start"
            )

    def _refuse_in_transaction(self) -> None:
        super()._refuse_in_transaction()
        if _transactions.get():  # only a chain comes here with one
            raise InvalidState(
                "a chain takes part in no transaction, and one is under way: call it after the"
                " commit, with transaction.on_commit, or enqueue each run `after` the other"
            )
