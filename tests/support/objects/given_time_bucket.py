"""A bucket of a real server whose time a test moves."""

from __future__ import annotations

from mainspring.stores.objects.obstore_bucket import ObstoreBucket

__all__ = ["GivenTimeBucket"]


class GivenTimeBucket(ObstoreBucket):
    """The clock that it is made with takes the place of the server's."""

    async def read_clock(self) -> None:
        return None
