"""Mainspring and its peers in one table, each in processes of its own at its best sensible
settings: enqueue one by one, drain, enqueue to start, lateness of 100 jobs each second, and what an
idle worker costs. The task notes the time at which it begins, and does nothing else.

Peers are installed in an environment of their own in `.cache`. Redis is the one on the PATH, or
else that of Debian, unpacked there; it keeps an append-only file, synced every second.
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

from bench.measure import folder, say

HERE = Path(__file__).parent
APPS = HERE / "peer_apps"
CACHE = HERE.parent / ".cache" / "mainspring-bench"
PACKAGES = (
    *("huey==3.5.4", "apscheduler==3.11.3", "sqlalchemy", "celery==5.7.0", "packaging"),
    *("redis==8.1.0", "dramatiq==2.2.1", "taskiq==0.13.0", "taskiq-redis==1.2.4", "rq==2.12.0"),
)
ON_REDIS = ("celery", "dramatiq", "taskiq", "rq")
PEERS = ("mainspring", "huey", "apscheduler3", *ON_REDIS)
DRIVEN = {"RUNS": 3000, "SAMPLES": 100, "IDLE": 5, "TICKS": 100, "TICK_SECONDS": 8}
"""How much each of them does."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", choices=PEERS, action="append", help="repeatable")


def run(options: argparse.Namespace) -> dict[str, Any]:
    wanted = options.only or PEERS
    with folder() as path, contextlib.ExitStack() as stack:
        redis = None
        if any(peer in ON_REDIS for peer in wanted):
            redis = stack.enter_context(redis_server(path))
        return {peer: drive(peer, path, redis) for peer in wanted}


def drive(peer: str, path: Path, redis: str | None) -> dict[str, Any]:
    say(f"peers: {peer}")
    python = sys.executable if peer == "mainspring" else str(environment() / "bin" / "python")
    told = {
        **os.environ,
        "PYTHONPATH": str(APPS),
        "BENCH_NOTES": str(path / f"{peer}.notes"),
        "BENCH_FILE": str(path / f"{peer}.db"),
        "BENCH_REDIS": redis or "",
        **{f"BENCH_{name}": str(value) for name, value in DRIVEN.items()},
    }
    command = [python, str(APPS / "drive.py"), f"{peer}_app"]
    done = subprocess.run(
        command, cwd=APPS, env=told, capture_output=True, text=True, timeout=200, check=False
    )
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1:]}
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def environment() -> Path:
    """The virtual environment of the peers, made at the first use."""
    place = CACHE / "peers"
    done = place / "packages"
    wanted = "\n".join(PACKAGES)
    if not done.exists() or done.read_text() != wanted:
        say("peers: installing them, once")
        subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True)
        pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        subprocess.run(
            [*pip, "--disable-pip-version-check", *PACKAGES], check=True, stderr=subprocess.DEVNULL
        )
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
