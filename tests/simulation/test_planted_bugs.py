"""The simulation finds every planted bug by the invariant that is meant for it."""

from __future__ import annotations

import pytest

from tests.support.simulation.monitor import INVARIANTS
from tests.support.simulation.planted_bugs import PLANTED, Planted, hunt


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.name.replace(" ", "-"))
def test_planted_bug_is_caught(bug: Planted) -> None:
    assert bug.caught_by <= INVARIANTS.keys()
    report = hunt(bug)
    assert report is not None, f"nothing noticed it: {bug.description}"
    assert report.violations[0].invariant in bug.caught_by, "\n".join(map(str, report.violations))
