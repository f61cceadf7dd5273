"""Azurite: Microsoft's emulator of Azure's blob storage, which obeys conditions. npm fetches it.

It has 370 packages and takes a minute to fetch, so only `make chaos` uses it.
"""

from __future__ import annotations

import base64
import functools
import hmac
import http.client
import os
import shutil
import subprocess
import time
from email.utils import formatdate
from pathlib import Path
from typing import Self

from tests.support.servers.cache import ServerUnavailable, cache, locked
from tests.support.servers.processes import Process, end, spawn
from tests.support.servers.runs import current_run
from tests.support.servers.server import TIMEOUT, ServerFailed, free_port
from tests.support.startable import Startable

__all__ = ["CONTAINER", "Azurite", "environment"]

VERSION = "3.37.0"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The one account that each Azurite has. Its key is public."""
CONTAINER = "mainspring-tests"


def environment() -> dict[str, str]:
    """The environment variables by which a client logs in."""
    return {"AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": KEY}


@functools.cache
def program() -> Path:
    """The script that node runs, fetched if need be."""
    home = cache() / f"azurite-{VERSION}"
    with locked(home.parent / f"{home.name}.lock"):
        if not home.exists():
            if shutil.which("npm") is None or shutil.which("node") is None:
                raise ServerUnavailable("npm and node are missing; they fetch and run Azurite")
            made = home.with_name(f"{home.name}.new")
            shutil.rmtree(made, ignore_errors=True)
            made.mkdir(parents=True)
            quiet = ("--silent", "--no-audit", "--no-fund", "--ignore-scripts")
            command = ["npm", "install", "--prefix", str(made), *quiet, f"azurite@{VERSION}"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise ServerUnavailable(f"Azurite could not be fetched: {done.stderr[-1000:]}")
            made.rename(home)
    return home / "node_modules/azurite/dist/src/blob/main.js"


class Azurite(Startable):
    """The blob service alone, with its objects in memory."""

    def __init__(self) -> None:
        self.place = current_run().folder("azurite")
        self.port = free_port()
        self._process: Process | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}/{ACCOUNT}"

    def url(self, prefix: str) -> str:
        """The URL of a store."""
        return f"az://{CONTAINER}/{prefix}?account={ACCOUNT}&endpoint={self.endpoint}"

    def start(self) -> Self:
        log = self.place / "log"
        command = [
            "node",
            str(program()),
            "--silent",
            "--disableTelemetry",
            "--skipApiVersionCheck",
        ]
        command += ["--inMemoryPersistence", "--blobHost", "127.0.0.1"]
        self._process = spawn([*command, "--blobPort", str(self.port)], os.environ, log)
        current_run().record(self._process)
        deadline = time.monotonic() + TIMEOUT
        while True:
            try:
                make_container(self.port)
                return self
            except (OSError, http.client.HTTPException) as error:
                if time.monotonic() > deadline or not self._process.alive():
                    said = log.read_text(errors="replace")[-2000:]
                    raise ServerFailed(f"Azurite did not start ({error})\n{said}") from None
            time.sleep(0.05)

    def stop(self) -> None:
        if self._process is not None:
            end([self._process])
            self._process = None


def make_container(port: int) -> None:
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    text = "PUT" + "\n" * 12 + f"{lines}/{ACCOUNT}/{ACCOUNT}/{CONTAINER}\nrestype:container"
    signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), text.encode(), "sha256"))
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{signature.decode()}"
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("PUT", f"/{ACCOUNT}/{CONTAINER}?restype=container", b"", headers)
        answer = connection.getresponse()
        answer.read()
        if answer.status not in (201, 409):  # it is there already
            raise ServerFailed(f"the container was not made: {answer.status}")
    finally:
        connection.close()
