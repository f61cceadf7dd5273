"""Bugs planted in the object store. The simulated cluster must find each one."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from mainspring.core.model import replace
from mainspring.core.transitions import Change
from mainspring.stores.objects import commit
from mainspring.stores.objects.group_commit import GroupCommit
from mainspring.stores.objects.schema import HEAD, Head
from mainspring.stores.objects.workspace import Workspace
from tests.support.objects.memory_bucket import Objects
from tests.support.objects.simulated_cluster import simulate_on_objects
from tests.support.simulation.scenario import Report

__all__ = ["PLANTED", "Planted", "hunt"]

MOST_SEEDS = 60
Patched = AbstractContextManager[Any]


@dataclass(frozen=True)
class Planted:
    name: str
    description: str
    caught_by: frozenset[str]
    plant: Callable[[], Patched]
    first_seed: int
    """The seed that found it last. The hunt begins there."""
    stress: bool = False


def hunt(bug: Planted, most: int = MOST_SEEDS) -> Report | None:
    """Run seeds with the bug planted until one of them fails. Returns None after `most` seeds."""
    with bug.plant():
        for seed in range(bug.first_seed, bug.first_seed + most):
            report = simulate_on_objects(seed, stress=bug.stress, calm=False)
            if report.violations:
                gc.collect()  # a broken story leaves tasks with errors behind
                return report
    return None


def without_condition() -> Patched:
    real = Objects.put

    def put(self: Objects, key: str, data: bytes, expected_etag: str | None) -> str | None:
        found = self.stored.get(key)
        return real(self, key, data, found.etag if key == HEAD and found else expected_etag)

    return patch.object(Objects, "put", put)


def nonce_unseen() -> Patched:
    real = GroupCommit._resolve_unanswered_tries

    def settle(self: GroupCommit, head: Head) -> None:
        self._tries.clear()
        real(self, head)

    return patch.object(GroupCommit, "_resolve_unanswered_tries", settle)


def taken_over_without_comparing() -> Patched:
    real = commit._commit

    def unfenced(work: Workspace, change: Change, awaited: set[str]) -> bool | None:
        if "lease_until" in change.expect:
            change = replace(change, expect={})
        return real(work, change, awaited)

    return patch.object(commit, "_commit", unfenced)


def old_head_read_as_new() -> Patched:
    """Now and then a client takes the entity tag of a new head, and keeps its old state."""
    real = GroupCommit._advance
    heads = itertools.count(1)

    async def advance(self: GroupCommit, head: Head) -> None:
        if self._etag is None or next(heads) % 20:
            await real(self, head)

    return patch.object(GroupCommit, "_advance", advance)


def snapshot_after_its_head() -> Patched:
    real = GroupCommit._write

    async def write(self: GroupCommit, *given: Any) -> bool:
        made = self._snapshot
        stored = self._bucket.objects.stored  # type: ignore[attr-defined]
        bodies = {name: stored.pop(name, None) for name in (() if made is None else made.parts)}
        won = await real(self, *given)
        for name, body in bodies.items():
            if body is not None:
                await self._bucket.put(name, body.data, expected_etag=None)
        return won

    return patch.object(GroupCommit, "_write", write)


UNFENCED = "fence, rescue, lease, tokens, finished, completion, attempts, cancel"
"""What notices a change of a run that is not as the change expects."""

WRONG_STATE = f"{UNFENCED}, limit, slots, counters, storage, lost, engine"
"""What notices a write that was made from another state than the one it replaces."""


def _bug(
    name: str,
    description: str,
    caught_by: str,
    plant: Callable[[], Patched],
    first_seed: int,
    **how: Any,
) -> Planted:
    return Planted(name, description, frozenset(caught_by.split(", ")), plant, first_seed, **how)


PLANTED = (
    _bug(
        "head without condition",
        "the head is written whatever it is by now",
        WRONG_STATE,
        without_condition,
        0,
    ),
    _bug(
        "nonce unseen",
        "after a lost answer nobody looks whether the write was done",
        "storage",
        nonce_unseen,
        0,
    ),
    _bug(
        "taken over without comparing",
        "a lapsed lease is taken over though its owner renewed it in between",
        UNFENCED,
        taken_over_without_comparing,
        2,
        stress=True,
    ),
    _bug(
        "old head read as new",
        "a client writes from an old state under the entity tag of a new head",
        WRONG_STATE,
        old_head_read_as_new,
        2,
    ),
    _bug(
        "snapshot after its head",
        "the head names a snapshot before it is written",
        "storage",
        snapshot_after_its_head,
        1,
    ),
)
