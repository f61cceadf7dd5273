"""Plain sockets to a service, for clients that are slow, silent or wrong."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from tests.support.service import LONG, ServiceProcess


@contextmanager
def connected(served: ServiceProcess) -> Iterator[socket.socket]:
    parts = urlsplit(served.url)
    assert parts.hostname is not None
    with socket.create_connection((parts.hostname, parts.port or 80), timeout=LONG) as made:
        yield made


def read_to(one: socket.socket, mark: bytes, times: int = 1) -> None:
    """Read until the mark has come so many times."""
    text = b""
    while text.count(mark) < times:
        more = one.recv(65536)
        assert more, f"it was closed after {text!r}"
        text += more
