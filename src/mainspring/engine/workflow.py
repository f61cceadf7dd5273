"""Checks which jobs may run after which: no cycles, no unknown names, one root each. Pure.

A workflow begins with one root (a job that follows nothing) and holds everything that follows it.
So a job that follows two jobs of different roots could never have runs of both in one workflow: it
is refused when it is defined, instead of never running.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from mainspring.core.input_errors import InputErrors
from mainspring.core.model import Run
from mainspring.errors import InvalidInput

__all__ = ["check_order", "refuse_cycle_of_links", "runs_after", "upstream_first", "upstream_of"]

Order = Mapping[str, Collection[str]]
"""The upstream jobs of each job that runs after others."""


def check_order(
    order: Order, checked: Iterable[str], known: Collection[str], *, all_known: bool = True
) -> None:
    """Raise InvalidInput if jobs of `checked` can never run: one error for each unknown upstream
    job, for each cycle, and for each job of two roots. `known` are the ids of the jobs that exist.
    `all_known=False` allows unknown upstream jobs, which may be defined later."""
    errors = InputErrors()
    in_cycle: set[str] = set()
    for job_id in checked:
        for name in order.get(job_id, ()):
            if all_known and name not in known:
                errors.add(_unknown(job_id, name))
        if job_id in in_cycle:  # the error of another job names it
            continue
        if cycle := _cycle(job_id, order):
            in_cycle |= set(cycle)
            errors.add(_never_runs(job_id, cycle))
        else:
            with errors:
                _refuse_two_roots(job_id, order, known)
    errors.check()


def upstream_of(job_id: str, order: Order) -> set[str]:
    """Return every job that comes before this one, directly or not."""
    found: set[str] = set()
    way = list(order.get(job_id, ()))
    while way:
        name = way.pop()
        if name not in found:
            found.add(name)
            way += order.get(name, ())
    return found


def runs_after(roots: Iterable[Run], candidates: Iterable[Run]) -> list[Run]:
    """Return the candidates that come after one of the roots, directly or not, nearest first."""
    by_upstream: dict[str, list[Run]] = {}
    for run in candidates:
        for name in run.after:
            by_upstream.setdefault(name, []).append(run)
    found: dict[str, Run] = {}
    reached = [run.id for run in roots]
    while reached:
        following = [run for name in reached for run in by_upstream.get(name, ())]
        reached = []
        for run in following:
            if run.id not in found:
                found[run.id] = run
                reached.append(run.id)
    return list(found.values())


def upstream_first(runs: Mapping[str, Run]) -> list[Run]:
    """Return the runs (by id) so that each comes behind those of them that it comes after."""
    order = {run.id: run.after for run in runs.values()}
    depth = {run_id: len(upstream_of(run_id, order)) for run_id in runs}
    return sorted(runs.values(), key=lambda run: depth[run.id])


def refuse_cycle_of_links(link: Run, following: Run, runs: Mapping[str, Run]) -> None:
    """Raise InvalidInput if a link of a chain comes after the run that is to be the next link."""
    if following.id in upstream_of(link.id, {run.id: run.after for run in runs.values()}):
        raise InvalidInput(
            f"a chain cannot run {link.job_id!r} before {following.job_id!r}: {link.job_id!r} comes"
            f" after {following.job_id!r} already. Name them the other way round",
            field="links",
        )


def _unknown(job_id: str, name: str) -> InvalidInput:
    return InvalidInput(
        f"job {job_id!r} comes after {name!r}, and there is no such job. Check the name; if"
        " another program defines it, start that one first",
        field="after",
        given=name,
        job_id=job_id,
    )


def _never_runs(job_id: str, cycle: Iterable[str]) -> InvalidInput:
    return InvalidInput(
        f"job {job_id!r} would come after itself ({' → '.join(cycle)}): none of these could ever"
        " run",
        field="after",
        job_id=job_id,
    )


def _cycle(job_id: str, order: Order) -> list[str]:
    """A way from the job to itself, in the order in which the jobs would run; or an empty list."""
    ways = [[job_id]]
    seen: set[str] = set()
    while ways:
        way = ways.pop()
        for name in order.get(way[-1], ()):
            if name == job_id:
                return [job_id, *reversed(way)]
            if name not in seen:
                seen.add(name)
                ways.append([*way, name])
    return []


def _refuse_two_roots(job_id: str, order: Order, known: Collection[str]) -> None:
    upstream = upstream_of(job_id, order)
    roots = sorted(name for name in upstream if not order.get(name) and name in known)
    if len(roots) > 1:
        raise InvalidInput(
            f"job {job_id!r} comes after jobs of different workflows ({', '.join(roots)}): no"
            f" workflow instance contains them all, so it would never run. Let {roots[1]!r} come"
            f" after {roots[0]!r}, or both after one job that begins the workflow",
            field="after",
            job_id=job_id,
        )
