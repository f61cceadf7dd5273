"""`mongodb://host/database`: for many machines, on a replica set or a sharded cluster.

store.py                the methods of the seam
notifier.py             hints between clients, through a small capped collection
claim.py                selects due runs and takes them
claim_partition.py      divides lanes between clients that claim at the same time
limits.py               how many runs of a job may run, and how many may start in a span of time
renew.py                renew
insert.py               add
dedupe.py               which run holds a dedupe key
transaction.py          several documents written together or not at all
sessions.py             ends the transactions of clients that are gone
jobs.py                 jobs, and the firing of their slots
commit.py               commit
notes.py                notes
counters.py             counters of ended runs
queries.py              find, counts, jobs
prune.py                deletes old runs and expired notes
handler_transaction.py  `ctx.transaction()`
codec.py                values to documents and back
collections.py          the collections and the clock, which all of the above use
schema.py               collections and indexes
server_clock.py         the clock of the server that holds the data
url.py                  servers, database and prefix in a URL
errors.py               MongoDB's errors as errors of Mainspring

docs/decisions/0006-mongodb-store.md and 0016-mongodb-transactions.md say why it is built so.
"""

from mainspring.stores.mongodb.store import MongoStore

__all__ = ["MongoStore"]
