"""`s3://`, `gs://`, `az://`, `file://`: keeps everything in a bucket with conditional writes."""

from __future__ import annotations

__all__: list[str] = []
