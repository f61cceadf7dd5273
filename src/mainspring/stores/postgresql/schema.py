"""The tables, and how they are made and migrated.

Unfinished and finished runs are two partitions of one table: a claim, and an end, touch the small
one. An update of `done` moves the row. No statement of normal operation changes the schema.

A lane is `9 - priority, job, queue, handler`, joined by 0x1F: the same claims may take all pending
runs of a lane, so a claim takes the earliest of each lane.
"""

from __future__ import annotations

import math

from mainspring.errors import StoreError, StoreTooNew
from mainspring.stores.postgresql.database import Database, Transaction
from mainspring.stores.postgresql.enqueue_function import ENQUEUE

OLDEST_SERVER = 140000

_CREATE = """
CREATE TABLE mainspring.meta (
    name text PRIMARY KEY,
    value bigint NOT NULL
);

CREATE SEQUENCE mainspring.run_seq CACHE 1;
CREATE TABLE mainspring.runs (
    seq bigint NOT NULL DEFAULT nextval('mainspring.run_seq'),
    done boolean NOT NULL,
    id text COLLATE "C" NOT NULL,
    job_id text COLLATE "C" NOT NULL,
    handler text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    priority bigint NOT NULL,
    source text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL,
    attempt bigint NOT NULL,
    failures bigint NOT NULL,
    lapses bigint NOT NULL,
    token bigint NOT NULL,
    cancel_requested boolean NOT NULL,
    after_any boolean NOT NULL,
    began boolean,
    created_at bigint NOT NULL,
    scheduled_at bigint NOT NULL,
    run_at bigint NOT NULL,
    start_by bigint,
    started_at bigint,
    finished_at bigint,
    lease_until bigint,
    worker text,
    error text,
    reason text,
    dedupe_key text COLLATE "C",
    dedupe_until bigint,
    payload text,
    result text,
    progress text,
    "after" text,
    attempts text,
    trace text,
    last_change bigint,
    set_aside boolean NOT NULL DEFAULT false,
    lane text COLLATE "C" GENERATED ALWAYS AS (
        (9 - priority)::text || chr(31) || job_id || chr(31) || queue || chr(31) || handler
    ) STORED
) PARTITION BY LIST (done);
CREATE TABLE mainspring.runs_live PARTITION OF mainspring.runs FOR VALUES IN (false)
    WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02,
          autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
CREATE TABLE mainspring.runs_done PARTITION OF mainspring.runs FOR VALUES IN (true)
    WITH (autovacuum_vacuum_insert_scale_factor = 0.1);
CREATE UNIQUE INDEX runs_live_id ON mainspring.runs_live (id);
CREATE UNIQUE INDEX runs_live_dedupe ON mainspring.runs_live (dedupe_key)
    WHERE dedupe_key IS NOT NULL;
CREATE INDEX runs_live_lane ON mainspring.runs_live (lane, run_at, seq)
    WHERE state = 'pending' AND NOT set_aside;
CREATE INDEX runs_live_running ON mainspring.runs_live (job_id, lease_until)
    WHERE state = 'running';
CREATE INDEX runs_live_job ON mainspring.runs_live (job_id, seq);
CREATE INDEX runs_live_seq ON mainspring.runs_live (seq);
CREATE INDEX runs_live_slots ON mainspring.runs_live (job_id, scheduled_at)
    WHERE source = 'schedule';
CREATE INDEX runs_live_waiting ON mainspring.runs_live (seq) WHERE state = 'waiting';
CREATE INDEX runs_live_failing ON mainspring.runs_live (seq) WHERE failures > 0;
CREATE INDEX runs_live_aside ON mainspring.runs_live (seq) WHERE set_aside;
CREATE UNIQUE INDEX runs_done_id ON mainspring.runs_done (id);
CREATE INDEX runs_done_dedupe ON mainspring.runs_done (dedupe_key) WHERE dedupe_key IS NOT NULL;
CREATE INDEX runs_done_job ON mainspring.runs_done (job_id, state, seq);
CREATE INDEX runs_done_seq ON mainspring.runs_done (seq);
CREATE INDEX runs_done_rare ON mainspring.runs_done (state, seq) WHERE state <> 'succeeded';
CREATE INDEX runs_done_failing ON mainspring.runs_done (seq) WHERE failures > 0;
CREATE INDEX runs_done_ended ON mainspring.runs_done (finished_at);

-- The runs that come after a run and have not finished, or were skipped because it failed.
CREATE TABLE mainspring.upstream (
    upstream text COLLATE "C" NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    PRIMARY KEY (upstream, run_id)
);
CREATE INDEX upstream_run ON mainspring.upstream (run_id);

CREATE TABLE mainspring.jobs (
    id text COLLATE "C" PRIMARY KEY,
    handler text NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    payload text,
    schedule text,
    policy text NOT NULL,
    enabled boolean NOT NULL,
    next_run_at bigint,
    last_run_at bigint,
    version bigint NOT NULL,
    owner text NOT NULL,
    file text,
    description text NOT NULL,
    tags text,
    metadata text,
    webhook text,
    origins text,
    stated_enabled boolean,
    concurrency bigint,
    limit_key text COLLATE "C",
    rate text,
    queue text COLLATE "C" NOT NULL,
    follows boolean NOT NULL
) WITH (fillfactor = 80);
CREATE INDEX jobs_due ON mainspring.jobs (next_run_at, id)
    WHERE enabled AND next_run_at IS NOT NULL;
CREATE INDEX jobs_follows ON mainspring.jobs (id) WHERE follows;
CREATE INDEX jobs_limit_key ON mainspring.jobs (limit_key) WHERE limit_key IS NOT NULL;

-- Claims that count for a limit lock its row, and so count one after the other.
CREATE TABLE mainspring.limits (
    name text COLLATE "C" PRIMARY KEY
);

CREATE TABLE mainspring.notes (
    kind text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    expires_at bigint,
    ttl bigint,
    value text,
    PRIMARY KEY (kind, name)
) WITH (fillfactor = 70);
CREATE INDEX notes_expiring ON mainspring.notes (expires_at) WHERE expires_at IS NOT NULL;

-- Counters of ended runs: `start` is 0 for the totals of a job, else when a period began. Each
-- commit adds one row to the log, so that commits do not wait for each other; maintenance adds the
-- log up.
CREATE TABLE mainspring.counters (
    job_id text COLLATE "C" NOT NULL,
    start bigint NOT NULL,
    body text NOT NULL,
    PRIMARY KEY (job_id, start)
) WITH (fillfactor = 70);
CREATE INDEX counters_start ON mainspring.counters (start);
CREATE TABLE mainspring.counter_log (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    body text NOT NULL
);
"""

