"""A generator of API clients, fetched by package name into the tests' cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.servers.binaries import Archive, check_members, download, unpack
from tests.support.servers.cache import cache, locked

OPENAPI_GENERATOR = Archive(
    package="openapi-generator-cli==7.26.0",
    command=[
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--only-binary=:all:", "--dest"),
    ],
    integrity="sha256-5jBfu/kapBs7f82L8hJIgKsLueMu+tlbPf5x+TE9hWw=",
    members={
        "openapi_generator_cli/openapi-generator.jar": (
            "openapi-generator.jar",
            "sha256-F2AFAJSZe5zHkMwTUL4JXxXajAiplrGE0+rcTM2l414=",
        )
    },
)


def run(command: Sequence[str | Path], folder: Path, **environ: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command[0]}: {done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def program(name: str, what_for: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not on the PATH; it is needed for {what_for}")
    return found


def generator_jar() -> Path:
    home = cache() / "openapi-generator-7.26.0"
    with locked(home.with_suffix(".lock")):
        if not home.exists():
            with tempfile.TemporaryDirectory(dir=home.parent, prefix="fetching-") as made:
                unpacked = Path(made) / "unpacked"
                unpack(OPENAPI_GENERATOR, download(OPENAPI_GENERATOR, Path(made)), unpacked)
                check_members(unpacked, [OPENAPI_GENERATOR])
                unpacked.rename(home)
        check_members(home, [OPENAPI_GENERATOR])
    return home / "openapi-generator.jar"
