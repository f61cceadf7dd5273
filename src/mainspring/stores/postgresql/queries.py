"""Answers find, counts and jobs.

Newest first is by `seq`. Each state, and each partition, has its own index: a query reads at most
`limit` entries of each, merges them, and reads only the page's rows.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from operator import itemgetter
from typing import Any

from mainspring.core.clock import EPOCH
from mainspring.core.model import LIVE, Job, Page, Run, State
from mainspring.core.transitions import UPSTREAM_FAILED
from mainspring.stores.codec import from_us, to_us
from mainspring.stores.evaluation import has_cursor, live_counts, ordered_jobs
from mainspring.stores.paging import cursor_number
from mainspring.stores.postgresql.codec import runs_by_id, select_jobs, select_runs
from mainspring.stores.postgresql.database import Transaction
from mainspring.stores.protocol import Counts, JobQuery, RunQuery

_LAST = 2**63 - 1
Scan = tuple[str, list[Any]]


async def find(tx: Transaction, query: RunQuery) -> Page[Run]:
    if query.ids is not None:
        return Page(list((await runs_by_id(tx, query.ids, brief=query.brief)).values()))
    if query.limit <= 0:
        return Page([])
    if query.jobs is not None:
        return Page(await _newest_of_each(tx, query, query.jobs))
    before = _LAST if query.cursor is None else cursor_number(query.cursor, query.cursor)
    seqs: set[int] = set()
    for where, parameters in _scans(query, tx.now):
        sql = f"SELECT seq FROM mainspring.runs AS run WHERE {where} AND seq < %s"
        rows = await tx.rows(
            f"{sql} ORDER BY seq DESC LIMIT %s", [*parameters, before, query.limit]
        )
        seqs.update(seq for (seq,) in rows)
    chosen = sorted(seqs, reverse=True)[: query.limit]
    runs = dict(await select_runs(tx, "WHERE seq = ANY(%s)", [chosen], brief=query.brief))
    cursor = str(chosen[-1]) if len(chosen) == query.limit else None
    return Page([runs[seq] for seq in chosen if seq in runs], cursor)


async def _newest_of_each(tx: Transaction, query: RunQuery, jobs: Iterable[str]) -> list[Run]:
    """One statement: of each job the newest of each scan, and the newest of these."""
    scans = [
        f"(SELECT seq FROM mainspring.runs WHERE {where} ORDER BY seq DESC LIMIT %s)"
        for where, _ in _scans(query, tx.now)
    ]
    if not scans:
        return []
    where = (
        "WHERE seq IN (SELECT newest.seq FROM unnest(%s::text[]) AS job (name) CROSS JOIN LATERAL"
        f" (SELECT seq FROM ({' UNION ALL '.join(scans)}) AS scan ORDER BY seq DESC LIMIT %s)"
        " AS newest)"
    )
    parameters = [list(jobs), *[query.limit] * (len(scans) + 1)]
    runs = await select_runs(tx, where, parameters, brief=query.brief)
    return [run for _, run in sorted(runs, key=itemgetter(0), reverse=True)]


def _scans(query: RunQuery, now: int) -> list[Scan]:
    """Conditions, each served by an index, whose newest runs together have the page."""
    if query.set_aside:
        return [("NOT done AND set_aside", [])]
    if query.upstream is not None:
        return [_following(query)]
    conditions, parameters = _conditions(query)
    if query.lapsed:
        if query.states is not None and State.RUNNING not in query.states:
            return []
        lapsed = "NOT done AND state = 'running' AND lease_until <= %s"
        return [(f"{lapsed}{conditions}", [now, *parameters])]
    states = State if query.states is None else query.states
    live = [state for state in states if state in LIVE]
    done = [state for state in states if state not in LIVE]
    scans: list[Scan] = []
    if live:
        named = "" if len(live) == len(LIVE) else f" AND state IN ({_texts(live)})"
        scans.append((f"NOT done{named}{conditions}", parameters))
    if query.states is None and query.job is None and query.jobs is None:
        scans.append((f"done{conditions}", parameters))
    else:
        scans += [(f"done AND state = '{state}'{conditions}", parameters) for state in done]
    return scans


def _conditions(query: RunQuery) -> Scan:
    sql = ""
    parameters: list[Any] = []
    for condition, value in (
        (" AND job_id = %s", query.job),
        (" AND created_at >= %s", query.since and to_us(query.since)),
        (" AND created_at < %s", query.until and to_us(query.until)),
    ):
        if value is not None:
            sql, parameters = sql + condition, [*parameters, value]
    if query.jobs is not None:
        sql += " AND job_id = job.name"
    if query.failing:
        sql += " AND failures > 0"
    if query.tried:
        sql += " AND attempt > 0"
    return sql, parameters


def _texts(states: list[State]) -> str:
    return ", ".join(f"'{state}'" for state in states)


_FOLLOWING = {
    State.WAITING: "(NOT run.done AND run.state = 'waiting')",
    State.SKIPPED: f"(run.done AND run.state = 'skipped' AND run.reason = '{UPSTREAM_FAILED}')",
}


def _following(query: RunQuery) -> Scan:
    states = [
        sql for state, sql in _FOLLOWING.items() if query.states is None or state in query.states
    ]
    after = "id IN (SELECT run_id FROM mainspring.upstream WHERE upstream = ANY(%s))"
    names = list(query.upstream or ())
    return f"{after} AND ({' OR '.join(states) or 'false'})", [names]


# -- counts ---------------------------------------------------------------------------------

_COUNTS = "SELECT job_id, state, count(*) FROM mainspring.runs WHERE NOT done GROUP BY 1, 2"
_DUE = """
SELECT handler, queue, count(*), min(run_at) FROM mainspring.runs
WHERE NOT done AND state = 'pending' AND NOT set_aside AND run_at <= %s GROUP BY 1, 2
"""
_STATES = frozenset(State)


async def count_live(tx: Transaction) -> Counts:
    runs: dict[str, dict[State, int]] = defaultdict(dict)
    for job_id, state, count in await tx.rows(_COUNTS):
        if state in _STATES:
            runs[job_id][State(state)] = count
    due = await tx.rows(_DUE, [tx.now])
    return live_counts(runs, ((h, q, count, from_us(oldest)) for h, q, count, oldest in due))


# -- jobs -----------------------------------------------------------------------------------


async def jobs(tx: Transaction, query: JobQuery) -> Page[Job]:
    if query.limit <= 0:
        return Page([])
    where, parameters = _job_conditions(query)
    total = None
    if query.with_total:
        rows = await tx.rows(f"SELECT count(*) FROM mainspring.jobs{_all_of(where)}", parameters)
        total = int(rows[0][0])
    if query.due is not None:
        where.append("enabled AND next_run_at <= %s")
        parameters.append(to_us(query.due))
    elif query.cursor is not None and has_cursor(query):
        where.append("id > %s")
        parameters.append(query.cursor)
    tail = f"{_all_of(where)} ORDER BY {_order(query)} LIMIT %s OFFSET %s"
    found = await select_jobs(tx, tail, [*parameters, query.limit, query.offset])
    if query.due is not None:
        return Page(sorted(found, key=lambda job: (job.next_run_at or EPOCH, job.id)))
    found = ordered_jobs(found, query)
    full = has_cursor(query) and len(found) == query.limit
    return Page(found, found[-1].id if full else None, total)


def _job_conditions(query: JobQuery) -> tuple[list[str], list[Any]]:
    where: list[str] = []
    parameters: list[Any] = []
    if query.ids is not None:
        where.append("id = ANY(%s)")
        parameters.append(list(query.ids))
    if query.tag is not None:
        # In the JSON text of a list these characters begin an element, and nothing else.
        where.append("(strpos(tags, %s) > 0 OR strpos(tags, %s) > 0)")
        parameters += [f"[{json.dumps(query.tag)}", f",{json.dumps(query.tag)}"]
    if query.queue is not None:
        where.append("queue = %s")
        parameters.append(query.queue)
    if query.follows:
        where.append("follows")
    if query.enabled is not None:
        where.append("enabled" if query.enabled else "NOT enabled")
    if query.text is not None:
        where.append("(strpos(lower(id), %s) > 0 OR strpos(lower(description), %s) > 0)")
        parameters += [query.text.lower()] * 2
    return where, parameters


def _order(query: JobQuery) -> str:
    if query.due is not None:
        return "next_run_at, id"
    way = "DESC" if query.descending else "ASC"
    return f"id {way}" if query.order == "id" else f"{query.order} {way} NULLS LAST, id"


def _all_of(where: list[str]) -> str:
    return f" WHERE {' AND '.join(where)}" if where else ""
