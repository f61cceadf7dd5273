"""Job ids, run ids and states that the shell offers to complete."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from mainspring.stores.protocol import Store

__all__ = ["job_ids", "run_ids", "states"]

TIMEOUT = 1.0
"""Seconds to wait for a store: a shell must not hang."""


def job_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    async def ask(store: Store) -> list[str]:
        from mainspring.stores.protocol import JobQuery

        page = await store.jobs(JobQuery(limit=1000))
        return [job.id for job in page.items]

    return _offered(ctx, incomplete, ask)


def run_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    async def ask(store: Store) -> list[str]:
        from mainspring.stores.protocol import RunQuery

        page = await store.find(RunQuery(brief=True, limit=100))
        return [run.id for run in page.items]

    return _offered(ctx, incomplete, ask)


def states(incomplete: str) -> list[str]:
    from mainspring.core.model import State

    return [state for state in State if state.startswith(incomplete)]


def _offered(
    ctx: typer.Context, incomplete: str, ask: Callable[[Store], Awaitable[list[str]]]
) -> list[str]:
    found: list[str] = []
    with contextlib.suppress(Exception):
        import asyncio

        found = asyncio.run(asyncio.wait_for(_asked(ctx, ask), TIMEOUT))
    return [item for item in found if item.startswith(incomplete)]


async def _asked(ctx: typer.Context, ask: Callable[[Store], Awaitable[list[str]]]) -> list[str]:
    from mainspring.cli.store_access import StoreChoice, existing_store, open_existing

    # `.env` is not read: it may name an app, and the Tab key must not run code of a strange folder.
    store = existing_store(StoreChoice.of(ctx.params.get("store"), ctx.params.get("app")))
    await open_existing(store)
    try:
        return await ask(store)
    finally:
        await store.close()
