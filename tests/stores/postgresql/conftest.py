from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.postgresql import SharedSchema, shared_schema


@pytest.fixture
def schema(postgresql_url: str) -> Iterator[SharedSchema]:
    """A schema of the shared server that no other test has. It is not made yet."""
    with shared_schema(postgresql_url) as made:
        yield made
