"""Runs of an `each_node` job: whatever makes a run of it makes one for each worker that is alive.

The handler of such a run is `@` and the worker's id, and its id ends with the same. Each worker
claims its own node handler beside the handlers of its program, so no other takes the run. Apart
from that it is a run like any other.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from mainspring.core.model import Run, State, replace

NO_NODE = "no live worker can run it"
"""The reason of the skipped run that is made where an `each_node` job has no node to run on."""


def node_handler(worker: str) -> str:
    """The handler of the node runs of a worker. No handler of a program begins with `@`."""
    return f"@{worker}"


def is_node_handler(handler: str) -> bool:
    return handler.startswith("@")


def node_of(run: Run) -> str | None:
    """The worker that a node run is for; None for any other run."""
    return run.handler[1:] if is_node_handler(run.handler) else None


def without_node(run: Run) -> str:
    """The id that the runs of all nodes begin with; that of any other run."""
    return run.id.removesuffix(run.handler) if is_node_handler(run.handler) else run.id


def on_each_node(run: Run, nodes: Iterable[str], now: datetime) -> tuple[Run, ...]:
    """The run, once for each of these workers. Ids and dedupe keys are made from the worker's id
    too, so each worker has the run at most once. Without a worker it is skipped."""
    handlers = [node_handler(node) for node in nodes]
    if not handlers:
        return (replace(run, state=State.SKIPPED, finished_at=now, reason=NO_NODE),)
    return tuple(
        replace(
            run,
            id=f"{run.id}{handler}",
            handler=handler,
            dedupe_key=None if run.dedupe_key is None else f"{run.dedupe_key}{handler}",
        )
        for handler in handlers
    )
