"""Profiles of AWS, as botocore reads them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from mainspring.errors import StoreError
from mainspring.stores.objects.obstore_bucket import find_profile, keys_of_profile
from mainspring.stores.objects.store import make_bucket
from tests.support.servers.seaweedfs import WRITER


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)


def test_without_files_there_is_no_profile() -> None:
    assert find_profile(None) is None


def test_a_profile_that_is_named_must_exist(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("[profile work]\nregion = eu-west-1\n")
    with pytest.raises(StoreError, match=r"profile \(home\) could not be found"):
        find_profile("home")


def test_both_files_make_one_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config").write_text("[profile work]\nregion = eu-west-1\n[default]\nregion = x\n")
    (tmp_path / "credentials").write_text(
        "[work]\naws_access_key_id = id\naws_secret_access_key = secret\naws_session_token = t\n"
    )
    monkeypatch.setenv("AWS_PROFILE", "work")
    session = find_profile(None)
    assert session is not None
    assert session.get_scoped_config()["region"] == "eu-west-1"
    keys = keys_of_profile(session)
    assert keys is not None
    assert keys() == {
        "access_key_id": "id",
        "secret_access_key": "secret",
        "token": "t",
        "expires_at": None,
    }


def test_a_profile_may_print_its_keys_by_a_command(tmp_path: Path) -> None:
    printed = {
        "Version": 1,
        "AccessKeyId": "id",
        "SecretAccessKey": "secret",
        "SessionToken": "t",
        "Expiration": "2099-01-01T00:00:00Z",
    }
    (tmp_path / "keys.json").write_text(json.dumps(printed))
    command = f"{sys.executable} -c \"print(open('{tmp_path}/keys.json').read())\""
    (tmp_path / "config").write_text(f"[default]\ncredential_process = {command}\n")
    session = find_profile(None)
    assert session is not None
    keys = keys_of_profile(session)
    assert keys is not None
    given = keys()
    assert given["secret_access_key"] == "secret"
    assert given["expires_at"] is not None
    assert given["expires_at"].utcoffset() is not None


def test_a_command_that_fails_is_reported(tmp_path: Path) -> None:
    command = f"{sys.executable} -c \"raise SystemExit('no login')\""
    (tmp_path / "config").write_text(f"[default]\ncredential_process = {command}\n")
    session = find_profile(None)
    assert session is not None
    with pytest.raises(StoreError, match=r"AWS profile cannot be used(?s:.*)no login"):
        keys_of_profile(session)


def test_a_profile_needs_botocore_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("botocore", "botocore.session"):
        monkeypatch.setitem(sys.modules, name, None)
    assert find_profile(None) is None
    with pytest.raises(StoreError, match="pip install botocore"):
        find_profile("work")


async def test_a_store_opens_by_a_profile_alone(tmp_path: Path, seaweedfs_url: str) -> None:
    (tmp_path / "credentials").write_text(
        f"[tests]\naws_access_key_id = {WRITER.name}\naws_secret_access_key = {WRITER.secret}\n"
    )
    (tmp_path / "config").write_text(
        f"[profile tests]\nregion = us-east-1\nendpoint_url = {seaweedfs_url}\n"
    )
    bucket = make_bucket(f"s3://mainspring-tests/{tmp_path.name}?profile=tests")
    await bucket.open()
    assert await bucket.put("a", b"1", expected_etag=None) is not None
    await bucket.close()
