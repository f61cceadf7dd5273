"""Adds runs, and applies changes whose expectations still hold."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from mainspring.core.model import FINISHED, LIVE, replace
from mainspring.core.statistics import Ending, ending_of
from mainspring.core.transitions import Change
from mainspring.stores import evaluation
from mainspring.stores.codec import Record, run_from_record, run_to_record
from mainspring.stores.objects.workspace import Workspace
from mainspring.stores.protocol import Added


def add_runs(work: Workspace, records: Sequence[Record]) -> list[Added]:
    refused: set[str] = set()
    return [_add(work, record, refused) for record in records]


def _add(work: Workspace, record: Record, refused: set[str]) -> Added:
    run = run_from_record(record)
    stored = work.run(run.id)
    if stored is not None:
        return Added(stored)
    holder = work.dedupe_holder(run.dedupe_key) if refused.isdisjoint(run.after) else run
    if holder is not None:
        refused.add(run.id)
        return Added(replace(holder, duplicate=True), duplicate=True)
    if (moved := evaluation.new_run_by_clock(run, work.now)) is not run:
        record = run_to_record(moved)
    added = work.put_new_run(run.id, {**record, "number": work.next_number()})
    work.count_endings([ending_of(added)])
    return Added(added)


def commit_changes(work: Workspace, changes: Sequence[Change]) -> list[bool]:
    done: list[bool] = []
    endings: list[Ending | None] = []
    for deletes, alike in groupby(changes, lambda change: change.deletes):
        awaited = work.awaited_runs() if deletes else set()  # no deletion changes them
        for change in alike:
            applied = _commit(work, change, awaited)
            done.append(applied is not None)
            if applied:
                endings.append(change.ending)
    work.count_endings(endings)
    return done


def _commit(work: Workspace, change: Change, awaited: set[str]) -> bool | None:
    """True: applied now. False: done, with nothing to count (it was sent again, or it deletes).
    None: refused."""
    run = work.run(change.id)
    if run is None:
        return False if change.deletes else None
    if work.record(run.id).get("change_id") == change.change_id:
        return False  # sent again: it was applied, and no other change came after it
    if any(getattr(run, name) != value for name, value in change.expect.items()):
        return None
    if change.deletes:
        if not evaluation.may_be_deleted(run, work.now, awaited):
            return None
        work.delete(run.id)
        return False
    revives = run.state in FINISHED and change.after(run).state in LIVE
    if revives and work.dedupe_holder(run.dedupe_key, besides=run.id) is not None:
        return None
    fields = evaluation.fields_of_change(change, work.now)
    work.update(run.id, fields, change_id=change.change_id)
    return True
