"""The writer thread: does all writes of a store, in order, many in one commit.

It takes the queued operations, executes them in one transaction (one fsync), and then answers.
Neighbouring operations of one kind are joined, so that a hundred callers who add one run each cost
one statement. If an operation fails, the others are executed again without it. No error ends the
thread.

While a caller waits for a hint, the idle thread checks whether another process has committed
(`PRAGMA data_version`, which this connection's own commits do not change): every 20 ms, and at once
when that process says so (`hint_watch.py`).
"""

from __future__ import annotations

import contextlib
import logging
import shlex
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

from mainspring.core.clock import Clock
from mainspring.core.model import replace
from mainspring.errors import StoreError, StoreUnavailable
from mainspring.stores.codec import from_us
from mainspring.stores.protocol import Claim
from mainspring.stores.sqlite.claim import (
    ClaimedRows,
    Selection,
    claim_runs,
    next_due,
    next_runs,
)
from mainspring.stores.sqlite.commit import PartlyRepeated
from mainspring.stores.sqlite.counters import IDLE_FOLD, count_logged, fold
from mainspring.stores.sqlite.dedupe import add_runs
from mainspring.stores.sqlite.errors import is_full, translated
from mainspring.stores.sqlite.files import (
    DiskReserve,
    FileIdentity,
    FileLock,
    all_files,
    make_private,
    wide_open,
)
from mainspring.stores.sqlite.handler_transaction import HandlerTransactions, SqliteTransaction
from mainspring.stores.sqlite.hint_watch import HintWatch
from mainspring.stores.sqlite.jobs import fire, put_jobs
from mainspring.stores.sqlite.schema import (
    BUSY_SECONDS,
    check_file,
    check_version,
    connect,
    migrate,
)
from mainspring.stores.sqlite.statements import WriteTransaction
from mainspring.stores.sqlite.store_clock import StoreClock
from mainspring.stores.sqlite.threads import CLOSED, Mailbox, Notifier, Operation, deliver

T = TypeVar("T")

log = logging.getLogger("mainspring")

_MOST_BATCH_ITEMS = 2_000
"""How many items share a commit, roughly: they take about 30 ms, so that other processes do not
wait long."""

_POLL_SECONDS = 0.02

_BUSY_SECONDS = 0.003
"""A thread that has just worked, or noticed another process, waits for its own queue alone at
first: that is cheaper, and a busy process wakes idle ones no more often than this."""

_IDLE_TURNS = 2
"""Turns of `_BUSY_SECONDS` without an operation after which the thread waits for hints too. A new
waiter for hints, who comes after each commit, ends one of them at once."""

_REFUSED_ON_FULL_DISK = (add_runs, fire, put_jobs)
"""The operations that a store on a full disk refuses, so that running work can be recorded."""

Outcome = tuple[Operation, Any, BaseException | None]


