"""`mongodb://…`: the store for many machines, on a replica set or a sharded cluster.

    store.py      the Store's methods
    wakeups.py    hints between clients, through a small capped collection
    transactions.py  a handler's transaction, and the clients for it
    firing.py     jobs, and the firing of their slots
    claims.py     claim, next_due
    renewals.py   renew
    adding.py     add
    keys.py       dedupe keys: who holds one
    reserved.py   runs that are half made, and how anyone makes them whole
    limits.py     concurrency: who may take a place
    claim_partition.py      others who claim, and which runs are left to them
    changes.py    commit
    reads.py      get, find, counts, jobs
    upkeep.py     prune
    rows.py       values to documents and back
    schema.py     collections, indexes, opening a database
    database.py   what all of the above work on
    server_clock.py      the servers' clock
    address.py    what a URL names
    faults.py     MongoDB's errors in our words

Dependencies point from the top of the list down. docs/decisions/0006-mongodb-store.md says why
it is as it is.
"""

from mainspring.stores.mongodb.store import MongoStore

__all__ = ["MongoStore"]
