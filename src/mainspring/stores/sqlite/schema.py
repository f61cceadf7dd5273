"""Defines tables, indexes and migrations, and opens database files.

All tables begin with `mainspring_`, so that they can share a file with the tables of a program. A
file that Mainspring created has its application id. The schema version is in `mainspring_meta`,
because `user_version` belongs to the program that shares the file.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from mainspring.errors import StoreDamaged, StoreError, StoreTooNew
from mainspring.stores.sqlite.errors import translated
from mainspring.stores.sqlite.files import FileLock

APPLICATION_ID = 0x4D53_5052  # "MSPR"
BUSY_SECONDS = 10.0  # a disk may stall for seconds; a lease outlasts this

OLDEST_SQLITE = (3, 38, 0)
"""The first version that has `STRICT` tables (3.37) and the operator `->>` (3.38). A distribution's
Python uses the SQLite of the system, which may be older."""

# All tables are STRICT: SQLite itself refuses a value of another type than its column's.
#
# Every run is written to these indexes, so each is as small as possible: partial, by state. `find`
# reads one index per state (see queries.py), `claim` reads the one of pending runs.
#
# A lane is `9 - priority, job, queue, handler`, joined by 0x1F. The same claims may take all
# pending runs of a lane, so a claim takes the earliest of each lane.
#
# The conditions use OR, not IN: only with OR does SQLite recognise that `state = 'failed'` is
# covered by the index.
_CREATE_RUNS = """
CREATE TABLE mainspring_meta (
    name TEXT PRIMARY KEY,
    value ANY NOT NULL
) WITHOUT ROWID, STRICT;

CREATE TABLE mainspring_runs (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    job_id TEXT NOT NULL,
    handler TEXT NOT NULL,
    queue TEXT NOT NULL,
    priority INTEGER NOT NULL,
    lane TEXT NOT NULL,
    source TEXT NOT NULL,
    state TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    lapses INTEGER NOT NULL,
    token INTEGER NOT NULL,
    cancel_requested INTEGER NOT NULL,
    after_any INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    scheduled_at INTEGER NOT NULL,
    run_at INTEGER NOT NULL,
    start_by INTEGER,
    started_at INTEGER,
    finished_at INTEGER,
    lease_until INTEGER,
    worker TEXT,
    error TEXT,
    reason TEXT,
    dedupe_key TEXT,
    dedupe_until INTEGER,
    payload TEXT,
    result TEXT,
    progress TEXT,
    "after" TEXT,
    attempts TEXT,
    began INTEGER,
    trace TEXT,  -- the trace context of the enqueue
    last_change INTEGER  -- the id of the last change: a change that is sent again is recognised
) STRICT;
CREATE INDEX mainspring_runs_lane ON mainspring_runs (lane, run_at, state) WHERE state = 'pending';
CREATE INDEX mainspring_runs_pending ON mainspring_runs (job_id, state) WHERE state = 'pending';
CREATE INDEX mainspring_runs_running ON mainspring_runs (job_id, lease_until, state)
    WHERE state = 'running';
CREATE INDEX mainspring_runs_succeeded ON mainspring_runs (job_id, state) WHERE state = 'succeeded';
CREATE INDEX mainspring_runs_rare ON mainspring_runs (state) WHERE
    state = 'waiting' OR state = 'failed' OR state = 'cancelled' OR state = 'skipped';
CREATE INDEX mainspring_runs_rare_job ON mainspring_runs (job_id, state) WHERE
    state = 'waiting' OR state = 'failed' OR state = 'cancelled' OR state = 'skipped';
CREATE INDEX mainspring_runs_slots ON mainspring_runs (job_id, scheduled_at) WHERE
    source = 'schedule' AND (state = 'waiting' OR state = 'pending' OR state = 'running');
-- Runs that ended, counted without the table.
CREATE INDEX mainspring_runs_ended ON mainspring_runs (finished_at, state)
    WHERE finished_at IS NOT NULL;
CREATE INDEX mainspring_runs_failing ON mainspring_runs (seq) WHERE failures > 0;
-- Runs with an attempt, in the states that a run may have without one: few among many.
CREATE INDEX mainspring_runs_tried ON mainspring_runs (job_id, state) WHERE attempt > 0 AND
    (state = 'waiting' OR state = 'pending' OR state = 'cancelled' OR state = 'skipped');
