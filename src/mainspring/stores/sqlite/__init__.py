"""`sqlite:///path`: the embedded default. One machine, one file, any number of processes.

    store.py                the methods of the seam: each queues an operation and awaits its result
    threads.py              hands operations to threads, and results and hints back; the readers
    writer.py               the writer thread: many operations in one commit
    handler_transaction.py  `ctx.transaction()`: the handler writes in the writer's place
    store_clock.py          the store's clock, which allows for steps of the wall clock
    files.py                the files: owner, identity, the lock that orders writers, the reserve
    statements.py           the write transaction; many rows in one step
    dedupe.py               add, with dedupe keys
    claim.py                claim and renew, at a cost that does not grow with the backlog
    limits.py               concurrency and rate limits, and what is used of them
    commit.py               commit and maintain
    jobs.py                 jobs, and the firing of their slots
    notes.py                notes
    counters.py             counters of ended runs
    queries.py              find, counts, jobs
    codec.py                values to rows and back
    schema.py               tables, indexes, migrations, opening a file
    errors.py               SQLite's errors as errors of Mainspring

docs/decisions/0002-sqlite-store.md says why it is built so.
"""

from mainspring.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
