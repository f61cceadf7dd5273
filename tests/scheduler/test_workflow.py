"""Workflows as text and as nodes and edges."""

from __future__ import annotations

from mainspring.core.model import State
from mainspring.scheduler.workflow import Workflow, WorkflowNode


def run(
    name: str, state: State, *after: str, job: str | None = None, detail: str | None = None
) -> WorkflowNode:
    return WorkflowNode(
        id=name, run_id=name, job_id=job or name, after=after, state=state, detail=detail
    )


DIAMOND = Workflow(
    (
        run("extract", State.SUCCEEDED),
        run("left", State.FAILED, "extract", detail="OSError: disk full"),
        run("right", State.SUCCEEDED, "extract"),
        run("join", State.SKIPPED, "left", "right", detail="upstream failed"),
        run("report", State.SKIPPED, "join", detail="upstream failed"),
    )
)


def test_a_diamond_is_drawn_with_each_run_once() -> None:
    assert DIAMOND.text().splitlines() == [
        "extract  succeeded",
        "├─ left  failed  (OSError: disk full)",
        "│  └─ join  skipped  (upstream failed)  [also after right]",
        "│     └─ report  skipped  (upstream failed)",
        "└─ right  succeeded",
    ]


def test_many_runs_of_one_job_share_a_line() -> None:
    parts = [
        run(f"part-{n}", State.SUCCEEDED if n else State.FAILED, job="part") for n in range(1000)
    ]
    last = run("total", State.SUCCEEDED, *(part.id for part in parts))
    assert Workflow((*parts, last)).text().splitlines() == [
        "part × 1,000  999 succeeded, 1 failed",
        "└─ total  succeeded",
    ]


def test_programs_get_nodes_and_edges() -> None:
    graph = DIAMOND.to_dict()
    assert [node["id"] for node in graph["nodes"]] == ["extract", "left", "right", "join", "report"]
    assert {"from": "left", "to": "join"} in graph["edges"]
    assert len(graph["edges"]) == 5
    assert graph["complete"] is True
