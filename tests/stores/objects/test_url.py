"""URLs of buckets: schemes, options, and secrets, which are never shown."""

from __future__ import annotations

import builtins
import sys
from typing import Any

import pytest

from mainspring import Scheduler
from mainspring.errors import InvalidInput, UnknownOption
from mainspring.stores import open_store
from mainspring.stores.objects.url import Address


def test_a_url_has_a_bucket_a_prefix_and_options() -> None:
    url = "s3://my-bucket/apps/jobs/?endpoint=http://127.0.0.1:9000/&path_style=false&region=eu-west-1"
    address = Address.of(f"{url}&profile=work&timeout=2.5")
    assert address == Address(
        scheme="s3",
        bucket="my-bucket",
        prefix="apps/jobs",
        endpoint="http://127.0.0.1:9000",
        region="eu-west-1",
        profile="work",
        path_style=False,
        timeout=2.5,
    )
    assert address.location == "s3://my-bucket/apps/jobs?endpoint=http://127.0.0.1:9000"


@pytest.mark.parametrize(
    ("url", "bucket", "prefix"),
    [
        ("s3://my.bucket", "my.bucket", ""),
        ("gs://bucket/", "bucket", ""),
        ("az://container/a/b?account=name", "container", "a/b"),
        ("file:///var/lib/my%20jobs", "/var/lib/my jobs", ""),
    ],
)
def test_each_scheme_is_read(url: str, bucket: str, prefix: str) -> None:
    address = Address.of(url)
    assert (address.bucket, address.prefix) == (bucket, prefix)
    assert Address.of(address.location) == address


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://ab/x", "at least 3"),
        ("s3:///x", "at least 3"),
        ("s3://bucket/a//b", "between slashes"),
        ("s3://bucket/../b", "between slashes"),
        ("s3://bucket/a%20b", "between slashes"),
        ("s3://bucket?endpoint=localhost:9000", "endpoint is an address such as"),
        ("s3://bucket?path_style=maybe", "path_style is true or false, not 'maybe'"),
        ("s3://bucket?timeout=0", "between 0.1 and 300 seconds"),
        ("s3://bucket?timeout=soon", "timeout"),
        ("file://jobs", "write file:///absolute/directory"),
        ("S3://bucket/jobs", "did you mean s3://"),
        ("gcs://bucket/jobs", "did you mean gs://"),
        ("file:///", "write file:///absolute/directory"),
    ],
)
def test_what_cannot_be_read_is_told(url: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        open_store(url)


def test_an_unknown_option_is_told_with_the_one_that_was_meant() -> None:
    with pytest.raises(UnknownOption, match="did you mean 'region'"):
        open_store("s3://bucket?regoin=eu-west-1")
    with pytest.raises(UnknownOption, match="; s3 options are endpoint"):
        open_store("s3://bucket?regoin=eu-west-1")
    with pytest.raises(InvalidInput, match="leave out 'endpoint'"):
        open_store("file:///tmp/jobs?endpoint=http://x")


@pytest.mark.parametrize(
    "url",
    [
        "gs://AKIA:hunter2@bucket/jobs",
        "s3://AKIA:hunter2@bucket/jobs?profile=work",
        "s3://AKIA:hunter2@b/jobs",
        "s3://bucket/jobs?secret_access_key=hunter2",
        "s3://bucket/jobs?endpoint=http://user:hunter2@host",
        "az://container?sas_token=hunter2",
    ],
)
def test_secrets_in_a_url_are_refused_and_not_shown(url: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        open_store(url)
    assert "hunter2" not in str(raised.value)


def test_an_s3_url_may_have_keys_which_are_never_shown() -> None:
    address = Address.of("s3://AKIA:hun/ter%2B2@bucket/jobs@home?region=eu-west-1")
    assert address.credentials is not None
    assert address.credentials.access_key_id == "AKIA"
    assert address.credentials.secret_access_key == "hun/ter+2"
    assert (address.bucket, address.prefix) == ("bucket", "jobs@home")
    assert address.location == "s3://bucket/jobs@home"
    store = open_store("s3://AKIA:hunter2@bucket/jobs")
    scheduler = Scheduler("s3://AKIA:hunter2@bucket/jobs")
    for shown in (repr(address), repr(store), repr(store.info()), repr(scheduler)):
        assert "hun" not in shown


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_without_the_extra_the_error_names_it(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *arguments: Any, **options: Any) -> Any:
        if name.partition(".")[0] == "obstore":
            raise ModuleNotFoundError("No module named 'obstore'", name="obstore")
        return real(name, *arguments, **options)

    monkeypatch.delitem(sys.modules, "mainspring.stores.objects.obstore_bucket", raising=False)
    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(InvalidInput, match=r"pip install '.*mainspring\[objects\]'"):
        open_store(f"{scheme}://bucket/jobs")
