"""Resources that a process of its own can open, and handlers that use them there. Each line in the
file that `MAINSPRING_TEST_RESOURCES` names says what was opened or closed."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from mainspring import RunContext


def note(line: str) -> None:
    with open(os.environ["MAINSPRING_TEST_RESOURCES"], "a") as file:
        file.write(f"{line} {os.getpid()}\n")


def open_pool() -> Iterator[str]:
    note("open pool")
    yield f"pool of {os.getpid()}"
    note("close pool")


async def open_client() -> AsyncIterator[str]:
    note("open client")
    yield f"client of {os.getpid()}"
    note("close client")


@contextmanager
def open_session(ctx: RunContext) -> Iterator[str]:
    note(f"open session {ctx.attempt}")
    try:
        yield f"session in {ctx.resources['pool']}"
    finally:
        note(f"close session {ctx.attempt}")


def open_cursor(ctx: RunContext) -> str:
    return f"cursor of {ctx.resources['session']}"


def open_row(ctx: RunContext) -> str:
    return f"row of {ctx.resources['cursor']}"


def read(ctx: RunContext, names: list[str]) -> list[str]:
    return [ctx.resources[name] for name in names]


async def read_async(ctx: RunContext, names: list[str]) -> list[str]:
    return [ctx.resources[name] for name in names]


def fail(ctx: RunContext) -> None:
    raise ValueError(ctx.resources["session"])


def fork(ctx: RunContext) -> int:
    if child := os.fork():
        os.waitpid(child, 0)
    return os.getpid()
