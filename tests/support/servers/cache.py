"""The folder for what tests fetch and start, with its locks and hashes."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[3]


class ServerUnavailable(Exception):
    """A server that tests need cannot be had here. Says what to do about it."""


def cache() -> Path:
    """`$MAINSPRING_TEST_CACHE`, or `.cache/mainspring-tests` in the checkout."""
    named = os.environ.get("MAINSPRING_TEST_CACHE")
    path = Path(named).expanduser() if named else CHECKOUT / ".cache" / "mainspring-tests"
    path.mkdir(parents=True, exist_ok=True)
    return path.resolve()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a file's lock. The kernel lets go of it when the holder dies, however it dies."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file at once: a reader sees the old content or the new."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as file:
        file.write(content)
    Path(file.name).replace(path)


def integrity(path: Path, algorithm: str) -> str:
    """A file's hash as package registries write it: `sha512-` and base64."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, algorithm).digest()
    return f"{algorithm}-{base64.b64encode(digest).decode()}"


def verify(path: Path, expected: str) -> None:
    algorithm = expected.partition("-")[0]
    found = integrity(path, algorithm)
    if found != expected:
        raise ServerUnavailable(
            f"{path} is not the file that was pinned.\n  expected {expected}\n  found    {found}\n"
            "It is not used. If it is damaged, delete its folder and run again; if it was fetched "
            "just now, ask who changed the package."
        )