CREATE INDEX mainspring_runs_dedupe ON mainspring_runs (dedupe_key)
    WHERE dedupe_key IS NOT NULL;

-- The runs that come after a run and have not finished, or were skipped because it failed: so a run
-- that ends, or is retried, finds its followers at once, and is not deleted before they have ended.
-- The next prune deletes the rows of other runs.
CREATE TABLE mainspring_upstream (
    upstream TEXT NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (upstream, seq)
) WITHOUT ROWID, STRICT;
"""

# The columns behind the fields of a job are made from its policy: claims and lists search by them.
# `rate` is a list: the name of the note, how many starts, in how many microseconds.
_CREATE_JOBS = """
CREATE TABLE mainspring_jobs (
    id TEXT PRIMARY KEY NOT NULL,
    handler TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    payload TEXT,
    schedule TEXT,
    policy TEXT NOT NULL,
    enabled INTEGER NOT NULL,
    next_run_at INTEGER,
    last_run_at INTEGER,
    version INTEGER NOT NULL,
    owner TEXT NOT NULL,
    file TEXT,  -- the name of the file that lists the job
    description TEXT NOT NULL,
    tags TEXT,
    metadata TEXT,
    webhook TEXT,
    origins TEXT,  -- which policy options are the job's own
    stated_enabled INTEGER,
    concurrency INTEGER,
    limit_key TEXT,
    rate TEXT,
    queue TEXT NOT NULL,
    follows INTEGER NOT NULL
) STRICT;
CREATE INDEX mainspring_jobs_due ON mainspring_jobs (next_run_at, id)
    WHERE enabled AND next_run_at IS NOT NULL;
CREATE INDEX mainspring_jobs_follows ON mainspring_jobs (id) WHERE follows;
CREATE INDEX mainspring_jobs_listed
    ON mainspring_jobs (id, enabled, follows, tags, description, queue, updated_at);
"""

# A note with a `ttl` keeps its length when the clock is set.
#
# Counters of ended runs: `start` is 0 for the totals of a job, else when a period began. The job
# '' stands for all jobs together. The log has the ends that are not added up yet, a row for each
# transaction.
_CREATE_NOTES = """
CREATE TABLE mainspring_notes (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    expires_at INTEGER,
    ttl INTEGER,
    value TEXT,
    PRIMARY KEY (kind, name)
) WITHOUT ROWID, STRICT;
CREATE INDEX mainspring_notes_expiring ON mainspring_notes (expires_at)
    WHERE expires_at IS NOT NULL;

CREATE TABLE mainspring_counters (
    job_id TEXT NOT NULL,
    start INTEGER NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (job_id, start)
) WITHOUT ROWID, STRICT;
CREATE INDEX mainspring_counters_start ON mainspring_counters (start);

CREATE TABLE mainspring_counter_log (
    seq INTEGER PRIMARY KEY,  -- the ends in the log up to this row
    body TEXT NOT NULL
) STRICT;
"""

MIGRATIONS: list[str] = [_CREATE_RUNS + _CREATE_JOBS + _CREATE_NOTES]
"""Step n takes a file from version n to n + 1. A step that was released is never edited."""


def check_file(path: Path) -> None:
    """Raise `StoreError` for a path that cannot work, before SQLite opens it."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise StoreError(
            f"{path} cannot be opened: this Python uses SQLite {sqlite3.sqlite_version}, and"
            f" Mainspring needs {'.'.join(map(str, OLDEST_SQLITE))} or later. Use a Python that"
            " has it (those of python.org, uv and conda do), or another store"
        )
    if path.name == ":memory:":
        raise StoreError("an SQLite store needs a file; for one in memory use memory://")
    if path.is_dir():
        raise StoreError(f"{path} is a folder; name a file in it, as {path / 'mainspring.db'}")
    if not path.parent.is_dir():
        raise StoreError(f"{path}: the folder {path.parent} does not exist; make it first")
    # The file is not opened here: closing it again would drop the locks that another store in
    # this process has on it (POSIX locks belong to the process, not to the descriptor).
    if not path.exists():
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise StoreError(
                f"{path} cannot be made: this user has no permission to write to the folder"
                f" {path.parent}"
            )
        return
    if not os.access(path, os.R_OK):
        raise StoreError(f"{path} cannot be read: no permission")
    for what in (path, path.parent):
        if not os.access(what, os.W_OK):
            raise StoreError(
                f"this user has no permission to write to {what}; SQLite writes to the file and to"
                " its folder"
            )


