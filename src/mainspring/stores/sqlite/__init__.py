"""`sqlite:///path`: the embedded default. One machine, one file, any number of processes.

    store.py                the methods of the seam: each queues an operation and awaits its result
    mailbox.py              hands operations to a thread, and their results back
    notifier.py             wakes the callers of `wait`
    writer.py               the writer thread: many operations in one commit
    reader.py               reader threads, which writers never block
    handler_transaction.py  `ctx.transaction()`: the handler writes in the writer's place
    file_lock.py            a fair order of writing between processes
    file_identity.py        notices a file that is deleted, moved or replaced in use
    store_clock.py          the store's clock, which allows for steps of the wall clock
    disk_reserve.py         disk space that is freed when the disk is full
    write_transaction.py    what the operations below work in
    runs.py                 add, claim, renew, maintain
    commit.py               commit
    jobs.py                 jobs, and the firing of their slots
    notes.py                notes
    counters.py             counters of ended runs
    claim.py                selects due runs, at a cost that does not grow with the backlog
    queries.py              find, counts, jobs
    codec.py                values to rows and back
    row_batches.py          many rows in one step
    schema.py               tables, indexes, migrations, opening a file
    files.py                the files beside the database, created for their owner only
    errors.py               SQLite's errors as errors of Mainspring

docs/decisions/0002-sqlite-store.md says why it is built so.
"""

from mainspring.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
