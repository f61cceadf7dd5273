"""Makes the bucket that a URL names."""

from __future__ import annotations

from mainspring.core.clock import Clock
from mainspring.errors import InvalidInput, install_advice
from mainspring.stores.objects.bucket import Bucket
from mainspring.stores.objects.url import Address


def make_bucket(url: str, clock: Clock | None = None) -> Bucket:
    """The bucket that a URL names, not open yet."""
    address = Address.of(url)
    if address.scheme == "file":
        from mainspring.stores.objects.directory_bucket import DirectoryBucket

        return DirectoryBucket(address.bucket, clock)
    try:
        from mainspring.stores.objects.obstore_bucket import ObstoreBucket
    except ModuleNotFoundError as error:
        if error.name != "obstore":
            raise
        raise InvalidInput(
            f"{address.scheme}:// needs the object storage client: {install_advice('objects')}"
        ) from error
    return ObstoreBucket(address, clock)
