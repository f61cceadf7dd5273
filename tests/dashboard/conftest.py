import pytest

from tests.support.dashboard import *  # noqa: F403
from tests.support.service import *  # noqa: F403


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with a browser share one loop: the connection to the browser lives on it."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
