"""One mongod or mongos on a port of its own on loopback."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pymongo import MongoClient
from pymongo.errors import PyMongoError

from tests.support.servers.binaries import binaries
from tests.support.servers.processes import Process, end, spawn
from tests.support.servers.runs import current_run

Document = dict[str, Any]
Client = MongoClient[Document]
T = TypeVar("T")

TIMEOUT = 60.0
"""Seconds to wait for anything: far more than it takes, for machines that are busy."""
PORTS = range(20_000, 30_000)
"""Below the ports that systems give to outgoing connections, so that a server that is down for a
while finds its own port free when it comes back."""


class ServerFailed(Exception):
    """A server did not do what was asked of it in time. Carries the ends of the logs."""


class Server:
    """A process that is started, killed, frozen and started again, on the same port and data."""

    def __init__(
        self,
        place: Path,
        command: Sequence[str],
        *,
        key: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.place = place
        self.log = place / "log"
        self.port = free_port()
        self.frozen = False
        self._command = command
        self._key = key
        self._environment = environment or {}
        self._process: Process | None = None
        self._client: Client | None = None
        place.mkdir(parents=True)

    def __repr__(self) -> str:
        return f"<{self.place.name} at {self.address}>"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def process(self) -> Process:
        assert self._process is not None, f"{self} was never started"
        return self._process

    def alive(self) -> bool:
        return self._process is not None and self._process.alive()

    def answers(self) -> bool:
        """Whether it can: it lives and is not frozen."""
        return self.alive() and not self.frozen

    # Its life

    def launch(self) -> None:
        """Start the process, without waiting for it."""
        assert not self.alive(), f"{self} runs already"
        command = [*self._command, "--port", str(self.port), "--bind_ip", "127.0.0.1"]
        if self._key:
            command += ["--keyFile", str(self._key)]
        env = {**os.environ, **binaries().env, **self._environment}
        self._process = spawn([*command, "--nounixsocket"], env, self.log)
        current_run().record(self._process)
        self.frozen = False

    def wait_until_listening(self) -> None:
        def listening() -> bool:
            with socket.socket() as probe:
                probe.settimeout(1)
                return probe.connect_ex(("127.0.0.1", self.port)) == 0

        wait_for(f"{self} to listen", listening, [self])

    def kill(self) -> None:
        """`kill -9`: nothing is flushed, nobody is told."""
        if self._process is not None:
            end([self._process])
        self.frozen = False

    def freeze(self) -> None:
        """Stop its every thread: it keeps its connections and answers nothing."""
        self.process.signal(signal.SIGSTOP)
        self.frozen = True

    def resume(self) -> None:
        self.process.signal(signal.SIGCONT)
        self.frozen = False

    def discard(self) -> None:
        """The end: the process is gone and its data with it. The log stays."""
        self.kill()
        self.disconnect()
        shutil.rmtree(self.place / "db", ignore_errors=True)

    # Talking to it

    def credentials(self) -> Document:
        """Options of a client that acts as the cluster itself, which may do everything: it logs in
        with the cluster's key, if there is one, for a password."""
        if self._key is None:
            return {}
        return {"username": "__system", "password": self._key.read_text(), "authSource": "local"}

    def client(self) -> Client:
        """A client of this server alone, with every right. Closed with the server."""
        if self._client is None:
            self._client = MongoClient(
                "127.0.0.1",
                self.port,
                directConnection=True,
                connectTimeoutMS=5_000,
                serverSelectionTimeoutMS=5_000,
                serverMonitoringMode="poll",
                **self.credentials(),
            )
        return self._client

    def disconnect(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def command(self, command: str, value: Any = 1, **more: Any) -> Document:
        return self.client().admin.command(command, value, **more)


def free_port() -> int:
    for port in random.SystemRandom().sample(PORTS, 100):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise ServerFailed(f"no free port among a hundred of {PORTS.start} to {PORTS.stop}")


def wait_for(
    what: str,
    check: Callable[[], T | None],
    servers: Sequence[Server],
    timeout: float = TIMEOUT,
) -> T:
    """Ask until the answer is true, as long as those servers live that lived at first."""
    expected = [server for server in servers if server.alive()]
    deadline = time.monotonic() + timeout
    said = ""
    while time.monotonic() < deadline:
        try:
            if found := check():
                return found
        except PyMongoError as error:
            said = f" (it says: {error})"
        dead = [server for server in expected if not server.alive()]
        if dead:
            raise ServerFailed(f"waited for {what}, but {dead} ended\n{tail(*dead)}")
        time.sleep(0.05)
    raise ServerFailed(f"waited {timeout} s for {what}, in vain{said}\n{tail(*servers)}")


def tail(*servers: Server, lines: int = 15) -> str:
    """The ends of logs."""
    parts = []
    for server in servers:
        text = server.log.read_text(errors="replace") if server.log.exists() else ""
        last = [line[:400] for line in text.splitlines()[-lines:]]
        parts += [f"--- {server.log}", *last]
    return "\n".join(parts)
