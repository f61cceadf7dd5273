"""docs/explanation/proof.md lists what the simulation really checks."""

from __future__ import annotations

from tests.support.pages import DOCS
from tests.support.simulation.monitor import INVARIANTS
from tests.support.simulation.planted_bugs import PLANTED

PAGE = (DOCS / "explanation" / "proof.md").read_text()


def test_the_page_lists_every_planted_bug_with_what_notices_it() -> None:
    order = list(INVARIANTS)
    for bug in PLANTED:
        names = ", ".join(sorted(bug.caught_by, key=order.index))
        assert f"| {bug.name} | {bug.story} | {names} |" in PAGE


def test_the_page_lists_every_invariant() -> None:
    for name in INVARIANTS:
        assert f"| {name} |" in PAGE
