"""Bugs planted on purpose: a suite that lets these through would prove nothing.

Each is what a store or a transition did wrong, most of them with a record that it could not read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from mainspring.core import overlap, transitions
from mainspring.core.model import Job, replace
from mainspring.stores import evaluation
from mainspring.stores.sqlite import SqliteStore, codec, store
from mainspring.testing import StoreConformance
from tests.conformance.test_memory import TestMemory as OnMemory
from tests.conformance.test_sqlite import TestSqlite as OnSqlite

Plant = Callable[[], AbstractContextManager[Any]]


def _claims_what_cannot_be_read() -> AbstractContextManager[Any]:
    takes = evaluation.is_claimable
    return patch.object(
        evaluation, "is_claimable", lambda run, claim: takes(replace(run, unreadable=None), claim)
    )


def _one_damaged_row_fails_the_page() -> AbstractContextManager[Any]:
    def fail(*_: Any) -> Any:
        raise ValueError("it cannot be read")

    return patch.object(codec, "read_parts", fail)


def _nothing_is_set_aside() -> AbstractContextManager[Any]:
    def leave(tx: Any, items: Sequence[Any]) -> list[bool]:
        return [True] * len(items)

    return patch.object(store, "set_aside", leave)


def _overwrites_what_was_not_read() -> AbstractContextManager[Any]:
    return patch.object(transitions, "_known", lambda run, put: put)


def _later_slots_wait_for_ever() -> AbstractContextManager[Any]:
    return patch.object(overlap, "may_never_start", lambda run: False)


def _never_comes_back() -> AbstractContextManager[Any]:
    async def leave(self: SqliteStore, limit: int) -> None: ...

    return patch.object(SqliteStore, "_release_set_aside", leave)


def _versions_start_at_one() -> AbstractContextManager[Any]:
    return patch.object(Job, "next_version", lambda job: job.version + 1)


PLANTED: list[tuple[type[StoreConformance], Plant, str, dict[str, str]]] = [
    (OnMemory, _claims_what_cannot_be_read, "a_claim_skips_an_unreadable_run",
     {"part": "payload"}),
    (OnSqlite, _one_damaged_row_fails_the_page, "lists_show_an_unreadable_run_with_the_reason",
     {"part": "attempts"}),
    (OnSqlite, _one_damaged_row_fails_the_page, "an_unreadable_job_affects_no_other_job",
     {"part": "schedule"}),
    (OnSqlite, _nothing_is_set_aside, "a_claim_skips_an_unreadable_run",
     {"part": "payload"}),
    (OnSqlite, _overwrites_what_was_not_read,
     "cancelling_an_unreadable_run_leaves_the_damaged_part", {"part": "progress"}),
    (OnSqlite, _overwrites_what_was_not_read,
     "an_unreadable_run_with_a_lapsed_lease_is_rescued", {"part": "attempts"}),
    (OnMemory, _later_slots_wait_for_ever, "later_slots_do_not_wait_for_an_unreadable_run", {}),
    (OnSqlite, _never_comes_back, "a_claim_skips_an_unreadable_run",
     {"part": "payload"}),
    *((suite, _versions_start_at_one, test, {})
      for suite in (OnMemory, OnSqlite)
      for test in (
          "a_firing_planned_for_a_dropped_job_does_not_fire_a_new_job_of_its_id",
          "a_write_for_a_dropped_job_does_not_change_a_new_job_of_its_id",
      )),
]  # fmt: skip


@pytest.mark.parametrize(
    ("suite", "plant", "test", "given"),
    PLANTED,
    ids=[f"{plant.__name__.strip('_')}-{test[:20]}" for _, plant, test, _ in PLANTED],
)
def test_the_conformance_suite_finds_a_planted_bug(
    suite: type[StoreConformance], plant: Plant, test: str, given: dict[str, str], tmp_path: Path
) -> None:
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.mkdir()
    wrong.mkdir()
    getattr(suite(), f"test_{test}")(right, **given)
    with plant(), pytest.raises(Exception):  # noqa: B017 - the bug decides what the suite meets
        getattr(suite(), f"test_{test}")(wrong, **given)
