"""Answers find, counts and jobs. Each query reads one snapshot."""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from operator import itemgetter
from typing import Any

from mainspring.core.clock import EPOCH
from mainspring.core.model import Job, Page, Run, State, replace
from mainspring.core.statistics import WHOLE_STORE
from mainspring.stores.codec import from_us, to_us
from mainspring.stores.evaluation import has_cursor, live_counts, ordered_jobs
from mainspring.stores.paging import cursor_number
from mainspring.stores.protocol import Counts, JobQuery, RunQuery
from mainspring.stores.sql import Lane
from mainspring.stores.sqlite import counters
from mainspring.stores.sqlite.claim import LANES
from mainspring.stores.sqlite.codec import (
    name_list,
    runs_by_id,
    select_jobs,
    select_runs,
)
from mainspring.stores.sqlite.commit import SKIPPED_SQL
from mainspring.stores.sqlite.statements import one_value

_LAST = 2**63 - 1


# -- find -----------------------------------------------------------------------------------
#
# Newest first is by seq. Each state has its own index; the query reads at most `limit` entries of
# each, merges them, and reads only the page's rows.

_OF_JOB = {
    State.PENDING: "mainspring_runs_pending",
    State.RUNNING: "mainspring_runs_running",
    State.SUCCEEDED: "mainspring_runs_succeeded",
}
_RARE_STATES = (State.WAITING, State.FAILED, State.CANCELLED, State.SKIPPED)
_UNTRIED = (State.WAITING, State.PENDING, State.CANCELLED, State.SKIPPED)
"""States that a run may have without an attempt. Runs of these states with one have an index."""


def find(connection: sqlite3.Connection, query: RunQuery, now: int) -> Page[Run]:
    if query.ids is not None:
        return Page(list(runs_by_id(connection, list(query.ids), brief=query.brief).values()))
    if query.limit <= 0:
        return Page([])
    if query.jobs is not None:
        return Page(_newest_of_each(connection, query, query.jobs))
    before = _cursor(query.cursor)
    seqs = [
        seq
        for sql, parameters in index_scans(query, before, now)
        for seq in json.loads(
            _value(connection, f"SELECT json_group_array(seq) FROM ({sql})", *parameters)
        )
    ]
    seqs = sorted(seqs, reverse=True)[: query.limit]
    where = "WHERE seq IN (SELECT value FROM json_each(?))"
    runs = dict(select_runs(connection, where, _list(seqs), brief=query.brief))
    cursor = str(seqs[-1]) if len(seqs) == query.limit else None
    return Page([runs[seq] for seq in seqs if _follows(runs[seq], query.upstream)], cursor)


def _follows(run: Run, upstream: frozenset[str] | None) -> bool:
    """A row of `mainspring_upstream` may be left from a deleted run whose number is used again."""
    return upstream is None or not upstream.isdisjoint(run.after)


def _cursor(cursor: str | None) -> int:
    return _LAST if cursor is None else cursor_number(cursor, cursor)


def index_scans(query: RunQuery, before: int, now: int) -> list[tuple[str, tuple[Any, ...]]]:
    """The statements that give the newest `limit` seqs of each state asked for."""
    if query.lapsed:
        if query.states is not None and State.RUNNING not in query.states:
            return []
        return [_running(query, before, now)]
    if query.set_aside:
        return [_set_aside(query, before)]
    if query.upstream is not None:
        return [_following(query.upstream, query, before)]
    if query.failing or (needs_walk(query) and query.job is None):
        return [_filtered(query, before)]
    if query.states is None and query.job is None:
        return [(f"SELECT seq FROM mainspring_runs WHERE seq < ?{_NEWEST}", (before, query.limit))]
    states = State if query.states is None else query.states
    return [_scan_of_state(state, query, before) for state in states]


def needs_walk(query: RunQuery) -> bool:
    """Whether no index serves the query, so that it reads all runs, or all of a job, from the
    newest on."""
    tried_of_all = query.tried and query.job is None
    return tried_of_all or query.since is not None or query.until is not None


_NEWEST = " ORDER BY seq DESC LIMIT ?"


