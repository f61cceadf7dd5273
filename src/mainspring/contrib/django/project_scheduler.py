"""The scheduler of a Django project: its options are the settings', its handlers leave no stale
database connection, and what it enqueues belongs to the transaction that is under way."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

from django.apps import apps
from django.core.checks import Error
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.module_loading import import_string

from mainspring.contrib.django.connections import fresh_connections
from mainspring.contrib.django.options import DOTTED, read_options, wrong
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
    return ProjectScheduler(mistakes, **options)


class ProjectScheduler(Scheduler):
    """The scheduler that `settings.MAINSPRING` describes.

    In a web process it opens at its first use, so after a fork, and only enqueues: `manage.py
    mainspring worker` runs the jobs.
    """

    opens_itself = True

    def __init__(self, mistakes: list[Error], **options: Any) -> None:
        self.mistakes = mistakes
        self._of_settings = ProjectStore()
        self._paths = {key: options.pop(key) for key in DOTTED if isinstance(options.get(key), str)}
        store: Any = "memory://" if mistakes else self._of_settings
        self._options: dict[str, Any] = {"around": fresh_connections, **options}
        super().__init__(store, **self._options)
        os.register_at_fork(after_in_child=self.forget_parent)

    @property
    def url(self) -> str | None:
        store = store_of_settings() if self._store is self._of_settings else self._url
        return store if isinstance(store, str) else None

    def import_options(self) -> None:
        """Import the options that are dotted paths. Their modules may import models, and jobs that
        need the scheduler: so it is made before."""
        paths, options = self._paths, self._options
        if paths and not apps.models_ready:
            raise ImproperlyConfigured("use the scheduler when Django's apps are ready, not before")
        self._paths = {}
        for key, path in paths.items():
            try:
                options[key] = import_string(path)
                other = Scheduler("memory://", **options)
            except Exception as error:
                self.mistakes.append(wrong(key.upper(), error))
                return
            self._clock, self._resources = other._clock, other._resources
            vars(self.webhooks).update(settings=other.webhooks.settings, allow=other.webhooks.allow)
            registry = self._registry
            registry.default, registry.around = other._registry.default, options["around"]
            for handler in map(registry.get, registry.names()):
                if not handler.built_in:
                    handler.around = registry.around

    def open(self) -> None:
        """Open the store now, in plain code, to enqueue. Otherwise the first use opens it."""
        self.blocking.now()

    def open_before_transactions(self) -> None:
        """Open a store that lies in a SQLite database of Django."""
        alias = None if self.started or self.mistakes else self._database()
        if alias is not None and self._may_lock_file(connections[alias]):
            patience = self._options.get("wait_for_store", "30s")
            self._settings = self._settings.changed(
                wait_for_store="1s"
            )  # SQLite waits longer for a lock
            try:
                self.open()
            except MainspringError as error:  # an enqueue raises it; other requests need none
                log.warning("the store of the jobs cannot be opened: %s", error)
            finally:
                self._settings = self._settings.changed(wait_for_store=patience)

    def close(self) -> None:
        """Close the store where its first use has opened it. The next use opens it again."""
        if self._opened_itself and not self._is_forked:
            self.blocking.stop()
            self._was_stopped = False

    def forget_parent(self) -> None:
        """In a fork of a process whose first use has opened the store: the next use opens it anew.
        What is the parent's is kept, so that nothing closes its connections."""
        if self._opened_itself:
            self._of_parent = ({**vars(self)}, self._of_settings._store)
            self._opening = self._engine = self._engine_loop = self._own_loop = None
            self._opened_itself, self._start_lock = False, threading.Lock()
            self._of_settings._store = None

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
        self.import_options()
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
        if any(batch.options.dedupe_key is not None for batch in batches):
            raise InvalidState(
                "a dedupe_key cannot wait for the commit of another database than the store's:"
                " enqueue in transaction.on_commit, or put the store in the same database"
            )
        runs = self._runs
        facts = await self._call(runs.read_facts({batch.job_id for batch in batches}, source))
        plan = runs.plan(traced(batches), facts, self._zone, source)
        log.debug(
            "%s added after the commit on %s: the store takes part in no transaction there",
            ", ".join(run.id for run in plan.runs),
            ", ".join(connection.alias for connection in transactions),
        )

        uncommitted = {connection.alias for connection in transactions}

        def committed(alias: str) -> None:
            uncommitted.discard(alias)
            try:
                if not uncommitted:
                    added = self._call(self._runs.add_plan(plan))
                    super(ProjectScheduler, self)._wait_for(added, "on_commit", "enqueue")
            except Exception:  # what else waits for the commit must still happen
                lost = ", ".join(f"{run.id} of {run.job_id!r}" for run in plan.runs)
                log.exception(
                    "after the commit, not added: enqueue again what is missing: %s", lost
                )

        for connection in transactions:
            connection.on_commit(functools.partial(committed, connection.alias))
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
