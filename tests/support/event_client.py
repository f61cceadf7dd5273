"""A client of the event stream that speaks ASGI and takes messages when the test lets it."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support.service import LONG, Api


class EventClient:
    """A client of `/api/v1/events` that takes messages, or does not."""

    def __init__(self, api: Api, query: str = "", key: str | None = None, cookie: str = "") -> None:
        self.messages: list[Any] = []
        self.taking = asyncio.Event()
        self.taking.set()
        self.gone = asyncio.Event()
        self._asked = False
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/api/v1/events",
            "raw_path": b"/api/v1/events",
            "query_string": query.encode(),
            "headers": [
                (b"host", b"127.0.0.1"),
                *([] if key is None else [(b"x-api-key", key.encode())]),
                *([(b"cookie", cookie.encode())] if cookie else []),
            ],
            "http_version": "1.1",
            "scheme": "http",
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 3000),
        }
        self.task = asyncio.ensure_future(api.app(scope, self._receive, self._send))

    async def _receive(self) -> Any:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await self.taking.wait()
        self.messages.append(message)

    async def begun(self) -> None:
        async with asyncio.timeout(LONG):
            while len(self.messages) < 2:
                await asyncio.sleep(0)

    @classmethod
    async def begin(cls, api: Api, *options: Any, **more: Any) -> EventClient:
        client = cls(api, *options, **more)
        await client.begun()
        return client

    async def leave(self) -> None:
        self.gone.set()
        await self.task
