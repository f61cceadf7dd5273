"""Mainspring and its peers in one table, each in processes of its own at its best sensible
settings: enqueue one by one, drain, enqueue to start, lateness of 100 jobs each second, and what an
idle worker costs. The task notes the time at which it begins, and does nothing else. Those on
MongoDB share one mongod, a replica set of one, and those on PostgreSQL one server, with a database
for each.

Peers are installed in an environment of their own in `.cache`. Redis is the one on the PATH, or
else that of Debian, unpacked there; it keeps an append-only file, synced every second. (Oban for
Python is not here: it needs Python 3.12.)
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from bench.measure import folder, say
from tests.support.servers.mongodb import ReplicaSet, with_database
from tests.support.servers.postgresql import Postgres

HERE = Path(__file__).parent
APPS = HERE / "peer_apps"
CACHE = HERE.parent / ".cache" / "mainspring-bench"
PACKAGES = {
    "peers": (
        *("huey==3.5.4", "apscheduler==3.11.3", "sqlalchemy", "celery==5.7.0", "packaging"),
        *("redis==8.1.0", "dramatiq==2.2.1", "taskiq==0.13.0", "taskiq-redis==1.2.4"),
        "rq==2.12.0",
    ),
    "apscheduler4": ("apscheduler==4.0.0a6", "sqlalchemy[asyncio]", "aiosqlite", "sniffio"),
    "postgresql": (
        *("procrastinate==3.10.0", "pgqueuer==1.6.0", "asyncpg==0.32.0"),
        "psycopg[binary,pool]==3.3.9",
    ),
}
"""The environments of the peers."""
PEERS = {
    "sqlite": ("mainspring", "huey", "apscheduler3", "apscheduler4"),
    "redis": ("celery", "dramatiq", "taskiq", "rq"),
    "mongodb": ("mainspring-mongodb", "mongo-job-scheduler", "agenda"),
    "postgresql": (
        *("mainspring-postgresql", "procrastinate", "pgqueuer", "graphile-worker", "pg-boss"),
    ),
}
"""The peers by where they keep their tasks."""
ENVIRONMENTS = {
    "apscheduler4": "apscheduler4",
    "procrastinate": "postgresql",
    "pgqueuer": "postgresql",
}
"""Those that are not in the environment `peers`."""
ON_NPM = ("mongo-job-scheduler", "agenda", "graphile-worker", "pg-boss")
SECONDS = 110
"""How long one of them may take."""
DRIVEN = {"RUNS": 2000, "SAMPLES": 100, "IDLE": 4, "TICKS": 100, "TICK_SECONDS": 6}
"""How much each of them does."""


def add_options(parser: argparse.ArgumentParser) -> None:
    names = [name for group in PEERS.values() for name in group]
    parser.add_argument("--on", choices=PEERS, help="only those that keep their tasks there")
    parser.add_argument("--only", choices=names, action="append", help="repeatable")
    parser.add_argument("--seconds", type=int, default=3600, help="begin with no peer after that")


def run(options: argparse.Namespace) -> dict[str, Any]:
    ends = time.monotonic() + options.seconds
    figures: dict[str, Any] = {}
    with folder() as path:
        for place in [options.on] if options.on else PEERS:
            wanted = [p for p in PEERS[place] if p in (options.only or PEERS[place])]
            if not wanted:
                continue
            with contextlib.ExitStack() as stack:
                server = _server(place, path, stack)
                for peer in wanted:
                    late = time.monotonic() > ends
                    figures[peer] = (
                        {"failed": "no time was left"} if late else drive(peer, place, path, server)
                    )
    return figures


def _server(place: str, path: Path, stack: contextlib.ExitStack) -> str:
    if place == "redis":
        return stack.enter_context(redis_server(path))
    if place == "mongodb":
        return stack.enter_context(ReplicaSet(1, election_timeout=10)).url
    return stack.enter_context(Postgres()).url if place == "postgresql" else ""


def drive(peer: str, place: str, path: Path, server: str) -> dict[str, Any]:
    """The figures of one peer, or why there are none: the others are still measured."""
    say(f"peers: {peer}")
    try:
        command, told = _command(peer, place, path, server)
        output = _output_of(command, told)
    except (subprocess.SubprocessError, OSError) as error:
        say(f"peers: {peer} failed: {error}")
        return {"failed": str(error)[-300:]}
    figures: dict[str, Any] = json.loads(output.splitlines()[-1])
    return figures


def _command(peer: str, place: str, path: Path, server: str) -> tuple[list[str], dict[str, str]]:
    app, python = f"{peer}_app", sys.executable
    told = {
        **os.environ,
        "PYTHONPATH": str(APPS),
        "BENCH_PEER": peer,
        "BENCH_NOTES": str(path / f"{peer}.notes"),
        "BENCH_FILE": str(path / f"{peer}.db"),
        "BENCH_STORE": _store(peer, place, path, server),
        **{f"BENCH_{name}": str(value) for name, value in DRIVEN.items()},
    }
    if peer.startswith("mainspring"):
        app = "mainspring_app"
    elif peer in ON_NPM:
        app, told["BENCH_NPM"] = "npm_app", str(fetch_npm_peers())
    else:
        python = str(environment(ENVIRONMENTS.get(peer, "peers")) / "bin" / "python")
    return [python, str(APPS / "drive.py"), app], told


def _store(peer: str, place: str, path: Path, server: str) -> str:
    name = f"bench_{peer.replace('-', '_')}"
    if place == "mongodb":
        return with_database(server, name)
    if place == "postgresql":
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return f"{server.rpartition('/')[0]}/{name}"
    return server or f"sqlite:///{path / peer}.db"


def _output_of(command: list[str], told: dict[str, str]) -> str:
    """What the program prints. It has a worker of its own, so it is asked to end and not killed."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=APPS, env=told, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as process:
        try:
            output, errors = process.communicate(timeout=SECONDS)
        except BaseException:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=20)
            process.kill()
            raise
    if process.returncode:
        raise subprocess.SubprocessError(errors.strip().rpartition("\n")[2] or "it printed nothing")
    return output