def _filtered(query: RunQuery, before: int) -> tuple[str, tuple[Any, ...]]:
    """One walk from the newest run on that checks each run: the few that failed, or all. There is
    no index by time: it would slow every run down, and few lists need it."""
    walk = "INDEXED BY mainspring_runs_failing WHERE failures > 0 AND" if query.failing else "WHERE"
    tried = " AND attempt > 0" if query.tried else ""
    states = None if query.states is None else _list(query.states)
    return _newest(
        f"SELECT seq FROM mainspring_runs {walk} seq < ?{tried}",
        [before],
        query,
        ("job_id = ?", query.job),
        ("state IN (SELECT value FROM json_each(?))", states),
    )


def _scan_of_state(state: State, query: RunQuery, before: int) -> tuple[str, tuple[Any, ...]]:
    if state is State.RUNNING:
        return _running(query, before, None)
    if query.job is not None:
        of_job = f"{_runs_of_job(state, query)} AND job_id = ? AND seq < ?"
        return _newest(of_job, [query.job, before], query)
    if state in _RARE_STATES:
        rare = (
            "SELECT seq FROM mainspring_runs INDEXED BY mainspring_runs_rare"
            f" WHERE state = '{state}' AND seq < ?{_NEWEST}"
        )
        return rare, (before, query.limit)
    return _ALL_JOBS.format(index=_OF_JOB[state], state=state), (
        before,
        query.limit,
        before,
        *[query.limit] * 2,
    )


def _runs_of_job(state: State, query: RunQuery) -> str:
    index = "mainspring_runs_rare_job" if state in _RARE_STATES else _OF_JOB[state]
    tried = " AND attempt > 0" if query.tried else ""
    if query.tried and state in _UNTRIED:
        index = "mainspring_runs_tried"
    return f"SELECT seq FROM mainspring_runs INDEXED BY {index} WHERE state = '{state}'{tried}"


def _newest_of_each(
    connection: sqlite3.Connection, query: RunQuery, jobs: Iterable[str]
) -> list[Run]:
    """One statement: of each job the newest of each state, and the newest of these."""
    states = sorted(State if query.states is None else query.states)
    if not states:
        return []
    of_state = (
        f"SELECT seq FROM ({_runs_of_job(state, query)} AND job_id = name.value{_NEWEST})"
        for state in states
    )
    where = (
        "WHERE seq IN (SELECT run.seq FROM json_each(?) AS name CROSS JOIN mainspring_runs AS run"
        f" ON run.seq IN ({' UNION ALL '.join(of_state)}{_NEWEST}))"
    )
    limits = [query.limit] * (len(states) + 1)
    runs = select_runs(connection, where, name_list(jobs), *limits, brief=query.brief)
    return [run for _, run in sorted(runs, key=itemgetter(0), reverse=True)]


def _running(query: RunQuery, before: int, now: int | None) -> tuple[str, tuple[Any, ...]]:
    """Checks all running runs, which are few at any moment."""
    sql = (
        "SELECT seq FROM mainspring_runs INDEXED BY mainspring_runs_running"
        " WHERE state = 'running' AND seq < ?"
    )
    return _newest(sql, [before], query, ("job_id = ?", query.job), ("lease_until <= ?", now))


def _newest(
    sql: str, parameters: list[Any], query: RunQuery, *conditions: tuple[str, Any]
) -> tuple[str, tuple[Any, ...]]:
    """A walk from the newest run on that leaves out the runs that were not created in the time
    asked for, or do not meet a condition. None as its value: there is no such condition."""
    created = (
        ("created_at >= ?", query.since and to_us(query.since)),
        ("created_at < ?", query.until and to_us(query.until)),
    )
    for condition, value in (*conditions, *created):
        if value is not None:
            sql, parameters = f"{sql} AND {condition}", [*parameters, value]
    return f"{sql}{_NEWEST}", (*parameters, query.limit)


def _set_aside(query: RunQuery, before: int) -> tuple[str, tuple[Any, ...]]:
    """Runs that were set aside, and runs whose lane is damaged. No claim finds either."""
    return f"{_PASSED_OVER}{_NEWEST}", (before, query.limit)


