"""The examples about webhooks run, and their recipes verify what is really sent."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mainspring.core.model import Webhook
from mainspring.webhooks import AttemptFacts, PreparedRequest, new_signing_secret, prepare
from mainspring.webhooks.definition import FIELDS
from mainspring.webhooks.request import TEMPLATE_NAMES, RequestTemplate
from mainspring.webhooks.vault import signing_bytes
from tests.support.doc_examples import DOCS, blocks
from tests.support.webhook_endpoint import endpoint

REFERENCE = (DOCS / "reference" / "webhooks.md").read_text()
RECEIVE = DOCS / "how-to" / "call-endpoints.md"


async def test_the_examples_run(tmp_path: Path) -> None:
    async with endpoint() as end:
        script = tmp_path / "page.py"
        page = DOCS / "how-to" / "call-endpoints.md"
        [example] = [block.text for block in blocks(page) if block.kind == "endpoint"]
        script.write_text(example)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "error", str(script)),
            cwd=tmp_path,
            env={**os.environ, "ENDPOINT": end.url},
            stderr=asyncio.subprocess.PIPE,
        )
        _, errors = await process.communicate()
    assert (process.returncode, errors.decode()) == (0, "")
    assert [json.loads(sent.body)["event"] for sent in end.requests] == ["sync", "sync"]


def test_every_field_and_template_is_described() -> None:
    assert {name for name in FIELDS if f"`{name}`" not in REFERENCE} == set()
    assert {name for name in TEMPLATE_NAMES if f"`{{{{{name}}}}}`" not in REFERENCE} == set()


def signed(*secrets: str) -> PreparedRequest:
    now = datetime.now(UTC)
    facts = AttemptFacts(
        job_id="j", run_id="j@20300101T000000Z", attempt=1, scheduled_at=now, now=now
    )
    webhook = Webhook(url="https://example.org/", body={"text": "grüße"})
    return prepare(RequestTemplate.of(webhook), facts, map(signing_bytes, secrets))


def python(secret: str, headers: dict[str, str], body: bytes) -> bool:
    scope: dict[str, Any] = {}
    [recipe] = [block.text for block in blocks(RECEIVE) if block.kind == "verify"]
    exec(recipe, scope)
    return bool(scope["verify"](secret, headers, body))


def node(secret: str, headers: dict[str, str], body: bytes) -> bool:
    program = shutil.which("node")
    if program is None:
        pytest.skip("no node here")
    given = json.dumps([secret, headers, body.hex()])
    [recipe] = [block.text for block in blocks(RECEIVE) if block.language == "js"]
    code = f"{recipe}\nconst [s, h, b] = {given};\n"
    code += "console.log(verify(s, h, Buffer.from(b, 'hex')));"
    done = subprocess.run([program, "-e", code], capture_output=True, text=True, check=True)
    return done.stdout.strip() == "true"


@pytest.mark.parametrize("verify", [python, node])
def test_the_recipes_verify_what_is_sent(verify: Any) -> None:
    old, new = new_signing_secret(), new_signing_secret()
    request = signed(new, old)
    headers = dict(request.headers)
    assert verify(new, headers, request.body)
    assert verify(old, headers, request.body)
    assert not verify(new_signing_secret(), headers, request.body)
    assert not verify(new, headers, request.body + b" ")
    assert not verify(new, {**headers, "webhook-id": "another"}, request.body)
    late = {**headers, "webhook-timestamp": str(int(headers["webhook-timestamp"]) - 3600)}
    assert not verify(new, late, request.body)


@pytest.mark.parametrize("verify", [python, node])
@pytest.mark.parametrize(
    "forged",
    [
        {"webhook-timestamp": "abc"},
        {"webhook-timestamp": "9" * 5000},
        {"webhook-signature": "v1,grüße"},
        {"webhook-signature": ""},
        None,
    ],
)
def test_the_recipes_answer_no_to_what_is_forged(verify: Any, forged: Any) -> None:
    secret = new_signing_secret()
    request = signed(secret)
    headers = {} if forged is None else {**request.headers, **forged}
    assert verify(secret, headers, request.body) is False