def exists(path: Path) -> bool:
    """Whether the file exists and has Mainspring's tables. Creates neither."""
    if not path.is_file():
        return False
    check_file(path)
    try:
        with closing(connect(path)) as connection:
            return _version(connection, path) > 0
    except sqlite3.Error as error:
        raise translated(error, path) from error


def connect(path: Path, *, create: bool = False, **options: Any) -> sqlite3.Connection:
    connection: sqlite3.Connection = sqlite3.connect(
        f"{path.as_uri()}?mode={'rwc' if create else 'rw'}",
        uri=True,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        cached_statements=512,
        **options,
    )
    # 16 MB of write-ahead log between checkpoints: fewer of them, and none is long.
    connection.executescript(
        "PRAGMA synchronous = FULL;"
        "PRAGMA wal_autocheckpoint = 4000;"
        "PRAGMA journal_size_limit = 67108864;"
        "PRAGMA cache_size = -32768;"
        "PRAGMA temp_store = MEMORY;"
    )
    connection.create_function("small", 1, _small, deterministic=True)
    return connection


def _small(text: bytes) -> str:
    """The text in lower case. SQLite's own lower() handles only ASCII. The text comes as a blob,
    because a damaged one may not be valid Unicode."""
    return text.decode(errors="replace").lower()


def migrate(connection: sqlite3.Connection, path: Path, lock: FileLock) -> None:
    """Migrate the file to this version. Two processes may call it at once: one of them migrates."""
    version = _version(connection, path)
    with lock:
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise StoreError(
                f"{path}: SQLite cannot keep a write-ahead log there (mode {mode!r});"
                " use a local disk, not a network share"
            )
        if version == len(MIGRATIONS):
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            apply_migrations(connection, path)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def check_version(connection: sqlite3.Connection, path: Path) -> None:
    """Raise `StoreTooNew` where another program has migrated the file since it was opened."""
    try:
        row = connection.execute(_VERSION).fetchone()
    except sqlite3.OperationalError as error:
        if "no such table" not in str(error):
            raise
        row = None
    if row is None:
        raise StoreDamaged(f"{path} no longer has Mainspring's tables. Restore it from a backup")
    if row[0] > len(MIGRATIONS):
        raise _too_new(path, row[0])


_VERSION = "SELECT value FROM mainspring_meta WHERE name = 'version'"


def apply_migrations(connection: sqlite3.Connection, path: Path) -> None:
    """Apply the steps that the file lacks, in the transaction that is under way."""
    version = _version(connection, path)
    if _pragma(connection, "application_id") == 0 and _pragma(connection, "schema_version") == 0:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    for step in MIGRATIONS[version:]:
        for statement in filter(str.strip, step.split(";")):
            connection.execute(statement)
    connection.execute(
        "INSERT OR REPLACE INTO mainspring_meta VALUES ('version', ?)", (len(MIGRATIONS),)
    )


def _version(connection: sqlite3.Connection, path: Path) -> int:
    """The file's schema version, 0 where our tables are missing."""
    owner = _pragma(connection, "application_id")
    if owner not in (0, APPLICATION_ID):
        raise StoreDamaged(
            f"{path} belongs to another program (application id {owner:#x}); name another file"
        )
    known = "SELECT 1 FROM sqlite_schema WHERE name = 'mainspring_meta'"
    if connection.execute(known).fetchone() is None:
        return 0
    version = connection.execute(_VERSION).fetchone()[0]
    if version > len(MIGRATIONS):
        raise _too_new(path, version)
    return int(version)


def _too_new(path: Path, version: int) -> StoreTooNew:
    return StoreTooNew(
        f"{path} was written by a newer Mainspring (schema {version}; this one knows up to"
        f" {len(MIGRATIONS)}). Upgrade Mainspring and restart, or name another file"
    )


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])
