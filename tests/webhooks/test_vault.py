"""Secrets are encrypted at rest, bound to their use, and never shown."""

from __future__ import annotations

import base64
import logging
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mainspring import Event, Scheduler, State
from mainspring.core.model import Sealed, replace
from mainspring.errors import InvalidInput, SecretKeyMissing
from mainspring.stores.memory import MemoryStore
from mainspring.stores.protocol import JobQuery, NoteQuery, StoreInfo
from mainspring.testing.store_calls import put_job
from mainspring.webhooks import MASK, Vault, WebhookSettings, new_key
from mainspring.webhooks.service import masked_headers
from mainspring.webhooks.vault import VARIABLE, signing_bytes
from tests.support.servers.fixtures import *  # noqa: F403
from tests.support.webhook_endpoint import Request, call, endpoint, response, scheduler

TOKEN = "Bearer s3cr3t-token-value"


class SharedStore(MemoryStore):
    """As a shared store is to the vault: neither a file nor this process's own memory."""

    def info(self) -> StoreInfo:
        return msgspec.structs.replace(super().info(), shared=True)


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> SharedStore:
    monkeypatch.delenv(VARIABLE, raising=False)
    return SharedStore()


def test_what_is_sealed_opens_again_and_only_for_its_use() -> None:
    vault = Vault.of([new_key()], environ={})
    sealed = vault.seal(TOKEN, "job", "the header authorization", "https://a:443")
    assert vault.open(sealed, "job", "the header authorization", "https://a:443") == TOKEN
    assert vault.seal(TOKEN, "job", "x") != vault.seal(TOKEN, "job", "x"), "a nonce of its own"
    for bound in (
        ("other", "the header authorization", "https://a:443"),
        ("job", "the header x-other", "https://a:443"),
        ("job", "the header authorization", "https://evil:443"),
        ("job", "the header authorization"),
    ):
        with pytest.raises(SecretKeyMissing, match="moved here from elsewhere"):
            vault.open(sealed, *bound)


def test_a_changed_ciphertext_does_not_decrypt() -> None:
    vault = Vault.of([new_key()], environ={})
    sealed = vault.seal(TOKEN, "job", "x")
    box = bytearray(base64.b64decode(sealed.box))
    box[-1] ^= 1
    for broken in (base64.b64encode(box).decode(), "AAAA", "no base64 at all"):
        with pytest.raises(SecretKeyMissing, match="cannot be decrypted"):
            vault.open(Sealed(sealed.key, broken), "job", "x")


def test_keys_change_one_after_another() -> None:
    old, new = new_key(), new_key()
    sealed = Vault.of([old], environ={}).seal("value", "job", "x")
    both = Vault.of(environ={VARIABLE: f"{new}, {old}"})
    assert both.open(sealed, "job", "x") == "value"
    assert both.is_outdated(sealed)
    assert not both.is_outdated(both.seal("value", "job", "x"))
    with pytest.raises(SecretKeyMissing, match=f"with the key {sealed.key}, which this process"):
        Vault.of([new], environ={}).open(sealed, "job", "x")


@pytest.mark.parametrize("text", ["short", "x" * 44, base64.b64encode(bytes(31)).decode(), "é"])
def test_a_key_that_is_none_is_refused_and_not_told(text: str) -> None:
    with pytest.raises(InvalidInput, match="openssl rand -base64 32") as refused:
        Vault.of(environ={VARIABLE: text})
    assert text not in str(refused.value)


