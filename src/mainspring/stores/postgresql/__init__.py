"""The PostgreSQL store: many machines on a database that the team already runs.

store.py                 the methods of the protocol
url.py                   the options of a URL
database.py              connections, transactions that are repeated on conflicts, the server's time
schema.py                the tables, and how they are made and migrated
codec.py                 runs and jobs as rows
claim.py                 which due runs a claim takes, and leases
limits.py                locks and counts of concurrency and rate limits
dedupe.py                adds runs; each dedupe key is held by one of them
commit.py                applies changes; prunes
jobs.py                  writes jobs by compare-and-set, and fires slots
queries.py               find, counts, jobs
notes.py, counters.py    notes; counters of ended runs
notifier.py              hints by LISTEN and NOTIFY
handler_transaction.py   `ctx.transaction()`
errors.py                errors of the driver as errors of Mainspring
"""

from __future__ import annotations

from mainspring.stores.postgresql.store import PostgresStore

__all__ = ["PostgresStore"]