# A lane begins with its priority, which is one digit.
_PASSED_OVER = f"""{LANES}
SELECT seq FROM mainspring_runs INDEXED BY mainspring_runs_lane
WHERE state = 'pending' AND lane IN (
    SELECT lane FROM lanes WHERE length(lane) - length(replace(lane, char(31), '')) <> 3
    OR lane NOT GLOB '[0-9]' || char(31) || '*'
) AND seq < ?"""


_FOLLOWING = {State.WAITING: "run.state = 'waiting'", State.SKIPPED: SKIPPED_SQL}


def _following(
    upstream: frozenset[str], query: RunQuery, before: int
) -> tuple[str, tuple[Any, ...]]:
    """The runs that come after these, by the table `mainspring_upstream`."""
    states = (
        sql for state, sql in _FOLLOWING.items() if query.states is None or state in query.states
    )
    sql = (
        "SELECT DISTINCT run.seq AS seq FROM json_each(?) AS name"
        " CROSS JOIN mainspring_upstream AS wait ON wait.upstream = name.value"
        " CROSS JOIN mainspring_runs AS run ON run.seq = wait.seq"
        f" WHERE ({' OR '.join(states) or 'FALSE'}) AND run.seq < ?{_NEWEST}"
    )
    return sql, (name_list(upstream), before, query.limit)


# The index is by job, then seq. Step from job to job; only the `limit` jobs whose newest run
# is newest can have runs on the page.
_ALL_JOBS = """
WITH RECURSIVE jobs (job) AS (
    SELECT min(job_id) FROM mainspring_runs INDEXED BY {index} WHERE state = '{state}'
    UNION ALL
    SELECT (
        SELECT min(job_id) FROM mainspring_runs INDEXED BY {index}
        WHERE state = '{state}' AND job_id > jobs.job
    ) FROM jobs WHERE jobs.job IS NOT NULL
), newest (job, top) AS (
    SELECT job, (
        SELECT max(seq) FROM mainspring_runs INDEXED BY {index}
        WHERE state = '{state}' AND job_id = jobs.job AND seq < ?
    ) AS top FROM jobs WHERE job IS NOT NULL ORDER BY top DESC LIMIT ?
)
SELECT run.seq FROM newest JOIN mainspring_runs AS run ON run.seq IN (
    SELECT seq FROM mainspring_runs INDEXED BY {index}
    WHERE state = '{state}' AND job_id = newest.job AND seq < ? ORDER BY seq DESC LIMIT ?
) ORDER BY run.seq DESC LIMIT ?
"""


# -- counts ---------------------------------------------------------------------------------

_COUNTS = """
SELECT json_group_array(json_array(job_id, state, n)) FROM (
    SELECT job_id, 'pending' AS state, count(*) AS n
    FROM mainspring_runs INDEXED BY mainspring_runs_pending WHERE state = 'pending' GROUP BY 1
    UNION ALL
    SELECT job_id, 'running', count(*)
    FROM mainspring_runs INDEXED BY mainspring_runs_running WHERE state = 'running' GROUP BY 1
    UNION ALL
    SELECT job_id, 'waiting', count(*)
    FROM mainspring_runs INDEXED BY mainspring_runs_rare WHERE state = 'waiting' GROUP BY 1
)
"""
_DUE = """
SELECT json_group_array(json_array(lane, n, oldest)) FROM (
    SELECT lane, count(*) AS n, min(run_at) AS oldest
    FROM mainspring_runs INDEXED BY mainspring_runs_lane
    WHERE state = 'pending' AND run_at <= ? GROUP BY lane
)
"""


