"""Closes stale connections of Django to its databases around each handler, as Django does around
each request."""

from __future__ import annotations

from types import TracebackType

import django
from asgiref.sync import sync_to_async
from django.apps import apps
from django.db import close_old_connections

from mainspring.core.context import RunContext


class fresh_connections:  # noqa: N801 - used as a function that makes a context manager
    """For `around`: closes connections that are broken or older than CONN_MAX_AGE. One of yours
    replaces it, and enters `fresh_connections(ctx)` itself."""

    def __init__(self, ctx: RunContext) -> None: ...

    def __enter__(self) -> None:
        close_old_connections()

    def __exit__(self, *error: object) -> None:
        close_old_connections()

    async def __aenter__(self) -> None:
        await _close_old_connections()

    async def __aexit__(
        self, kind: object, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await _close_old_connections()
        if error is not None:
            error.__traceback__ = trace  # sync_to_async has added frames of its own


_close_old_connections = sync_to_async(close_old_connections)
"""In the thread in which Django makes the queries of async code."""

if not (apps.ready or apps.loading):  # in the process of a handler with `isolation="process"`
    django.setup()
