"""docs/maintainers/proof.md lists what the simulation really checks."""

from __future__ import annotations

from tests.support.doc_examples import DOCS
from tests.support.objects import planted_bugs as planted_in_objects
from tests.support.simulation.monitor import INVARIANTS
from tests.support.simulation.planted_bugs import PLANTED

PAGE = (DOCS / "maintainers" / "proof.md").read_text()


def test_the_page_lists_every_planted_bug_with_what_notices_it() -> None:
    order = list(INVARIANTS)
    listed = [(bug.name, bug.description, bug.caught_by) for bug in PLANTED]
    listed += [(bug.name, bug.description, bug.caught_by) for bug in planted_in_objects.PLANTED]
    for name, description, caught_by in listed:
        assert (
            f"| {name} | {description} | {', '.join(sorted(caught_by, key=order.index))} |" in PAGE
        )


def test_the_page_lists_every_invariant() -> None:
    for name in INVARIANTS:
        assert f"| {name} |" in PAGE
