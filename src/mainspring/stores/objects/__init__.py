"""`s3://`, `gs://`, `az://`, `file://`: keeps everything in a bucket with conditional writes."""

from __future__ import annotations

from mainspring.stores.objects.store import ObjectStore

__all__ = ["ObjectStore"]
