"""`sqlite:///path`: the embedded default. One machine, one file, any number of processes.

    store.py        the Store's methods: each queues its work and awaits it
    threads.py      work handed to a thread and its results handed back; wake-up hints
    writer.py       the writer thread: group commit
    turns.py        a handler's transaction: a turn of the writer
    reader.py       reader threads, never blocked by writers
    lock.py         whose turn it is, between processes
    file_identity.py  notices a file that is deleted, moved, replaced or overwritten while in use
    store_clock.py  wall time, with its steps seen and allowed for
    ballast.py      what is given up when the disk is full
    transaction.py  what the next three work in
    writes.py       add, claim, renew, prune, elect
    changes.py      commit
    firing.py       jobs, and the firing of their slots
    claims.py       which due runs come next, at a cost that the backlog does not change
    reads.py        get, find, counts, jobs
    rows.py         values to columns and back
    schema.py       tables, indexes, migrations, opening a file
    files.py        the files beside the database, made for their owner alone
    faults.py       SQLite's errors in our words

Dependencies point from the top of the list down.
"""

from mainspring.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
