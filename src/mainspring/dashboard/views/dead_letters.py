"""The page at `/dead-letters`: failed runs, by job and error, to be retried or deleted together."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated

from fastapi import Query, Request, Response
from msgspec import Struct

from mainspring.core.model import Run, State
from mainspring.dashboard.formats import first_line
from mainspring.dashboard.pages import page_router, render, service_of
from mainspring.service.access import access

router = page_router()

RUNS_GROUPED = 1000
"""The newest failed runs, which are read to be grouped."""

GROUPS_SHOWN = 50
RUNS_PER_PAGE = 50
_VARIABLE = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-fA-F-]{8,}\b|\d+")


class Group(Struct, frozen=True):
    """Failed runs of a job whose errors differ in numbers and ids at most. `runs`: newest first."""

    job_id: str
    pattern: str
    runs: list[Run]

    @property
    def error(self) -> str:
        """The error, with # for what differs."""
        lines = {first_line(run.error or run.reason) for run in self.runs}
        return lines.pop() if len(lines) == 1 else self.pattern

    @property
    def id(self) -> str:
        """The same for the same job and error, wherever the group is in the list."""
        return hashlib.sha256(f"{self.job_id}\n{self.pattern}".encode()).hexdigest()[:16]

    @property
    def ids(self) -> list[str]:
        return [run.id for run in self.runs]


@router.get("/dead-letters")
@access("read")
async def dead_letters(
    request: Request,
    job: Annotated[str, Query(max_length=200)] = "",
    error: Annotated[str, Query(max_length=400)] = "",
    cursor: Annotated[str | None, Query(max_length=500)] = None,
) -> Response:
    client = service_of(request).client
    job = job.strip()
    newest, page = await asyncio.gather(
        client.list_runs(state=State.FAILED, job=job or None, brief=True, limit=RUNS_GROUPED),
        client.list_runs(
            state=State.FAILED, job=job or None, brief=True, limit=RUNS_PER_PAGE, cursor=cursor
        ),
    )
    groups = _groups(newest.items)
    listed, older = page.items, page.cursor
    if error:
        chosen = [group for group in groups if group.pattern == error]
        listed, older = [run for group in chosen for run in group.runs][:RUNS_PER_PAGE], None
    return render(
        request,
        "dead_letters.html",
        page="dead-letters",
        title="Dead letters",
        groups=groups[:GROUPS_SHOWN],
        groups_left=len(groups) - GROUPS_SHOWN,
        grouped=len(newest.items),
        grouped_all=newest.cursor is None,
        runs=listed,
        chosen={"job": job, "error": error},
        match={"state": ["failed"], **({"job": job} if job else {})},
        older=older,
        is_newest=cursor is None,
    )


def _groups(runs: Sequence[Run]) -> list[Group]:
    """The largest first, then the one that failed last."""
    alike: defaultdict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        alike[run.job_id, _pattern(run)].append(run)
    groups = [Group(job_id, pattern, runs) for (job_id, pattern), runs in alike.items()]
    return sorted(groups, key=lambda group: -len(group.runs))


def _pattern(run: Run) -> str:
    """The first line of the error, without the numbers and ids that differ from run to run."""
    return _VARIABLE.sub("#", first_line(run.error or run.reason)) or "no error was kept"
