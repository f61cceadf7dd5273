"""A workflow as a graph of jobs, or of runs, and its picture as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from mainspring.core.model import State


class WorkflowNode(Struct, frozen=True, kw_only=True):
    """A job (`run_id` and `state` are None) or a run, and the ids of the nodes it comes after."""

    id: str
    job_id: str
    after: tuple[str, ...] = ()
    run_id: str | None = None
    state: State | None = None
    detail: str | None = None
    """Why a run did not succeed, or the schedule of a job."""


class Workflow(Struct, frozen=True):
    """The nodes of a workflow, each behind those that it comes after."""

    nodes: tuple[WorkflowNode, ...]
    complete: bool = True
    """False where there may be more runs than these: see `Client.workflow`."""

    def to_dict(self) -> dict[str, Any]:
        """The graph for programs: nodes, and edges from each node to those that come after it."""
        return {
            "nodes": [
                {
                    "id": node.id,
                    "job_id": node.job_id,
                    "run_id": node.run_id,
                    "state": node.state,
                    "detail": node.detail,
                }
                for node in self.nodes
            ],
            "edges": [{"from": name, "to": node.id} for node in self.nodes for name in node.after],
            "complete": self.complete,
        }

    def text(self) -> str:
        """The graph as a tree. A node that comes after several others is drawn under the first of
        them and names the others. Runs of one job that differ in nothing but their outcome share a
        line."""
        return "\n".join(_draw(self._groups()))

    def _groups(self) -> list[_Group]:
        """Nodes that share a line: of the same job, after the same nodes, before the same nodes."""
        before: dict[str, list[str]] = {}
        for node in self.nodes:
            for name in node.after:
                before.setdefault(name, []).append(node.id)
        groups: dict[tuple[Any, ...], list[WorkflowNode]] = {}
        for node in self.nodes:
            key = (node.job_id, node.after, tuple(before.get(node.id, ())))
            groups.setdefault(key, []).append(node)
        return [_Group(tuple(nodes)) for nodes in groups.values()]


class _Group(Struct, frozen=True):
    nodes: tuple[WorkflowNode, ...]

    @property
    def ids(self) -> set[str]:
        return {node.id for node in self.nodes}

    @property
    def after(self) -> set[str]:
        return set(self.nodes[0].after)

    @property
    def name(self) -> str:
        return self.nodes[0].job_id

    def label(self) -> str:
        first = self.nodes[0]
        if len(self.nodes) == 1:
            parts = [first.job_id, first.state, f"({first.detail})" if first.detail else None]
            return "  ".join(str(part) for part in parts if part is not None)
        states = Counter(str(node.state) for node in self.nodes if node.state is not None)
        shown = ", ".join(f"{count:,} {state}" for state, count in states.most_common())
        return f"{first.job_id} × {len(self.nodes):,}  {shown}".rstrip()


def _draw(groups: Sequence[_Group]) -> Iterator[str]:
    known = set().union(*(group.ids for group in groups))
    roots = [group for group in groups if not group.after & known]
    drawn: set[int] = set()
    for root in roots:
        yield root.label()
        yield from _draw_followers(root, groups, drawn, "")


def _draw_followers(
    group: _Group, groups: Sequence[_Group], drawn: set[int], indent: str
) -> Iterator[str]:
    followers = [one for one in groups if one.after & group.ids and id(one) not in drawn]
    drawn.update(id(one) for one in followers)
    for at, one in enumerate(followers):
        last = at == len(followers) - 1
        others = [other.name for other in groups if other is not group and one.after & other.ids]
        also = f"  [also after {', '.join(sorted(others))}]" if others else ""
        yield f"{indent}{'└─ ' if last else '├─ '}{one.label()}{also}"
        yield from _draw_followers(one, groups, drawn, indent + ("   " if last else "│  "))