def environment(name: str) -> Path:
    """A virtual environment of peers, made at the first use."""
    place = CACHE / name
    done = place / "packages"
    wanted = "\n".join(PACKAGES[name])
    if not done.exists() or done.read_text() != wanted:
        say(f"peers: installing {name}, once")
        subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True)
        pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        subprocess.run(
            [*pip, "--disable-pip-version-check", *PACKAGES[name]],
            check=True,
            stderr=subprocess.DEVNULL,
        )
        done.write_text(wanted)
    return place


def fetch_npm_peers() -> Path:
    """A folder with the npm peers and the script that drives them."""
    place = CACHE / "npm"
    place.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "npm_peer.mjs"):
        shutil.copy(APPS / name, place / name)
    wanted = (APPS / "package.json").read_text()
    done = place / "fetched.json"
    if not done.exists() or done.read_text() != wanted:
        say("peers: installing those of npm, once")
        command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"]
        subprocess.run(command, cwd=place, check=True, stdout=subprocess.DEVNULL)
        done.write_text(wanted)
    return place


@contextlib.contextmanager
def redis_server(path: Path) -> Iterator[str]:
    program, told = find_redis()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(path)]
    command += ["--appendonly", "yes", "--appendfsync", "everysec", "--save", ""]
    process = subprocess.Popen(command, env=told, stdout=subprocess.DEVNULL)
    try:
        for _ in range(200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.terminate()
        process.wait()


def find_redis() -> tuple[str, dict[str, str]]:
    """The program, and its environment."""
    on_path = shutil.which("redis-server")
    if on_path:
        return on_path, dict(os.environ)
    place = CACHE / "redis"
    program = place / "usr" / "bin" / "redis-server"
    if not program.exists():
        say("peers: fetching Redis from Debian, once")
        place.mkdir(parents=True, exist_ok=True)
        packages = ["redis-server", "redis-tools", "liblzf1", "libjemalloc2", "libatomic1"]
        subprocess.run(["apt-get", "download", "-qq", *packages], cwd=place, check=True)
        for package in place.glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, place], check=True)
    library = next(place.rglob("libjemalloc.so.2")).parent
    return str(program), {**os.environ, "LD_LIBRARY_PATH": str(library)}
