"""Small charts that pages draw as inline SVG: the last runs of a job, and a workflow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from mainspring.core.model import Run, State
from mainspring.dashboard.formats import plural, span
from mainspring.scheduler.workflow import Workflow, WorkflowNode

TONES = {
    State.SUCCEEDED: "green",
    State.FAILED: "red",
    State.RUNNING: "blue",
    State.SKIPPED: "amber",
    State.CANCELLED: "grey",
}

SHORTEST_BAR = 3


class Bar(Struct, frozen=True):
    """One run. `title` says in words what height and colour show."""

    x: int
    y: int
    height: int
    tone: str
    title: str


class Sparkline(Struct, frozen=True):
    """The last runs of a job, the newest at the right. `text` says the same in words."""

    width: int
    height: int
    bars: tuple[Bar, ...]
    text: str


def draw_runs(runs: Sequence[Run], most: int = 20, *, step: int = 6, height: int = 24) -> Sparkline:
    """Bars for these runs, which are given newest first: the height is the duration, the colour is
    the outcome."""
    shown = list(reversed(runs[:most]))
    longest = max((run.duration or 0.0 for run in shown), default=0.0) or 1.0
    first = most - len(shown)
    bars = []
    for at, run in enumerate(shown, first):
        share = (run.duration or 0.0) / longest
        tall = max(SHORTEST_BAR, round(share * height))
        took = "" if run.duration is None else f", {span(run.duration)}"
        tone = TONES.get(run.state, "grey")
        bars.append(Bar(at * step, height - tall, tall, tone, f"{run.state}{took}"))
    return Sparkline(most * step - 1, height, tuple(bars), _describe_runs(shown))


def _describe_runs(runs: Sequence[Run]) -> str:
    if not runs:
        return "no runs yet"
    counts = Counter(str(run.state) for run in runs).most_common()
    states = ", ".join(f"{count} {state}" for state, count in counts)
    times = sorted(run.duration for run in runs if run.duration is not None)
    spread = f"; {span(times[0])} to {span(times[-1])}" if times else ""
    return f"last {plural(len(runs), 'run')}: {states}{spread}"


# -- workflows --------------------------------------------------------------------------------

BOX_WIDTH, BOX_HEIGHT = 190, 44
GAP_X, GAP_Y = 56, 16
MARGIN = 6
LONGEST_NAME = 24
MOST_BOXES = 60
"""A picture of more boxes is too small to read: the list beside it has them all."""


class Box(Struct, frozen=True):
    node: WorkflowNode
    x: int
    y: int
    name: str
    detail: str


class Graph(Struct, frozen=True):
    """Boxes in columns, each to the right of those that it comes after, and lines between them."""

    width: int
    height: int
    boxes: tuple[Box, ...]
    lines: tuple[str, ...]
    text: str


def draw_workflow(workflow: Workflow) -> Graph | None:
    """None if there is nothing to draw: one node, or too many."""
    nodes = workflow.nodes
    if not 2 <= len(nodes) <= MOST_BOXES:
        return None
    column: dict[str, int] = {}
    for node in nodes:  # each is behind those that it comes after
        column[node.id] = max((column.get(name, -1) + 1 for name in node.after), default=0)
    columns: dict[int, list[WorkflowNode]] = {}
    for node in nodes:
        columns.setdefault(column[node.id], []).append(node)
    tallest = max(map(len, columns.values()))
    height = 2 * MARGIN + tallest * (BOX_HEIGHT + GAP_Y) - GAP_Y
    boxes: dict[str, Box] = {}
    for at, of_column in sorted(columns.items()):
        taken = len(of_column) * (BOX_HEIGHT + GAP_Y) - GAP_Y
        top = MARGIN + (height - 2 * MARGIN - taken) // 2
        for row, node in enumerate(of_column):
            x = MARGIN + at * (BOX_WIDTH + GAP_X)
            y = top + row * (BOX_HEIGHT + GAP_Y)
            when = f"after {', '.join(node.after)}" if node.after else "on demand"
            detail = str(node.state) if node.state is not None else node.detail or when
            boxes[node.id] = Box(node, x, y, _shorten(node.job_id), _shorten(detail, 30))
    lines = tuple(
        _line(boxes[name], boxes[node.id]) for node in nodes for name in node.after if name in boxes
    )
    width = 2 * MARGIN + (max(columns) + 1) * (BOX_WIDTH + GAP_X) - GAP_X
    text = f"{plural(len(nodes), 'step')}, {plural(len(lines), 'dependency', 'dependencies')}"
    return Graph(width, height + GAP_Y, tuple(boxes.values()), lines, text)


def _line(start: Box, end: Box) -> str:
    """A curve from the right edge of one box to the left edge of another."""
    x1, y1 = start.x + BOX_WIDTH, start.y + BOX_HEIGHT // 2
    x2, y2 = end.x, end.y + BOX_HEIGHT // 2
    bend = max(20, (x2 - x1) // 2)
    # Past the columns between, below the boxes that stand there.
    low = BOX_HEIGHT if x2 - x1 > GAP_X and y1 == y2 else 0
    return f"M{x1} {y1}C{x1 + bend} {y1 + low} {x2 - bend} {y2 + low} {x2} {y2}"


def _shorten(text: str, most: int = LONGEST_NAME) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
