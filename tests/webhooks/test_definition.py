"""Webhook definitions: parsed, refused, rendered."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook as Verifier

from mainspring import Breaker, Scheduler
from mainspring.core.model import Webhook
from mainspring.errors import InvalidInput
from mainspring.webhooks import AttemptFacts, Vault, new_key, new_signing_secret, prepare
from mainspring.webhooks.address_policy import AllowList
from mainspring.webhooks.definition import define
from mainspring.webhooks.request import (
    RequestTemplate,
    Template,
    check_templates,
    strip_template_spaces,
)
from mainspring.webhooks.vault import signing_bytes

NOW = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
FACTS = AttemptFacts(
    job_id="nightly.report",
    run_id="nightly.report@20300102T030405Z",
    attempt=2,
    scheduled_at=NOW - timedelta(seconds=5),
    now=NOW,
)
URL = "https://api.example.org/hook"


def made(**fields: Any) -> Webhook:
    given = {"url": URL, **fields}
    return define("job", given, Vault.of([new_key()], environ={}), AllowList())


def sent(webhook: Webhook, **facts: Any) -> Any:
    return prepare(
        RequestTemplate.of(webhook),
        AttemptFacts(**{n: getattr(FACTS, n) for n in FACTS.__struct_fields__} | facts),
    )


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "a url is text"),
        (None, "a url is text"),
        ("example.org/hook", "begins with https://"),
        ("ftp://example.org/", "begins with https://"),
        ("file:///etc/passwd", "begins with https://"),
        ("javascript:alert(1)", "begins with https://"),
        ("https://", "begins with https://"),
        ("https:///path", "begins with https://"),
        ("https://user:hunter2@example.org/", "cannot contain a user or password"),
        ("https://example.org/a b", "no spaces"),
        ("https://example.org/\r\nX: y", "no spaces"),
        ("https://example.org\\@evil.example/", "no spaces"),
        ("https://example.org:99999/", "cannot be read"),
        ("https://example.org:0/", "no port 0"),
        ("https://example.org/#part", "no fragment"),
        ("https://{{jobId}}.example.org/", "not in its host"),
        ("https://example.org/{{now}}", "{{now}}, which is not a template name"),
        ("https://example.org/" + "x" * 2000, "at most 2,000 characters"),
        ("https://a..b/", "cannot be read"),
        ("https://[::1", "cannot be read"),
    ],
)
def test_urls_that_are_refused(url: Any, why: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        made(url=url)
    assert why in str(refused.value)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("https://example.org", "https://example.org/"),
        ("https://EXAMPLE.org:8443/A?b=%20&c=d", "https://example.org:8443/A?b=%20&c=d"),
        ("https://bücher.example/é?ü=ß", "https://xn--bcher-kva.example/%C3%A9?%C3%BC=%C3%9F"),
        ("http://[2606:2800:220:1::1]:80/", "http://[2606:2800:220:1::1]:80/"),
        ("https://8.8.8.8/", "https://8.8.8.8/"),
    ],
)
def test_urls_are_kept_as_they_are_sent(url: str, kept: str) -> None:
    assert made(url=url).url == kept


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({"X": "a\r\nEvil: 1"}, "has a line break"),
        ({"X": "a\nb"}, "has a line break"),
        ({"X": "nul\x00"}, "has a line break"),
        ({"X": " padded"}, "has a line break"),
        ({"X": "\ud800"}, "has a line break"),
        ({"X\r\nY": "1"}, "a header name is"),
        ({"X Y": "1"}, "a header name is"),
        ({"": "1"}, "a header name is"),
        ({"Ünï": "1"}, "a header name is"),
        ({"X": 1}, "takes text, not int"),
        ({"X": None}, "takes text, not NoneType"),
        ({"X": "v" * 8_001}, "8,000 are allowed"),
        ({"host": "evil"}, "cannot be set"),
        ({"Content-Length": "1"}, "cannot be set"),
        ({"TRANSFER-encoding": "chunked"}, "cannot be set"),
        ({"Connection": "close"}, "cannot be set"),
        ({"Upgrade": "h2c"}, "cannot be set"),
        ({"Webhook-Id": "x"}, "cannot be set"),
        ({"X": "1", "x": "2"}, "is given twice"),
        ({"X": "{{nope}}"}, "the header X has {{nope}}"),
        ({f"X-{n}": "v" for n in range(51)}, "at most 50 headers"),
        ({f"X-{n}": "v" * 8_000 for n in range(5)}, "at most 32,000 characters"),
        ("X: 1", "headers is an object"),
    ],
)
def test_headers_that_are_refused(headers: Any, why: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        made(headers=headers)
    assert why in str(refused.value)


@pytest.mark.parametrize(
    "name",
    ["X-Auth-Token", "X-Gitlab-Token", "X-Vault-Token", "Api-Key", "apikey", "X-Secret",
     "X-Password", "X-Authentication", "X-Credentials", "cookie", "Authorization", "X-Api-Key"],
)  # fmt: skip
def test_a_header_that_is_named_like_a_secret_is_kept_as_one(name: str) -> None:
    webhook = made(headers={name: "value"})
    assert (list(webhook.secret_headers), webhook.headers) == ([name], {})


@pytest.mark.parametrize(
    ("given", "meant"),
    [("PSOT", "POST"), ("gte", "GET"), ("GETT", "GET"), ("PATHC", "PATCH"), ("DELET", "DELETE"),
     ("OPTION", "OPTIONS"), ("HAED", "HEAD"), ("PTU", "PUT")],
)  # fmt: skip
def test_a_misspelt_method_is_refused_with_the_usual_one(given: str, meant: str) -> None:
    with pytest.raises(InvalidInput, match=rf"did you mean '{meant}'\?"):
        made(method=given)


def test_a_refused_secret_is_not_told() -> None:
    with pytest.raises(InvalidInput) as refused:
        made(headers={"Authorization": "Bearer hunter2\n"})
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"method": "GET /"}, "a method is a word"),
        ({"method": "CONNECT"}, "opens a tunnel"),
        ({"method": 1}, "a method is a word"),
        ({"body": {"a": float("nan")}}, "not JSON"),
        ({"body": {1: "a"}}, "not JSON"),
        ({"body": {"a": Decimal("1")}}, "holds a Decimal"),
        ({"body": {"a": NOW}}, "holds a datetime"),
        ({"body": "\ud800"}, "not valid Unicode"),
        ({"body": "x" * 300_000}, "at most 262,144"),
        ({"body": {"a": ["{{now}}"]}}, "the body has {{now}}"),
        ({"success": 99}, "a status code is"),
        ({"success": "600"}, "a status code is"),
        ({"success": "299-200"}, "a status code is"),
        ({"success": True}, "a status code is"),
        ({"retry_on": ["5xx", "soon"]}, "a status code is"),
        ({"signing_secret": "hunter2"}, "a signing secret is whsec_"),
        ({"uri": URL}, "a webhook has no uri; it takes url, method"),
    ],
)
def test_fields_that_are_refused(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        made(**fields)
    assert why in str(refused.value)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("codes", "ranges"),
    [
        (204, ((204, 204),)),
        ("2xx", ((200, 299),)),
        ("200 - 204", ((200, 204),)),
        (["5XX", 429], ((429, 429), (500, 599))),
        ([[200, 202]], ((200, 202),)),
        (None, ((200, 299),)),
    ],
)
def test_success_codes_become_ranges(codes: Any, ranges: Any) -> None:
    assert made(success=codes).success == ranges


def test_templates_are_filled_in_everywhere() -> None:
    webhook = made(
        url="https://api.example.org/{{jobId}}?at={{timestamp}}&{{ attempt }}",
        headers={"X-Run": "{{executionId}} of {{scheduledAt}}"},
        body={"at": "{{timestamp}}", "list": ["{{attempt}}", 1, None, {"{{jobId}}": "{{jobId}}"}]},
    )
    request = sent(webhook)
    at = "2030-01-02T03:04:05.678Z"
    assert request.url == (
        "https://api.example.org/nightly.report?at=2030-01-02T03%3A04%3A05.678Z&2"
    )
    assert request.headers["X-Run"] == (
        "nightly.report@20300102T030405Z of 2030-01-02T03:04:00.678Z"
    )
    assert json.loads(request.body) == {
        "at": at,
        "list": ["2", 1, None, {"{{jobId}}": "nightly.report"}],
    }


@pytest.mark.parametrize(
    ("body", "data", "kind"),
    [
        (None, b"", None),
        ("héllo {{attempt}}", "héllo 2".encode(), "text/plain; charset=utf-8"),
        ({"ü": 1.5}, '{"ü":1.5}'.encode(), "application/json"),
        ([], b"[]", "application/json"),
        (0, b"0", "application/json"),
        (False, b"false", "application/json"),
    ],
)
def test_a_body_is_sent_with_its_content_type(body: Any, data: bytes, kind: str | None) -> None:
    request = sent(made(body=body))
    assert request.body == data
    assert request.headers.get("Content-Type") == kind


def test_given_headers_stand_over_our_own() -> None:
    mine = {"content-type": "text/csv", "user-agent": "me/1", "idempotency-key": "{{jobId}}"}
    request = sent(made(headers=mine, body="a,b"))
    assert len({name.lower() for name in request.headers}) == len(request.headers)
    assert request.headers["content-type"] == "text/csv"
    assert "Content-Type" not in request.headers
    assert request.headers["user-agent"] == "me/1"
    assert request.headers["idempotency-key"] == "nightly.report"


texts = st.text(max_size=50).filter(lambda text: "{{" not in text)  # a template would be filled in


@given(
    texts | st.dictionaries(st.text(max_size=5), st.integers() | texts),
    st.sampled_from(["a.b@20300101T000000.5Z", "0123456789abcdef", "x:y@0123", "d.e@a.b"]),
)
def test_any_body_is_signed_so_that_an_independent_library_agrees(body: Any, run_id: str) -> None:
    secrets = [new_signing_secret(), new_signing_secret()]
    try:
        webhook = made(body={"wrapped": body})
    except InvalidInput:
        return  # a lone surrogate
    facts = AttemptFacts(
        job_id="j", run_id=run_id, attempt=1, scheduled_at=NOW, now=datetime.now(UTC)
    )
    request = prepare(RequestTemplate.of(webhook), facts, map(signing_bytes, secrets))
    for secret in secrets:
        assert Verifier(secret).verify(request.body, dict(request.headers)) == {"wrapped": body}
    assert "." not in request.headers["webhook-id"]


async def test_a_dry_run_is_what_is_sent() -> None:
    async with Scheduler("memory://", workers=0) as mainspring:
        webhook = {"url": URL, "body": {"a": "{{attempt}}"}, "headers": {"X-Api-Key": "k-e-y-1"}}
        job = await mainspring.add_job("call", webhook=webhook, schedule="@daily")
        shown = mainspring.webhooks.preview(job, NOW, body=None)
    assert shown.headers["X-Api-Key"] == "k-e-y-1"
    assert shown.masked_headers()["X-Api-Key"] == "********"
    assert shown.body == b'{"a":"1"}'
    assert shown.headers["webhook-signature"].startswith("v1,")
    assert "k-e-y-1" not in repr(shown)


async def test_what_a_webhook_job_cannot_have() -> None:
    async with Scheduler("memory://", workers=0) as mainspring:
        for policy, why in [
            ({"payload": {"a": 1}}, "give it there, not as payload"),
            ({"isolation": "process"}, "is for Python handlers"),
            ({"delivery": "effect_once"}, "is at_least_once or at_most_once for a webhook"),
            ({"timeout": None}, "timeout is at most"),
            ({"timeout": "2h"}, "timeout is at most"),
            ({"handler": "other"}, r"a handler or a url \(webhook\)"),
        ]:
            with pytest.raises(InvalidInput, match=why) as refused:
                await mainspring.add_job("call", webhook=URL, **policy)  # type: ignore[arg-type]
            assert refused.value.others == ()
        with pytest.raises(InvalidInput, match=r"a handler, or a url \(webhook\)"):
            await mainspring.add_job("call")
        with pytest.raises(InvalidInput, match=r"a handler, or a url \(webhook\)"):
            await mainspring.add_job("call", handler="webhook")
        job = await mainspring.add_job("call", webhook=URL)
        assert job.policy.timeout == timedelta(seconds=30)
        assert job.policy.breaker == Breaker(failures=5, reset="60s")
        bare = await mainspring.add_job("bare", webhook=URL, breaker=None)
        assert bare.policy.breaker is None
        with pytest.raises(InvalidInput, match="rotating it"):
            await mainspring.update_job("call", webhook={"signing_secret": new_signing_secret()})


async def test_a_webhook_and_a_function_do_not_become_each_other() -> None:
    mainspring = Scheduler("memory://", workers=0)

    @mainspring.job()
    async def work() -> None: ...

    async with mainspring:
        await mainspring.add_job("call", webhook=URL)
        await mainspring.add_job("function", handler="work")
        with pytest.raises(InvalidInput, match="kind cannot change"):
            await mainspring.update_job("call", handler="work")
        with pytest.raises(InvalidInput, match="it is not a webhook job"):
            await mainspring.update_job("function", webhook=URL)
        with pytest.raises(InvalidInput, match="it is not a webhook job"):
            await mainspring.rotate_secret("function")


def test_without_the_extra_the_core_works_and_says_what_is_missing() -> None:
    code = """
import asyncio, importlib.abc, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("aiohttp", "cryptography", "yarl"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

real = __import__("importlib.util").util.find_spec
__import__("importlib.util").util.find_spec = (
    lambda name: None if name in ("aiohttp", "cryptography") else real(name))
sys.meta_path.insert(0, Missing())
from mainspring import Scheduler

async def main():
    scheduler = Scheduler("memory://")
    @scheduler.job()
    async def work(): return 1
    async with scheduler:
        print((await scheduler.wait((await work.enqueue()).id)).result)
        try:
            await scheduler.add_job("call", webhook="https://example.org/")
        except Exception as error:
            print(type(error).__name__, error)

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "1",
        "InvalidInput webhooks need aiohttp and cryptography: install Mainspring again with the"
        " extra 'server', from the checkout or wheel that you installed it from: pip install"
        " '/path/to/mainspring[server]'",
    ]


@pytest.mark.parametrize("text", ["{{" + " " * 200_000, "{{ " * 60_000, "{{a" + " " * 200_000])
def test_a_long_run_of_spaces_is_parsed_quickly(text: str) -> None:
    """It took hours, in which the whole process stood still."""
    check_templates(text, "the body")
    assert strip_template_spaces(text) == text
    assert Template.of(text).fill({}) == text