def test_a_webhook_in_code_on_a_shared_store_names_the_command_that_makes_its_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such a webhook is encrypted before the store opens, which keeps a key for later ones."""
    monkeypatch.delenv(VARIABLE, raising=False)
    webhook = {"url": "https://example.com", "headers": {"authorization": f"Bearer {TOKEN}"}}
    jobs = {"ping": {"schedule": "5m", "webhook": webhook}}
    with pytest.raises(SecretKeyMissing) as refused:
        Scheduler("mongodb://127.0.0.1:1/unused", jobs=jobs)
    assert f"`export {VARIABLE}=$(openssl rand -base64 32)`" in str(refused.value)


def test_the_file_is_made_at_first_use_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "jobs.db-secret.key"
    vault = Vault.of(file=file, environ={})
    assert vault.is_usable
    assert not file.exists(), "nothing is made before it is needed"
    sealed = vault.seal(TOKEN, "job", "x")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert Vault.of(file=file, environ={}).open(sealed, "job", "x") == TOKEN
    assert os.listdir(tmp_path) == ["jobs.db-secret.key"]


def test_a_key_that_others_may_read_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "jobs.db-secret.key"
    Vault.of(file=file, environ={}).seal(TOKEN, "job", "x")
    assert not caplog.records
    file = file.rename(tmp_path / "wide.key")
    file.chmod(0o640)
    Vault.of(file=file, environ={})
    assert f"chmod 600 {file}" in caplog.text


def test_processes_that_make_the_file_at_once_agree(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from mainspring.webhooks import Vault\n"
        "vault = Vault.of(file=Path(sys.argv[1]), environ={}); sys.stdin.readline()\n"
        "print(vault.seal('x', 'job', 'y').key)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "k")]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    children = [subprocess.Popen(command, **pipes) for _ in range(4)]
    ids = {child.communicate("go\n")[0].strip() for child in children}
    assert len(ids) == 1


async def test_on_the_embedded_store_the_page_works_out_of_the_box(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with endpoint() as end:
        async with scheduler(store=url) as mainspring:
            webhook = {"url": end.url, "headers": {"Authorization": TOKEN}}
            await mainspring.add_job("call", webhook=webhook)
        async with scheduler(store=url) as mainspring:  # another process, later
            await call(mainspring)
    assert end.requests[0].headers["authorization"] == TOKEN
    assert (tmp_path / "jobs.db-secret.key").exists()
    assert not _holding(tmp_path, b"s3cr3t")


async def test_a_shared_store_keeps_a_key_of_its_own_if_none_is_given(shared: SharedStore) -> None:
    async with (
        endpoint() as end,
        scheduler(store=shared, workers=0) as one,
        scheduler(store=shared) as other,
    ):
        webhook = {"url": end.url, "headers": {"Authorization": TOKEN}}
        await one.add_job("call", webhook=webhook)
        await other.add_job("other", webhook=webhook)
        for job in ("call", "other"):
            await other.wait((await one.trigger(job)).id, timeout=10)
        page = await shared.notes(NoteQuery(kind="secret-key"))
    assert [request.headers["authorization"] for request in end.requests] == [TOKEN, TOKEN]
    assert all("webhook-signature" in request.headers for request in end.requests)
    assert len(page.items) == 1
    assert b"s3cr3t" not in msgspec.json.encode(page.items[0].value)


async def test_a_shared_store_makes_its_key_only_when_a_webhook_is_stored(
    shared: SharedStore, tmp_path: Path
) -> None:
    webhook = {"url": "http://127.0.0.1:9/", "headers": {"Authorization": TOKEN}}
    file = tmp_path / "jobs.toml"
    file.write_text('name = "x"\n[jobs.of_file]\nwebhook = "http://127.0.0.1:9/"\n')
    async with scheduler(store=shared, workers=0) as mainspring:

        async def count_keys() -> int:
            return len((await shared.notes(NoteQuery(kind="secret-key"))).items)

        draft = await mainspring.add_job("call", webhook=webhook, dry_run=True)
        assert mainspring.webhooks.decrypt(draft)
        await mainspring.apply_jobs(file, dry_run=True)
        with pytest.raises(InvalidInput):
            await mainspring.add_job("call", webhook=webhook, retries=-1)
        assert await count_keys() == 0
        await mainspring.apply_jobs(file)
        job = await mainspring.add_job("call", webhook=webhook)
        assert await count_keys() == 1
    async with scheduler(store=shared, workers=0) as later:
        assert await later.webhooks.decrypt_with_store_key(job)


async def test_a_given_key_encrypts_and_the_key_in_the_store_still_decrypts(
    shared: SharedStore,
) -> None:
    keys = WebhookSettings(allow=["127.0.0.1"], secret_keys=[new_key()])
    async with endpoint() as end:
        webhook = {"url": end.url, "headers": {"Authorization": TOKEN}}
        async with scheduler(store=shared, workers=0) as first:
            await first.add_job("old", webhook=webhook)
        async with scheduler(store=shared, webhooks=keys) as later:
            await later.add_job("new", webhook=webhook)
            for job in ("old", "new"):
                await later.wait((await later.trigger(job)).id, timeout=10)
            assert await later.reseal_secrets() == 1
            sealed = [job.webhook for job in (await later.list_jobs()).items]
    used = {one.key for hook in sealed if hook for one in hook.secret_headers.values()}
    assert used == {later.webhooks.vault.key_ids[0]}
    assert [request.headers["authorization"] for request in end.requests] == [TOKEN, TOKEN]


async def test_a_process_without_the_given_key_says_which_it_lacks(shared: SharedStore) -> None:
    keys = WebhookSettings(allow=["127.0.0.1"], secret_keys=[new_key()])
    async with endpoint() as end:
        async with scheduler(store=shared, webhooks=keys, workers=0) as mainspring:
            webhook = {"url": end.url, "headers": {"Authorization": TOKEN}}
            await mainspring.add_job("call", webhook=webhook)
            run = await mainspring.trigger("call")
        async with scheduler(store=shared) as mainspring:
            run = await mainspring.wait(run.id, timeout=10)
        assert run.state is State.FAILED
        assert "which this process does not have" in str(run.error)
        async with scheduler(store=shared, webhooks=keys) as mainspring:
            run = await mainspring.retry(run.id)
            run = await mainspring.wait(run.id, timeout=10)
    assert run.state is State.SUCCEEDED


def _holding(folder: Path, text: bytes) -> list[str]:
    return [file.name for file in folder.iterdir() if text in file.read_bytes()]


async def stored(mainspring: Scheduler, job_id: str) -> Any:
    return (await mainspring.store.jobs(JobQuery(ids=frozenset({job_id})))).items[0]


async def test_secret_headers_are_write_only_and_masked_everywhere(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    events: list[Event] = []

    def echo(request: Request) -> bytes:
        token, cookie = request.headers["authorization"], "Set-Cookie: session=abcdefgh"
        return response(500, f"you sent {token}".encode(), f"X-Echo: {token}", cookie)

    async with endpoint(echo) as end, scheduler() as mainspring:
        for name in ("job.created", "run.started", "run.retrying", "run.failed"):
            mainspring.on(name, events.append)
        webhook = {
            "url": end.url,
            "headers": {"Authorization": TOKEN, "cookie": "c00kie-secret", "X-Plain": "p"},
            "secret_headers": {"X-Token": "marked-secret"},
        }
        job = await mainspring.add_job("call", webhook=webhook, retries=1, retry_delay="5ms")
        run = await call(mainspring)
        kept = await stored(mainspring, "call")
        health = await mainspring.job_health("call")
    assert job.webhook is not None
    assert masked_headers(job.webhook) == {
        "X-Plain": "p", "X-Token": MASK, "Authorization": MASK, "cookie": MASK,
    }  # fmt: skip
    assert end.requests[0].headers["x-token"] == "marked-secret"
    detail = run.attempts[0].detail
    assert detail["response"]["body"] == f"you sent {MASK}"
    assert ["X-Echo", MASK] in detail["response"]["headers"]
    assert ["Set-Cookie", MASK] in detail["response"]["headers"]
    told = [repr(job), repr(run), repr(kept), repr(events), repr(health), caplog.text]
    told.append(msgspec.json.encode([kept.webhook, run]).decode())
    for text in told:
        for secret in ("s3cr3t", "c00kie-secret", "marked-secret", "abcdefgh"):
            assert secret not in text
    assert len(events) >= 4


async def test_the_mask_in_an_edit_means_unchanged() -> None:
    async with endpoint() as end, scheduler() as mainspring:
        webhook = {"url": end.url, "headers": {"Authorization": TOKEN, "X-A": "1"}}
        await mainspring.add_job("call", webhook=webhook)
        await mainspring.update_job(
            "call", webhook={"headers": {"authorization": MASK, "X-B": "2"}}
        )
        await call(mainspring)
        await mainspring.update_job("call", webhook={"headers": {"X-B": "3"}})
        await call(mainspring)
        with pytest.raises(InvalidInput, match="stands for a stored secret, and there is none"):
            await mainspring.update_job("call", webhook={"headers": {"Authorization": MASK}})
    first, second = end.requests
    assert first.headers["authorization"] == TOKEN
    assert first.headers["x-b"] == "2"
    assert "x-a" not in first.headers
    assert "authorization" not in second.headers


async def test_the_mask_is_never_kept_as_a_value() -> None:
    async with scheduler() as mainspring:
        for given in ({"headers": {"X-Token": MASK}}, {"secret_headers": {"X-Token": MASK}}):
            with pytest.raises(InvalidInput, match="none for X-Token"):
                await mainspring.add_job("call", webhook={"url": "https://a.example/", **given})
        webhook = {"url": "https://a.example/", "secret_headers": {"X-Token": "one"}}
        await mainspring.add_job("call", webhook=webhook)
        await mainspring.update_job("call", webhook={"url": "https://b.example/"})
        with pytest.raises(InvalidInput, match="none for X-Token"):
            await mainspring.update_job("call", webhook={"headers": {"X-Token": MASK}})


async def test_a_header_once_marked_secret_stays_so() -> None:
    async with scheduler() as mainspring:
        webhook = {"url": "https://a.example/", "secret_headers": {"X-Token": "one"}}
        await mainspring.add_job("call", webhook=webhook)
        changed = {"headers": {"x-token": "two-two-two"}}
        job = await mainspring.update_job("call", webhook=changed)
    assert job.webhook is not None
    assert job.webhook.headers == {}
    assert masked_headers(job.webhook) == {"x-token": MASK}


async def test_a_move_to_another_origin_drops_secrets_that_are_not_sent_again() -> None:
    async with scheduler() as mainspring:
        for url, kept in [
            ("https://a.example/other?x=1", True),
            ("https://a.example:443/", True),
            ("http://a.example/", False),
            ("https://a.example:444/", False),
            ("https://b.example/", False),
        ]:
            webhook = {"url": "https://a.example/", "headers": {"Authorization": TOKEN}}
            job = await mainspring.add_job("call", webhook=webhook)
            moved = mainspring.webhooks.change(job, {"url": url})
            assert bool(moved.secret_headers) is kept, url
            masked = {"url": url, "headers": {"Authorization": MASK}}
            if kept:
                assert mainspring.webhooks.change(job, masked).secret_headers
            else:  # a whole job sent back must not lose its secrets without a word
                with pytest.raises(InvalidInput, match="none for Authorization"):
                    mainspring.webhooks.change(job, masked)
            again = {"url": url, "headers": {"Authorization": TOKEN}}
            assert mainspring.webhooks.change(job, again).secret_headers
            await mainspring.remove_job("call")


async def test_a_row_edited_by_hand_carries_no_secret_away() -> None:
    """Whoever can write to the database, but has no key, cannot have a secret sent elsewhere."""
    async with endpoint() as end, scheduler() as mainspring:
        webhook = {"url": "https://a.example/", "headers": {"Authorization": TOKEN}}
        await mainspring.add_job("call", webhook=webhook)
        job = await stored(mainspring, "call")
        await put_job(mainspring.store, replace(job, webhook=replace(job.webhook, url=end.url)))
        run = await call(mainspring)
    assert run.state is State.FAILED
    assert end.requests == []


@pytest.mark.parametrize("text", ["", "whsec_", "whsec_AAAA", "sk_" + "A" * 44, "whsec_!!", "é"])
def test_a_signing_secret_that_is_none(text: str) -> None:
    with pytest.raises(InvalidInput, match="a signing secret is whsec_"):
        signing_bytes(text)
