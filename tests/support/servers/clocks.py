"""Gives a process a wrong wall clock: the environment variables that do it."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from tests.support.servers.cache import ServerUnavailable, cache, locked

__all__ = ["SteppedClock", "program_clock", "server_clock"]

SOURCE = Path(__file__).with_name("skew.c")


def program_clock(offset: int) -> dict[str, str]:
    """For Python: its wall clock is so many seconds off; its monotonic clock is right."""
    return {**_faked(), "FAKETIME": f"{offset:+d}"}


class SteppedClock:
    """For Python: a wall clock that is right until it is stepped."""

    def __init__(self, place: Path) -> None:
        self._file = place / "clock"
        self.step(0)

    @property
    def environment(self) -> dict[str, str]:
        return {**_faked(), "FAKETIME_TIMESTAMP_FILE": str(self._file), "FAKETIME_NO_CACHE": "1"}

    def step(self, offset: int) -> None:
        self._file.write_text(f"{offset:+d}\n")


def server_clock(offset: int) -> Mapping[str, str]:
    """For mongos: its wall clock is so many seconds off. Needs a C compiler (see skew.c)."""
    return {"LD_PRELOAD": str(_skew_library()), "CLOCK_OFFSET": str(offset)}


def _faked() -> dict[str, str]:
    found = find_spec("libfaketime")
    assert found is not None, "libfaketime is missing: `make setup` installs it"
    assert found.origin is not None
    library = Path(found.origin).parent / "vendor" / "libfaketime" / "src" / "libfaketime.so.1"
    return {"LD_PRELOAD": str(library), "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


@functools.cache
def _skew_library() -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise ServerUnavailable("a mongos with another clock needs a C compiler (cc) on the PATH")
    library = cache() / "skew.so"
    with locked(cache() / "skew.lock"):
        if not library.exists() or library.stat().st_mtime < SOURCE.stat().st_mtime:
            subprocess.run(
                [compiler, "-shared", "-fPIC", "-O2", "-o", library, SOURCE, "-ldl"], check=True
            )
    return library
