"""`mongodb://host/database`: for many machines, on a replica set or a sharded cluster.

store.py                the methods of the seam
notifier.py             hints between clients, through a small capped collection
claim.py                claim, renew; divides lanes between clients that claim
limits.py               how many runs of a job may run, and how many may start in a span of time
dedupe.py               add, and which run holds a dedupe key
commit.py               commit, prune
jobs.py                 jobs, and the firing of their slots
notes.py                notes
counters.py             counters of ended runs
queries.py              find, counts, jobs
transaction.py          several documents written together or not at all
handler_transaction.py  `ctx.transaction()`
codec.py                values to documents and back
database.py             the collections, sessions, and the clock of the server that holds the data
schema.py               creates collections and indexes
url.py                  servers, database and prefix in a URL
errors.py               MongoDB's errors as errors of Mainspring

docs/decisions/0006-mongodb-store.md and 0016-mongodb-transactions.md say why it is built so.
"""

from mainspring.stores.mongodb.store import MongoStore

__all__ = ["MongoStore"]
