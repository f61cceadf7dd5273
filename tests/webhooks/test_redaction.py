"""Secrets that an endpoint echoes are masked in every form."""

from __future__ import annotations

import base64
import html
import json
from urllib.parse import quote, quote_plus

import msgspec
import pytest

from mainspring.webhooks.redaction import MASK, SecretRedactor
from tests.support.webhook_endpoint import Request, called, endpoint, response, scheduler

DIGEST = 'Digest username="bob", response="topsecretvalue"'
TOKEN = "Bearer abc/def/ghi+jkl="
COOKIE = "session=s%3Aaaaa-1111; csrf=bbbb-2222"
UMLAUT = "schlüssel/groß"
BASIC = "Basic " + base64.b64encode(b"bob:hunter2/hunter2").decode()


@pytest.mark.parametrize(
    ("secret", "echoed", "kept"),
    [
        (TOKEN, TOKEN, MASK),
        (TOKEN, "token=abc/def/ghi+jkl=", f"token={MASK}"),
        (TOKEN, r'{"a": "Bearer abc\/def\/ghi+jkl="}', f'{{"a": "Bearer {MASK}"}}'),  # PHP
        (TOKEN, r"Bearer abc/def/ghi\u002Bjkl=", f"Bearer {MASK}"),  # .NET
        (TOKEN, quote(TOKEN, safe=""), f"Bearer%20{MASK}"),
        (TOKEN, quote_plus(TOKEN), f"Bearer+{MASK}"),
        (TOKEN, "/x?t=abc/def/ghi%2Bjkl%3D", f"/x?t={MASK}"),
        (DIGEST, json.dumps(DIGEST), f'"{MASK}"'),
        (DIGEST, html.escape(DIGEST), MASK),
        (DIGEST, '{"response": "topsecretvalue"}', f'{{"response": "{MASK}"}}'),
        (UMLAUT, json.dumps(UMLAUT), f'"{MASK}"'),
        (UMLAUT, json.dumps(UMLAUT.encode().decode("latin-1")), f'"{MASK}"'),
        (UMLAUT, quote(UMLAUT), MASK),
        (COOKIE, "csrf is bbbb-2222", f"csrf is {MASK}"),
        (COOKIE, '{"session":"s:aaaa-1111"}', f'{{"session":"{MASK}"}}'),
        (COOKIE, '{"session":"s%3Aaaaa-1111"}', f'{{"session":"{MASK}"}}'),
        (BASIC, "hello bob:hunter2/hunter2", f"hello {MASK}"),
        (BASIC, r'{"password":"hunter2\/hunter2"}', f'{{"password":"{MASK}"}}'),
        ("a<b&c>d", r"a\u003cb\u0026c\u003ed", MASK),  # Go
        ("pass phrase here", "pass%20phrase%20here", MASK),
        ("Basic no-base64!", "no-base64!", MASK),
    ],
)
def test_a_secret_is_masked_in_every_form(secret: str, echoed: str, kept: str) -> None:
    assert SecretRedactor([secret]).redact(echoed) == kept


def test_text_that_is_not_a_secret_is_not_masked() -> None:
    known = SecretRedactor([TOKEN, DIGEST, COOKIE, BASIC, "short", ""])
    text = "Bearer, Basic and Digest; username bob, session, csrf: a short answer"
    assert known.redact(text) == text


async def test_an_endpoint_that_tells_its_request_back() -> None:
    def echo(request: Request) -> bytes:
        sent = dict(request.headers)
        cookies = dict(pair.split("=") for pair in sent["cookie"].split("; "))
        user, _, password = base64.b64decode(sent["x-basic"].split()[1]).decode().partition(":")
        told = {"headers": sent, "cookies": cookies, "user": user, "password": password}
        return response(500, json.dumps(told).encode(), f"X-Where: /?a={quote(password, safe='')}")

    async with endpoint(echo) as end, scheduler() as mainspring:
        webhook = {
            "url": end.url,
            "headers": {"Authorization": DIGEST, "Cookie": COOKIE},
            "secret_headers": {"X-Basic": BASIC, "X-Umlaut": UMLAUT},
        }
        run = await called(mainspring, webhook)
    kept = msgspec.json.encode(run).decode()
    assert run.attempts[0].detail["response"]["status"] == 500
    for secret in (
        "topsecretvalue",
        "aaaa-1111",
        "bbbb-2222",
        "hunter2",
        "groß",
        "gro\\u00",
        BASIC,
    ):
        assert secret not in kept


def test_more_secrets_than_can_be_looked_for_mask_the_whole_answer() -> None:
    cookies = "; ".join(f"name{n}=value-number-{n}" for n in range(400))
    few, many = SecretRedactor([cookies[:200]]), SecretRedactor([cookies])
    assert few.redact("nothing of it") == "nothing of it"
    assert many.redact("nothing of it") == "********"
    assert many.redact_bytes(b"nothing of it") == b"********"
    assert (many.redact(""), many.redact_bytes(b"")) == ("", b"")


@pytest.mark.parametrize(
    "secret", ["k" * 260, "pässwörd-geheim", 'it\'s-a-"secret"-word', "shorter"]
)
async def test_an_answer_that_cannot_be_read_is_not_quoted(secret: str) -> None:
    """aiohttp shows what it stumbled over, cut and written as Python writes it."""

    def echo(request: Request) -> bytes:
        return response(200, b"", f"X-Was: {secret}\x00")

    async with endpoint(echo) as made, scheduler() as mainspring:
        webhook = {"url": made.url, "headers": {"Authorization": secret}}
        run = await called(mainspring, webhook, retries=0)
    assert str(run.error).endswith("sent a response that is not valid HTTP: Invalid HTTP header")


@pytest.mark.parametrize(
    ("secret", "begun"),
    [(TOKEN, "abc/def/g"), (TOKEN, "Bearer a"), (TOKEN, r"abc\/def\/"), (TOKEN, "abc%2Fde")],
)
def test_the_beginning_of_a_secret_at_a_cut_is_masked(secret: str, begun: str) -> None:
    known = SecretRedactor([secret])
    body = f"you sent: {begun}".encode()
    assert known.redact_bytes(body, cut=True) == f"you sent: {MASK}".encode()
    assert known.redact_bytes(body) == body
    assert known.redact_bytes(b"you sent: xyz", cut=True) == b"you sent: xyz"
    assert known.redact_bytes(b"", cut=True) == b""
