"""Reads the filters of lists and bulk operations into the store's queries, and checks them; finds
the records that this version cannot read."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, get_args

from mainspring.core.model import Job, Outcome, Page, Run, State, replace
from mainspring.core.options import JobRef, RunFilter, option_names
from mainspring.errors import InvalidInput, UnknownOption, refused
from mainspring.stores.codec import RUN
from mainspring.stores.paging import all_items
from mainspring.stores.protocol import JobOrder, JobQuery, RunQuery, Store

MOST_AT_ONCE = 10_000
"""Runs that one bulk operation changes."""

MOST_READS = 10
"""Pages of runs with a failed attempt that one page of timed-out runs reads."""


def matching_runs(
    ids: JobRef | Iterable[JobRef] | None, filters: RunFilter
) -> tuple[RunQuery, list[str] | None]:
    """The query of a bulk operation, and the ids where runs are named by id."""
    matching: dict[str, Any] = {**filters}
    allowed = option_names(RunFilter)
    if unknown := matching.keys() - allowed:
        raise UnknownOption(unknown, allowed, "filter")
    if ids is not None and matching:
        raise InvalidInput(
            f"give `ids` or filters ({', '.join(sorted(matching))}), not both", field="ids"
        )
    limit = matching.pop("limit", MOST_AT_ONCE)
    if not _is_whole(limit) or not 1 <= limit <= MOST_AT_ONCE:
        raise refused("limit", limit, f"is 1 to {MOST_AT_ONCE}")
    for name in ("since", "until"):
        aware_time(matching.get(name), name)
    states = state_set(matching.pop("state", None))
    named = None if ids is None else named_ids(ids, "ids")
    return RunQuery(states=states, limit=limit, **matching), named


async def find_timed_out(store: Store, query: RunQuery) -> Page[Run]:
    """The runs of a query of which an attempt timed out. Stores have no index of timeouts, because
    few would use it: this reads runs with a failed attempt until half a page is full, or
    `MOST_READS` times, and leaves the rest to the next page."""
    runs: list[Run] = []
    cursor = query.cursor
    for _ in range(MOST_READS):
        page = await store.find(
            replace(query, failing=True, brief=False, limit=query.limit - len(runs), cursor=cursor)
        )
        cursor = page.cursor
        runs += [
            RUN.brief_copy(run) if query.brief else run
            for run in page.items
            if any(attempt.outcome is Outcome.TIMED_OUT for attempt in run.attempts)
        ]
        if cursor is None or 2 * len(runs) >= query.limit:
            break
    return Page(runs, cursor)


def named_ids(named: JobRef | Iterable[JobRef], field: str) -> list[str]:
    """The ids that a caller gives: one, or several. A job, a decorated function or a run may stand
    for its id."""
    several: list[Any]
    try:
        several = [named] if isinstance(named, str) or hasattr(named, "id") else list(named)
    except TypeError:
        several = [named]
    ids: list[Any] = [getattr(item, "id", item) for item in several]
    if wrong := [name for name in ids if not isinstance(name, str)]:
        raise refused(field, wrong[0], "are the ids of jobs or runs, as text")
    return ids


def state_set(states: State | str | Iterable[State | str] | None) -> frozenset[State] | None:
    """One state or several, by value or by name."""
    if states is None:
        return None
    try:
        return frozenset(State(name) for name in ([states] if isinstance(states, str) else states))
    except (ValueError, TypeError) as error:
        raise InvalidInput(
            f"{error}; states are {', '.join(State)}", field="state", given=states, allowed=[*State]
        ) from None


def aware_time(moment: datetime | None, name: str) -> datetime | None:
    """The given time; refused if it has no time zone."""
    if moment is None or (isinstance(moment, datetime) and moment.utcoffset() is not None):
        return moment
    if isinstance(moment, datetime):
        raise InvalidInput(
            f"{name}={moment.isoformat()} has no time zone: give one, as in datetime.now(UTC) or"
            f" {name}.astimezone()",
            field=name,
            given=moment,
        )
    raise refused(name, moment, "is a datetime with a time zone")


def job_order(order: JobOrder, *, descending: bool, cursor: str | None) -> JobOrder:
    """The order of a list of jobs; refused with a cursor, unless it is the one of ids."""
    allowed = get_args(JobOrder)
    if order not in allowed:
        raise refused("order", order, f"is one of {', '.join(allowed)}", allowed)
    if cursor is not None and (order != "id" or descending):
        raise InvalidInput(
            "a cursor continues a list in the order of ids; read a list in another order by offset",
            field="cursor",
            given=cursor,
        )
    return order


def page_limit(limit: int) -> int:
    if not _is_whole(limit) or not 1 <= limit <= 1000:
        raise refused("limit", limit, "is 1 to 1000")
    return limit


def page_offset(offset: int) -> int:
    if not _is_whole(offset) or offset < 0:
        raise refused("offset", offset, "is 0 or more")
    return offset


def _is_whole(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


MOST_SEARCHED = 1000
"""The newest runs of each state that are searched, and how many records are read at once."""


async def find_unreadable(store: Store, limit: int) -> tuple[list[Job], list[Run]]:
    """Jobs and runs that this version cannot read, at most `limit` of each. All jobs are searched;
    of runs those that were set aside, those that are lapsed, and the newest of each state."""
    stored = all_items(store.jobs, JobQuery(limit=MOST_SEARCHED))
    jobs = [job async for job in stored if job.unreadable is not None][:limit]
    searches = [RunQuery(set_aside=True), RunQuery(lapsed=True)]
    searches += [RunQuery(states=frozenset({state})) for state in State]
    runs: dict[str, Run] = {}
    for query in searches:
        page = await store.find(replace(query, limit=MOST_SEARCHED))
        runs |= {run.id: run for run in page.items if run.unreadable is not None}
    return jobs, list(runs.values())[:limit]
