"""Drives a page in Chromium by the DevTools protocol: its text, its requests, its console
errors."""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.browser.chromium import chromium

__all__ = ["Page", "opened"]

LONG = 60.0
FLAGS = (
    "--headless",
    "--no-sandbox",  # in a container, as root, there is none to be had
    "--no-zygote",
    "--no-first-run",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--remote-debugging-port=0",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # as in a closed network
)


class Page:
    """`asked`: the addresses it wanted; `complaints`: errors, and what a policy forbade."""

    def __init__(self, line: aiohttp.ClientWebSocketResponse) -> None:
        self.asked: list[str] = []
        self.complaints: list[str] = []
        self._line = line
        self._numbers = itertools.count(1)
        self._awaited: dict[int, asyncio.Future[Any]] = {}
        self._loaded = asyncio.Event()

    async def go(self, url: str) -> None:
        self._loaded.clear()
        await self.call("Page.navigate", url=url)
        async with asyncio.timeout(LONG):
            await self._loaded.wait()

    async def value(self, script: str) -> Any:
        """What an expression gives, as JSON; a promise is waited for."""
        found = await self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def until(self, script: str) -> Any:
        async with asyncio.timeout(LONG):
            while not (found := await self.value(script)):
                await asyncio.sleep(0.02)
        return found

    async def call(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        answer = self._awaited[number] = asyncio.get_running_loop().create_future()
        await self._line.send_json({"id": number, "method": method, "params": parameters})
        async with asyncio.timeout(LONG):
            return await answer

    async def listen(self) -> None:
        async for message in self._line:
            told = message.json()
            if "id" not in told:
                self._on_event(told["method"], told["params"])
                continue
            answer = self._awaited.pop(told["id"])
            if "error" in told:
                answer.set_exception(RuntimeError(told["error"]["message"]))
            else:
                answer.set_result(told["result"])

    def _on_event(self, event: str, told: dict[str, Any]) -> None:
        match event:
            case "Page.loadEventFired":
                self._loaded.set()
            case "Network.requestWillBeSent":
                self.asked.append(told["request"]["url"])
            case "Log.entryAdded":
                entry = told["entry"]
                if not entry.get("url", "").endswith("/favicon.ico"):  # some ask by themselves
                    self.complaints.append(entry["text"])
            case "Runtime.exceptionThrown":
                self.complaints.append(str(told["exceptionDetails"]))


@asynccontextmanager
async def opened() -> AsyncIterator[Page]:
    """A browser of its own, with one empty page."""
    browser = chromium()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        said = Path(profile) / "said"
        with said.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *(browser.program, *FLAGS, f"--user-data-dir={profile}", "about:blank"),
                stdout=output,
                stderr=output,
                env={**os.environ, **browser.env},
            )
        try:
            port = await _port(process, Path(profile) / "DevToolsActivePort", said)
            async with (
                aiohttp.ClientSession() as client,
                client.ws_connect(await _address(client, port), max_msg_size=0) as line,
            ):
                page = Page(line)
                listening = asyncio.ensure_future(page.listen())
                for domain in ("Page", "Runtime", "Network", "Log"):
                    await page.call(f"{domain}.enable")
                yield page
                listening.cancel()
        finally:
            process.kill()
            await process.wait()


async def _port(process: asyncio.subprocess.Process, told: Path, said: Path) -> int:
    async with asyncio.timeout(LONG):
        while not (lines := _read(told).split()):
            assert process.returncode is None, f"the browser ended: {_read(said)[-2000:]}"
            await asyncio.sleep(0.02)
    return int(lines[0])


def _read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


async def _address(client: aiohttp.ClientSession, port: int) -> str:
    async with client.get(f"http://127.0.0.1:{port}/json/list") as answer:
        [page] = [one for one in await answer.json() if one["type"] == "page"]
    return str(page["webSocketDebuggerUrl"])
