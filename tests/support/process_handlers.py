"""Handlers for tests of process isolation. Each does one thing that a handler may do."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from mainspring.core.context import RunContext
from mainspring.errors import Retry


def add(a: int, b: int) -> int:
    return a + b


def pid() -> int:
    return os.getpid()


def echo(value: Any) -> Any:
    return value


def payload(ctx: RunContext) -> Any:
    return ctx.payload


def fail() -> NoReturn:
    raise ValueError("boom")


def leave() -> NoReturn:
    sys.exit("enough")


def retry(after: float | str | None = None) -> NoReturn:
    raise Retry("busy", after=after)


def report(ctx: RunContext) -> None:
    ctx.log.warning("half of %d", 10)
    ctx.progress(5, 10, "halfway")


def report_and_die(ctx: RunContext) -> NoReturn:
    report(ctx)
    os._exit(3)


def report_error(ctx: RunContext) -> None:
    try:
        fail()
    except ValueError:
        ctx.log.exception("it went wrong")


def block(ctx: RunContext) -> None:
    """Say the pid as progress, so that a test knows it runs, and never come back."""
    ctx.progress(os.getpid())
    time.sleep(600)


async def block_async(ctx: RunContext, witness: str) -> None:
    try:
        ctx.progress(os.getpid())
        await asyncio.sleep(600)
    finally:
        _witness(ctx, witness)


def block_sync(ctx: RunContext, witness: str) -> None:
    """Not even `except Exception` in a loop keeps it from being unwound."""
    try:
        ctx.progress(os.getpid())
        while True:
            try:
                time.sleep(600)
            except Exception:
                continue
    finally:
        _witness(ctx, witness)


def _witness(ctx: RunContext, path: str) -> None:
    Path(path).write_text(f"cleaned up, cancelled={ctx.cancelled}")


def ignore_sigterm(ctx: RunContext) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    block(ctx)


def leave_grandchild() -> int:
    """An orphan by the end: the shell between has gone."""
    shell = subprocess.run(
        ["sh", "-c", "sleep 600 >/dev/null & echo $!"], stdout=subprocess.PIPE, check=True
    )
    return int(shell.stdout)


def hog(ctx: RunContext, mib: int) -> int:
    """Grow in small steps, as most leaks do."""
    kept = []
    for _ in range(mib):
        kept.append(bytearray(b"x" * 2**20))
        ctx.progress(len(kept), mib)
        time.sleep(0.001)
    return len(kept)


def gulp(mib: int) -> int:
    return len(bytearray(mib * 2**20))


def hog_in_children(mib: int) -> None:
    script = f"kept = bytearray(b'x' * {mib} * 2**20); input()"
    grown = [
        subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE) for _ in range(3)
    ]
    for one in grown:
        one.wait()


class Tools:
    @staticmethod
    def shout(text: str) -> str:
        return text.upper()

    def method(self) -> None: ...


def hoard_and_burn(size: int) -> None:
    kept = bytearray(size)
    ends = time.process_time() + 0.05
    while time.process_time() < ends:
        pass
    del kept
