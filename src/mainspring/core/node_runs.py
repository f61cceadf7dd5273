"""Runs of an `each_node` job: one for each live worker, made from the run that is to run on every
node.

A claim names the worker's own node handler beside its handlers, so only that worker takes a node
run. The run they were made from waits for all of them, and ends when they have ended.
"""

from __future__ import annotations

from collections.abc import Iterable

from mainspring.core.model import Run

__all__ = [
    "is_node_handler",
    "node_handler",
    "node_ids",
    "node_of",
    "node_run_id",
    "own_upstream",
    "root_id",
]


def node_handler(worker: str) -> str:
    """The handler of the node runs of a worker. No handler of a program begins with `@`."""
    return f"@{worker}"


def is_node_handler(handler: str) -> bool:
    return handler.startswith("@")


def node_of(run: Run) -> str | None:
    """The worker that a node run is for; None for any other run."""
    return run.handler[1:] if is_node_handler(run.handler) else None


def node_run_id(run_id: str, worker: str) -> str:
    """The id of a run's node run: made from both, so a worker has at most one of them."""
    return f"{run_id}@{worker}"


def root_id(run: Run) -> str:
    """The id of the run that a node run was made of."""
    return run.id.removesuffix(run.handler)


def node_ids(run: Run) -> tuple[str, ...]:
    """The node runs that were made of a run."""
    return tuple(_made_of(run, run.after))


def own_upstream(run: Run) -> tuple[str, ...]:
    """The runs that it comes after, without its node runs."""
    made = set(node_ids(run))
    return tuple(name for name in run.after if name not in made)


def _made_of(run: Run, names: Iterable[str]) -> Iterable[str]:
    return (name for name in names if name.startswith(f"{run.id}@"))
