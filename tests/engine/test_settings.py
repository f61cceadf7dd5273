"""Settings are checked when a scheduler is made."""

from __future__ import annotations

import pytest

from mainspring import Scheduler
from mainspring.errors import InvalidInput


@pytest.mark.parametrize("queues", [[], (), set()])
def test_a_worker_that_would_take_no_queue_is_refused(queues: list[str]) -> None:
    with pytest.raises(InvalidInput, match="queues is empty") as refused:
        Scheduler("memory://", queues=queues)
    assert refused.value.field == "queues"
    with pytest.raises(InvalidInput, match="queues is empty"):
        Scheduler("memory://").configure(queues=queues)