def counts(
    connection: sqlite3.Connection,
    now: int,
    since: datetime | None = None,
    jobs: frozenset[str] | None = None,
) -> Counts:
    """Of unfinished runs, walks along small indexes; of ended ones, what was counted."""
    if jobs is not None:
        return counters.read(connection, now, since, jobs)
    runs: dict[str, dict[State, int]] = defaultdict(dict)
    for job_id, state, count in json.loads(_value(connection, _COUNTS)):
        runs[job_id][State(state)] = count
    live = live_counts(
        runs,
        (
            (parts.handler, parts.queue, count, from_us(oldest))
            for lane, count, oldest in json.loads(_value(connection, _DUE, now))
            if (parts := Lane.parse(lane)) is not None
        ),
    )
    ended = counters.read(connection, now, since, frozenset({WHOLE_STORE}))
    return replace(live, totals=ended.totals, periods=ended.periods)


# -- jobs -----------------------------------------------------------------------------------


def jobs(connection: sqlite3.Connection, query: JobQuery) -> Page[Job]:
    if query.limit <= 0:
        return Page([])
    where: list[str] = []
    parameters: list[Any] = []
    if query.ids is not None:
        where.append("id IN (SELECT value FROM json_each(?))")
        parameters.append(name_list(query.ids))
    if query.tag is not None:
        where.append(
            "EXISTS (SELECT 1 FROM json_each(CASE WHEN json_valid(tags) THEN tags END)"
            " WHERE value = ?)"
        )
        parameters.append(query.tag)
    if query.queue is not None:
        where.append("queue = ?")
        parameters.append(query.queue)
    if query.follows:
        where.append("follows")
    if query.enabled is not None:
        where.append("enabled" if query.enabled else "NOT enabled")
    if query.text is not None:
        where.append(
            "(instr(small(CAST(id AS BLOB)), ?) OR instr(small(CAST(description AS BLOB)), ?))"
        )
        parameters += [query.text.lower()] * 2
    table = _table(query)
    total = _total(connection, table, where, parameters) if query.with_total else None
    if query.due is not None:
        where.append("enabled AND next_run_at <= ?")
        parameters.append(to_us(query.due))
    elif query.cursor is not None and has_cursor(query):
        where.append("id > ?")
        parameters.append(query.cursor)
    order = _order(query)
    chosen = f"SELECT rowid FROM {table}{_all_of(where)} ORDER BY {order} LIMIT ? OFFSET ?"
    parameters += [query.limit, query.offset]
    page = select_jobs(connection, f"WHERE rowid IN ({chosen})", *parameters)
    if query.due is not None:
        return Page(sorted(page, key=lambda job: (job.next_run_at or EPOCH, job.id)))
    page = ordered_jobs(page, query)
    full = has_cursor(query) and len(page) == query.limit
    return Page(page, page[-1].id if full else None, total)


def _order(query: JobQuery) -> str:
    """`next_run_at` and `last_run_at` are sorted without an index: every firing would have to write
    it. Measured on 10,000 jobs: 3 to 12 ms for a page."""
    if query.due is not None:
        return "next_run_at, id"
    way = "DESC" if query.descending else "ASC"
    if query.order == "id":
        return f"id {way}"
    return f"{query.order} {way} NULLS LAST, id"


def _table(query: JobQuery) -> str:
    """The table and the index to walk. One index has everything that lists are filtered by, so that
    only the definitions of the page are read."""
    if query.ids is not None or query.due is not None:
        return "mainspring_jobs"
    if query.follows and query.tag is None and query.text is None:
        return "mainspring_jobs INDEXED BY mainspring_jobs_follows"
    listed = (query.tag, query.text, query.enabled, query.queue)
    if query.order == "updated_at" or any(one is not None for one in listed):
        return "mainspring_jobs INDEXED BY mainspring_jobs_listed"
    return "mainspring_jobs"


def _total(
    connection: sqlite3.Connection, table: str, where: list[str], parameters: list[Any]
) -> int:
    return int(_value(connection, f"SELECT count(*) FROM {table}{_all_of(where)}", *parameters))


def _all_of(where: list[str]) -> str:
    """The WHERE clause, empty if there is no condition: with any WHERE a count reads every row."""
    return f" WHERE {' AND '.join(where)}" if where else ""


def _value(connection: sqlite3.Connection, sql: str, *parameters: Any) -> Any:
    return one_value(connection, sql, parameters)


def _list(values: Iterable[Any]) -> str:
    return json.dumps(list(values))
