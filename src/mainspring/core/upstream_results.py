"""What a handler learns about the runs that its run came after: results, and what failed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from mainspring.core.model import Run, Source, State


def runs_with_results(run: Run) -> tuple[str, ...]:
    """The runs whose results the handler of a run is given. A queued slot comes after the slot
    before it only to wait for its turn."""
    return () if run.source is Source.SCHEDULE else run.after


class UpstreamRun(Struct, frozen=True, kw_only=True, gc=False):
    """A run that this one came after, as it ended. `result` is None unless it succeeded."""

    run_id: str
    job_id: str
    state: State
    result: Any = None
    error: str | None = None
    reason: str | None = None

    @classmethod
    def of(cls, run: Run) -> UpstreamRun:
        succeeded = run.state is State.SUCCEEDED
        return cls(
            run_id=run.id,
            job_id=run.job_id,
            state=run.state,
            result=run.result if succeeded else None,
            error=None if succeeded else run.error,
            reason=run.reason,
        )


class UpstreamResults(dict[str, Any]):
    """`ctx.results`: the results of the jobs that this run came after, by job id.

    It holds the jobs whose run succeeded. `failed` holds the others, by job id, each with its
    state, error and reason: a job with `after_failure="run"` looks there. Both hold one run of each
    job. `runs` holds every run in the order in which `after` names them, also if many of them are
    runs of one job, and `failed_runs` those of them that did not succeed.
    """

    def __init__(self, runs: Iterable[UpstreamRun] = ()) -> None:
        self.runs: tuple[UpstreamRun, ...] = tuple(runs)
        for run in self.runs:
            if run.state is State.SUCCEEDED:
                self[run.job_id] = run.result

    @cached_property
    def failed(self) -> Mapping[str, UpstreamRun]:
        """The upstream runs that failed, were cancelled or were skipped, by job id. Of several runs
        of one job it holds the last: `failed_runs` has them all."""
        return MappingProxyType({run.job_id: run for run in self.failed_runs})

    @cached_property
    def failed_runs(self) -> tuple[UpstreamRun, ...]:
        """Every upstream run that failed, was cancelled or was skipped, in the order of `runs`."""
        return tuple(run for run in self.runs if run.state is not State.SUCCEEDED)

    def __missing__(self, job_id: str) -> Any:
        """Raise a KeyError that says what happened to that job."""
        if (run := self.failed.get(job_id)) is not None:
            why = run.error or run.reason
            raise KeyError(
                f"job {job_id!r} has no result: its run {run.run_id} was {run.state}"
                f"{f' ({why})' if why else ''}"
            )
        known = ", ".join(sorted({run.job_id for run in self.runs})) or "nothing"
        raise KeyError(f"this run does not come after a job {job_id!r}; it comes after {known}")
