"""Which jobs run after which: looks them up, and refuses cycles, unknown names and two roots. Pure.

A workflow begins with one root (a job that follows nothing) and holds everything that follows it.
So a job that follows two jobs of different roots could never have runs of both in one workflow: it
is refused when it is defined, instead of never running.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from mainspring.core.model import Job, Run
from mainspring.errors import InputErrors, InvalidInput

Order = Mapping[str, Collection[str]]
"""The upstream jobs of each job that runs after others."""


class Followers:
    """The jobs that run after other jobs, found by the job that they follow. A look-up costs what
    it gives, however many jobs of other workflows there are."""

    def __init__(self, jobs: Iterable[Job] = ()) -> None:
        self._by_id = {job.id: job for job in jobs}
        self._by_upstream: dict[str, list[Job]] = {}
        for job in self._by_id.values():
            for name in dict.fromkeys(job.policy.after):
                self._by_upstream.setdefault(name, []).append(job)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._by_id.values())

    def directly_after(self, job_id: str) -> Sequence[Job]:
        return self._by_upstream.get(job_id, ())

    def after(self, job_ids: Iterable[str]) -> dict[str, Job]:
        """Every job that comes after these, directly or not, by id."""
        jobs: dict[str, Job] = {}
        reached = list(job_ids)
        for job_id in reached:  # it grows
            for job in self.directly_after(job_id):
                if job.id not in jobs:
                    jobs[job.id] = job
                    reached.append(job.id)
        return jobs

    def is_enabled(self, job_id: str) -> bool:
        job = self._by_id.get(job_id)
        return job is not None and job.enabled

    def without(self, job_ids: Iterable[str], roots: Collection[str]) -> Followers:
        """All but these jobs and those that come after them. `roots` stay."""
        gone: set[str] = set()
        left = list(job_ids)
        while left:
            job_id = left.pop()
            if job_id not in gone and job_id not in roots:
                gone.add(job_id)
                left += (job.id for job in self.directly_after(job_id))
        return Followers(job for job in self if job.id not in gone) if gone else self


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
    upstream: set[str] = set()
    way = list(order.get(job_id, ()))
    while way:
        name = way.pop()
        if name not in upstream:
            upstream.add(name)
            way += order.get(name, ())
    return upstream


def runs_after(roots: Iterable[Run], candidates: Iterable[Run]) -> list[Run]:
    """Return the candidates that come after one of the roots, directly or not, nearest first."""
    by_upstream: dict[str, list[Run]] = {}
    for run in candidates:
        for name in run.after:
            by_upstream.setdefault(name, []).append(run)
    following_runs: dict[str, Run] = {}
    reached = [run.id for run in roots]
    while reached:
        following = [run for name in reached for run in by_upstream.get(name, ())]
        reached = []
        for run in following:
            if run.id not in following_runs:
                following_runs[run.id] = run
                reached.append(run.id)
    return list(following_runs.values())


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
