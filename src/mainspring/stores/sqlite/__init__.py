"""`sqlite:///path`: the embedded default. One machine, one file, any number of processes.

store.py    the Store's methods: each is a line that queues work and awaits it
writer.py   the writer thread: group commit, and the wake-up hints
reader.py   reader threads, never blocked by writers
lock.py     whose turn it is, between processes
writes.py   what happens inside a write transaction
claims.py   the claim: which due runs come next, at a cost that the backlog does not change
reads.py    get, find, counts, jobs
rows.py     values to columns and back
schema.py   tables, indexes, migrations, opening a file
faults.py   SQLite's errors in our words
"""

from mainspring.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
