"""Handlers that run in child processes. A child imports them by the name of this module."""

from __future__ import annotations

import asyncio
import ctypes
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mainspring import GiveUp, Retry, RunContext, Scheduler
from mainspring.errors import Snooze


def register(scheduler: Scheduler, **policy: Any) -> None:
    """Make every function below a job of this scheduler, in a process of its own."""
    quick = (add, add_later, die, segfault, retry, give_up, odd, transact)
    for function in (*quick, hang, parent, hog):
        scheduler.job(isolation="process", **policy)(function)


TENANT = ContextVar("TENANT", default="nobody")


def add(a: int, b: int) -> int:
    return a + b


def change_tenant(to: str) -> str:
    """Set the context variable; return what it was."""
    seen = TENANT.get()
    TENANT.set(to)
    return seen


async def change_tenant_later(to: str) -> str:
    await asyncio.sleep(0)
    return change_tenant(to)


async def add_later(ctx: RunContext, a: int, b: int) -> list[Any]:
    ctx.log.info("adding")
    ctx.progress(1, 2, "half")
    await asyncio.sleep(0)
    return [a + b, ctx.run_id, ctx.attempt, os.getpid(), ctx.started_at.isoformat()]


def die() -> None:
    os._exit(7)


def segfault() -> None:
    ctypes.string_at(0)


def hang(ctx: RunContext, witness: str) -> None:
    try:
        Path(witness).write_text("began")
        time.sleep(600)
    finally:
        Path(witness).write_text("unwound")


def parent(witness: str) -> None:
    with subprocess.Popen(["sleep", "600"]) as child:
        Path(witness + ".new").write_text(str(child.pid))
        os.rename(witness + ".new", witness)
        child.wait()


def hog() -> int:
    kept = []
    for _ in range(2_000):
        kept.append(bytearray(b"x" * 2**20))
    return len(kept)


def retry(ctx: RunContext) -> int:
    if ctx.attempt == 1:
        raise Retry("once more", after="1ms")
    return ctx.attempt


def transact(ctx: RunContext) -> None:
    with ctx.transaction():
        pass


def give_up() -> None:
    raise GiveUp("hopeless")


def odd() -> Any:
    return object()


scheduler = Scheduler("memory://")


@scheduler.job(isolation="process")
def decorated(a: int) -> int:
    """Under its decorator: the child must find the function inside."""
    return -a


def detailed(ctx: RunContext) -> None:
    ctx.detail = {"at": datetime(2030, 1, 1, tzinfo=UTC)}


def snoozing(ctx: RunContext) -> bool:
    global _snoozed
    if not _snoozed:
        _snoozed = True  # the pool keeps one warm child, which runs it again
        raise Snooze("not now", after=0.1)
    return _snoozed


_snoozed = False


@contextmanager
def as_tenant(ctx: RunContext) -> Iterator[None]:
    """Set the tenant to the run's job; log how the handler ended."""
    TENANT.set(ctx.job_id)
    try:
        yield
    except BaseException as error:
        ctx.log.info("%r after %s", error, ctx.resources["name"])
        raise
    ctx.log.info("fine")


def fail_as_tenant() -> None:
    raise ValueError(TENANT.get())


def tenant() -> str:
    return TENANT.get()


async def tenant_later() -> str:
    await asyncio.sleep(0)
    return TENANT.get()
