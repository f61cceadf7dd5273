"""A TCP proxy to a server that can be cut, go silent or half-close."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from enum import StrEnum
from types import TracebackType
from typing import Self

__all__ = ["Line", "Proxy"]


class Line(StrEnum):
    WELL = "well"
    CUT = "cut"
    """What is open is reset, and so is what comes."""
    SILENT = "silent"
    """Nothing comes through in either direction; nobody is told."""
    HALF_OPEN = "half open"
    """Requests arrive; answers do not."""


class Proxy:
    """Between clients and one server, on the loop that entered it.

    What a silent line held back arrives when it is well again, however late.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._line = Line.WELL
        self._changed = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._reset()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def turn(self, line: Line) -> None:
        self._line = line
        if line is Line.CUT:
            self._reset()
        self._changed.set()
        self._changed = asyncio.Event()

    def _reset(self) -> None:
        for writer in self._writers:
            if (sock := writer.get_extra_info("socket")) is not None:
                with suppress(OSError):
                    linger = struct.pack("ii", 1, 0)
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
        self._writers.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        if self._line is Line.CUT:
            self._reset()
            return
        try:
            answers, server = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers.add(server)
        for source, target, answer in ((reader, server, False), (answers, writer, True)):
            task = asyncio.create_task(self._pass_on(source, target, answer=answer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, answer: bool
    ) -> None:
        with suppress(OSError):
            while piece := await source.read(65536):
                while self._line is Line.SILENT or (answer and self._line is Line.HALF_OPEN):
                    await self._changed.wait()
                target.write(piece)
                await target.drain()
        target.close()
