"""Tests use only fetched programs whose hash is the pinned one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.servers.cache import ServerUnavailable, integrity, verify


@pytest.mark.parametrize("algorithm", ["sha256", "sha512"])
def test_a_file_with_another_hash_is_refused(tmp_path: Path, algorithm: str) -> None:
    file = tmp_path / "program"
    file.write_bytes(b"as it was pinned")
    pinned = integrity(file, algorithm)
    verify(file, pinned)
    file.write_bytes(b"changed")
    with pytest.raises(ServerUnavailable, match="not the file that was pinned"):
        verify(file, pinned)
