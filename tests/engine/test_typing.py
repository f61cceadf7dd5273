"""`.enqueue` is checked by type, and the decorated function keeps its own."""

from __future__ import annotations

from pathlib import Path

import pytest

SNIPPET = """
from mainspring import Run, RunContext, Scheduler

scheduler = Scheduler("memory://")


@scheduler.job(retries=3)
async def send(ctx: RunContext, to: str, copies: int = 1) -> int:
    return copies


@scheduler.job()
def plain(path: str) -> bytes:
    return path.encode()


async def right(ctx: RunContext) -> None:
    run: Run = await send.enqueue(to="a", copies=2)
    run = await send.enqueue("a")
    run = await send.options(delay="5m", dedupe_key="k").enqueue(to="a")
    run = send.blocking.enqueue(to="a")
    runs: list[Run] = await send.enqueue_many([{"to": "a"}])
    copies: int = await send(ctx, to="a")
    data: bytes = plain("x")
    run = await plain.enqueue(path="x")


async def wrong(ctx: RunContext) -> None:
    await send.enqueue()  # missing
    await send.enqueue(to=5)  # type
    await send.enqueue(to="a", subject="b")  # unknown
    await send.options(delay="5m").enqueue(copies="x", to="a")  # type
    send.blocking.enqueue(to=None)  # type
    await send(to="a")  # no context
    number: str = await send(ctx, to="a")  # result
    plain(5)  # type
    await plain.enqueue(path=b"x")  # type
"""


def test_enqueue_is_checked_by_type(tmp_path: Path) -> None:
    api = pytest.importorskip("mypy.api")
    file = tmp_path / "snippet.py"
    file.write_text(SNIPPET)
    out, err, _ = api.run(
        ["--strict", "--no-error-summary", f"--cache-dir={tmp_path}/cache", str(file)]
    )
    lines = SNIPPET.splitlines()
    found = {int(line.split(":")[1]) for line in out.splitlines() if ": error:" in line}
    wanted = {at for at, line in enumerate(lines, 1) if "  # " in line}
    assert found == wanted, out + err
