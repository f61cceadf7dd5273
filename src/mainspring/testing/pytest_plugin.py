"""The pytest plugin: fixtures and a marker for tests of a program's jobs.

pytest loads it in every program that has Mainspring installed, so it imports little. The fixtures
are plain ones: they work in plain tests and in async tests of any plugin that runs asyncio.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from mainspring.scheduler import Scheduler
    from mainspring.testing.virtual_scheduler import TestScheduler

MARKER = (
    "mainspring(start=…, resources=…, thread_timeout=…): options of the TestScheduler that the"
    " fixture mainspring_test gives"
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


@pytest.fixture
def mainspring_scheduler() -> Scheduler:
    """The scheduler under test. Override it in your conftest.py to return your program's own."""
    from mainspring.scheduler import Scheduler

    return Scheduler("memory://")


@pytest.fixture
def mainspring_test(
    request: pytest.FixtureRequest, mainspring_scheduler: Scheduler
) -> Iterator[TestScheduler]:
    """A started `TestScheduler` for `mainspring_scheduler`: `await mainspring_test.tick("1h")`, or
    in a plain test `mainspring_test.blocking.tick("1h")`."""
    from mainspring.testing.virtual_scheduler import TestScheduler

    marker = request.node.get_closest_marker("mainspring")
    test = TestScheduler(mainspring_scheduler, **(marker.kwargs if marker else {}))
    with test.blocking:
        yield test


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, Any]:
    """Show what the jobs did beside the failure of a test."""
    report = yield
    test = getattr(item, "funcargs", {}).get("mainspring_test")
    if test is not None and report.when == "call" and report.failed:
        report.sections.append(("Mainspring runs", test.describe()))
    return report