class Writer:
    """One thread with one connection. `opened` and `ended` are set when it has opened the file and
    when it has ended."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self.clock = StoreClock(clock)
        self._lock = FileLock(path.with_name(path.name + "-lock"), BUSY_SECONDS, path)
        self._reserve = DiskReserve(path.with_name(path.name + "-reserve"))
        self._watch: HintWatch | None = None
        self.identity = FileIdentity(path)
        self._transactions = HandlerTransactions(path, self.clock, self.identity)
        self._handler_transactions: deque[SqliteTransaction] = deque()
        self._idle_turns = 0
        self.mailbox = Mailbox()
        self.notifier = Notifier(self.mailbox.wake)
        self.opened: Future[None] = Future()
        self.opened.set_running_or_notify_cancel()  # a cancelled caller does not stop the thread
        self.ended: Future[None] = Future()

    def start(self) -> None:
        name = "mainspring-sqlite-writer"
        threading.Thread(target=self._main, name=name, daemon=True).start()

    def request_transaction(self, transaction: SqliteTransaction) -> None:
        """Queue a handler's transaction. May be called from any thread."""
        self._handler_transactions.append(transaction)
        self.mailbox.wake()
        if self.ended.done():
            self._refuse_handler_transactions()

    def _refuse_handler_transactions(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                transaction = self._handler_transactions.popleft()
                if transaction.begun.set_running_or_notify_cancel():
                    transaction.fail(StoreError(CLOSED))

    def _main(self) -> None:
        try:
            self._connection = self._open()
        except BaseException as error:
            self._lock.close()
            self.opened.set_exception(translated(error, self._path))
            self.ended.set_result(None)
            return
        self._watch = HintWatch.open(self._lock.path)
        self._version = self._data_version()
        self._warn_of_wide_files()
        self.opened.set_result(None)
        while not self.mailbox.finished:
            self._process_batch()
        self._transactions.close()
        self._connection.close()
        if self._watch is not None:
            self._watch.close()
        self._lock.close()
        self.notifier.notify()
        self.ended.set_result(None)
        self._refuse_handler_transactions()

    def _open(self) -> sqlite3.Connection:
        check_file(self._path)
        make_private(self._path)
        self._lock.open()
        connection = connect(self._path, create=True)
        try:
            migrate(connection, self._path, self._lock)
            with self._lock:
                connection.execute("BEGIN IMMEDIATE")
                self.clock.begin(connection)
                connection.execute("COMMIT")
                self.identity.remember()
        except BaseException:
            connection.close()
            raise
        return connection

    def _warn_of_wide_files(self) -> None:
        wide = [(file, mode) for file in all_files(self._path) if (mode := wide_open(file))]
        if wide:
            log.warning(
                "every user of this machine may read or lock %s. Run: chmod o= %s",
                " and ".join(f"{file.name} ({mode})" for file, mode in wide),
                " ".join(shlex.quote(str(file)) for file, _ in wide),
            )

    def _process_batch(self) -> None:
        """Wait for operations (or for the next check for other processes), and execute them."""
        group = self.mailbox.take(_MOST_BATCH_ITEMS, self._wait_for_hint())
        try:
            outcomes = self._execute_checked(group) if group else []
            self._idle_turns = 0 if group else self._idle_turns + 1
            if self._idle_turns == _IDLE_TURNS + 1:
                self._fold_counters()
        except BaseException as error:  # nothing is expected here; callers must not hang
            outcomes = [(work, None, translated(error, self._path)) for work in group]
        deliver(outcomes)
        if any(work.wakes and error is None for work, _, error in outcomes):
            self._hint()
        elif self._other_process_wrote():
            self._idle_turns = 0
            self.notifier.notify()
        if self._handler_transactions and not self.mailbox.closed:
            self._run_handler_transaction(self._handler_transactions.popleft())

    def _wait_for_hint(self) -> float | None:
        """Wait for a hint if an idle thread should; return how long to wait for operations then."""
        if self._handler_transactions:
            return 0
        if not self.notifier.awaited:
            return None
        if self._watch is None:
            return _POLL_SECONDS
        if self._idle_turns < _IDLE_TURNS:
            return _BUSY_SECONDS
        self.mailbox.watch(self._watch, _POLL_SECONDS)
        return 0

    def _hint(self) -> None:
        """Something was committed: wake who waits for it, here and in other processes."""
        self._lock.hint()
        self.notifier.notify()

    def _run_handler_transaction(self, transaction: SqliteTransaction) -> None:
        """Run one handler's transaction. The operations that were queued meanwhile come before the
        next handler's transaction, so that a renewal waits for one transaction at most."""
        if not transaction.begun.set_running_or_notify_cancel():
            return
        try:
            with self._lock:
                self.identity.check()
                done = self._transactions.run(transaction)
        except BaseException as error:  # the handler's side must not hang
            transaction.fail(translated(error, self._path))
            return
        transaction.ended.set_result(done)
        if done:
            self._hint()

    def _execute_checked(self, group: list[Operation]) -> list[Outcome]:
        self.identity.check()
        if self._reserve.is_held():
            return self._execute(group)
        return self._execute_without_growth(group)

    def _execute_without_growth(self, group: list[Operation]) -> list[Outcome]:
        """Refuse operations that need disk space: what is left is for work that is running."""
        error = translated(_disk_full_error(), self._path)
        refused: list[Outcome] = [
            (work, None, error) for work in group if work.run in _REFUSED_ON_FULL_DISK
        ]
        rest = [work for work in group if work.run not in _REFUSED_ON_FULL_DISK]
        return refused + (self._execute(rest) if rest else [])

    def _execute(self, group: list[Operation]) -> list[Outcome]:
        only_claims = all(work.run is claim_runs for work in group)
        if only_claims and (idle := self._answer_idle_claims(group)):
            return idle
        try:
            return list(zip(group, self._transact(group), [None] * len(group), strict=True))
        except BaseException as raised:
            if is_full(raised) and self._reserve.release():
                return self._execute_without_growth(group)
            error = translated(raised, self._path)
        if len(group) == 1 or isinstance(error, StoreUnavailable):
            return [(work, None, error) for work in group]
        return [outcome for work in group for outcome in self._execute([work])]

    def _answer_idle_claims(self, claims: list[Operation]) -> list[Outcome] | None:
        """The answers of claims that find nothing due; None if a claim may find something. It takes
        no write lock, so that idle workers do not slow busy ones down."""
        if self.clock.stepped():
            return None  # the transaction corrects for it
        now = self.clock.now_us()
        answers: list[Outcome] = []
        try:
            for work in claims:
                selections = [self._first_due(claim, now) for claim in work.items]
                if any(selection.seqs for selection in selections):
                    return None
                coming = [
                    next_due(self._connection, claim, now, selection.next_start)
                    for claim, selection in zip(work.items, selections, strict=True)
                ]
                answers.append((work, [ClaimedRows(next_due=at) for at in coming], None))
        except sqlite3.Error:
            return None  # the claim itself reports the error
        return answers

    def _first_due(self, claim: Claim, now: int) -> Selection:
        limit = min(claim.limit, 1)
        ahead = 0 if claim.limit > claim.ahead else limit
        first = replace(claim, limit=limit, ahead=ahead, turns={})
        return next_runs(self._connection, first, now)

    def _fold_counters(self) -> None:
        """The thread has become idle: add up a long log of ends. If this fails, a later call does
        it."""
        self.identity.check()
        if count_logged(self._connection) >= IDLE_FOLD:
            self._in_transaction(fold)

    def _transact(self, group: list[Operation]) -> list[Any]:
        def run(tx: WriteTransaction) -> list[Any]:
            return list(_run(tx, group))

        try:
            return self._in_transaction(run)
        except PartlyRepeated:
            return self._in_transaction(run, one_by_one=True)

    def _in_transaction(
        self, run: Callable[[WriteTransaction], T], *, one_by_one: bool = False
    ) -> T:
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                check_version(self._connection, self._path)
                now = self.clock.follow(self._connection)
                tx = WriteTransaction(self._connection, from_us(now), now, one_by_one)
                results = run(tx)
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
            # A commit to files that no other program can see is not acknowledged.
            self.identity.check()
        return results

    def _other_process_wrote(self) -> bool:
        if not self.notifier.awaited:
            return False
        try:
            seen, self._version = self._version, self._data_version()
        except sqlite3.Error:
            return False
        return seen != self._version

    def _data_version(self) -> int:
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])


def _disk_full_error() -> sqlite3.Error:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    return error


def _run(tx: WriteTransaction, group: list[Operation]) -> Iterator[list[Any]]:
    """Yield the results of each operation, in order. Neighbours of one kind share a call."""
    for run, neighbours in groupby(group, key=lambda work: work.run):
        works = list(neighbours)
        results = iter(run(tx, [item for work in works for item in work.items]))
        for work in works:
            yield [next(results) for _ in work.items]