_IDENTITY = """
INSERT INTO mainspring.meta VALUES ('identity', (random() * 1e15)::bigint);
"""
"""By it a connection is known to be to the same database as another one."""

MIGRATIONS: list[str] = [_CREATE, _IDENTITY, ENQUEUE]
"""Step n takes a schema from version n to n + 1. A step that was released is never edited."""

LOCK = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))"
"""Held by the one client that makes or migrates a schema; its argument is `mainspring SCHEMA`."""


def setup_script(schema: str, version: int = 0) -> str:
    """What a team that applies schema changes by itself runs, as the role that owns the schema. It
    begins at a version of the schema; 0 is none."""
    steps = "".join(_named(step, schema) for step in MIGRATIONS[version:])
    return f'CREATE SCHEMA IF NOT EXISTS "{schema}";\n{steps}\n{_set_version(schema)};\n'


def _set_version(schema: str) -> str:
    return (
        f"INSERT INTO \"{schema}\".meta VALUES ('version', {len(MIGRATIONS)})"
        " ON CONFLICT (name) DO UPDATE SET value = excluded.value"
    )


def _named(sql: str, schema: str) -> str:
    return sql.replace("mainspring.", f'"{schema}".')


async def is_there(db: Database) -> bool:
    return await db.read(lambda tx: _version(tx, db)) > 0


async def prepare(db: Database) -> None:
    """Make or migrate the schema. Several clients may do this at once: a lock lets one of them."""
    server = await db.transact(_server_version)
    if server < OLDEST_SERVER:
        raise StoreError(
            f"{db.url.location} is PostgreSQL {server // 10000}, and Mainspring needs"
            f" {OLDEST_SERVER // 10000} or later: upgrade the server, or name another one"
        )
    if await db.read(lambda tx: _version(tx, db)) == len(MIGRATIONS):
        return
    await db.transact(lambda tx: _migrate(tx, db), limit=math.inf)


async def identity(db: Database) -> int:
    """The number by which this schema differs from one of the same name in another database."""
    rows = await db.read(
        lambda tx: tx.rows("SELECT value FROM mainspring.meta WHERE name = 'identity'")
    )
    return int(rows[0][0]) if rows else 0


async def _server_version(tx: Transaction) -> int:
    return int(tx.connection.info.server_version)


async def _version(tx: Transaction, db: Database) -> int:
    """The version of the schema; 0 where there is none."""
    # Read from the catalog as from any table: to_regclass() may use what this connection remembers
    # from before it waited for the lock of a migration.
    table = "SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = %s AND tablename = 'meta'"
    if not await tx.rows(table, [db.url.schema]):
        return 0
    rows = await tx.rows("SELECT value FROM mainspring.meta WHERE name = 'version'")
    version = int(rows[0][0]) if rows else 0
    if version > len(MIGRATIONS):
        raise StoreTooNew(
            f"{db.url.location} was written by a newer Mainspring (schema {version}; this one knows"
            f" up to {len(MIGRATIONS)}). Upgrade Mainspring and restart, or name another schema"
        )
    return version


async def _migrate(tx: Transaction, db: Database) -> None:
    schema = db.url.schema
    await tx.changed(LOCK, [f"mainspring {schema}"])
    version = await _version(tx, db)
    if version == 0:
        [[there]] = await tx.rows("SELECT to_regnamespace(%s) IS NOT NULL", [f'"{schema}"'])
        if not there:
            await tx.changed(f'CREATE SCHEMA "{schema}"')
    for step in MIGRATIONS[version:]:
        await tx.connection.execute(_named(step, schema))
    await tx.connection.execute(_set_version(schema))
