"""What the scheduler asks of webhooks: define and change them, rotate secrets, show a request."""

from __future__ import annotations

import logging
import os
from datetime import datetime
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from msgspec import Struct

from mainspring.core.durations import duration
from mainspring.core.model import Job, SigningSecret, Webhook, replace
from mainspring.core.policy import Span
from mainspring.errors import InvalidInput
from mainspring.stores.protocol import Store
from mainspring.webhooks import definition as definitions
from mainspring.webhooks.address_policy import AllowList
from mainspring.webhooks.headers import MASK
from mainspring.webhooks.redaction import Traces
from mainspring.webhooks.request import Facts, Form, Mac, Prepared, prepare
from mainspring.webhooks.settings import WebhookSettings
from mainspring.webhooks.vault import (
    VARIABLE,
    Vault,
    key_files,
    new_key,
    new_signing_secret,
    signing_bytes,
)

if TYPE_CHECKING:
    from mainspring.webhooks.client import Client

__all__ = ["HANDLER", "Webhooks", "shown", "shown_headers"]

log = logging.getLogger("mainspring")

HANDLER = "webhook"
"""The name of the built-in handler."""

MOST_OPENED = 10_000
"""Jobs whose secrets are held in clear, beside the key that opens them."""

_NEEDED = ("aiohttp", "cryptography")
_MEMORY_KEYS: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def shown_headers(webhook: Webhook) -> dict[str, str]:
    """A webhook's headers as they may be shown: secrets are masked."""
    return {**webhook.headers, **dict.fromkeys(webhook.secret_headers, MASK)}


def shown(webhook: Webhook) -> dict[str, Any]:
    """A webhook in JSON's words, without its secrets."""
    return {
        "url": webhook.url,
        "method": webhook.method,
        "headers": shown_headers(webhook),
        "body": webhook.body,
        "success": webhook.success,
        "retry_on": webhook.retry_on,
        "signed": bool(webhook.signing),
    }


class Opened(Struct, frozen=True):
    """A webhook, and what is needed for its requests."""

    webhook: Webhook
    form: Form
    signing: tuple[tuple[Mac, datetime | None], ...]
    """What signs, in its order, and until when."""
    traces: Traces
    """What its secrets can be known by in an answer."""

    def prepared(self, facts: Facts) -> Prepared:
        """The request of one attempt, signed by the secrets that are valid then."""
        now = facts.now
        signing = [mac for mac, until in self.signing if until is None or until > now]
        return prepare(self.form, facts, signing)

    def __repr__(self) -> str:
        return "Opened(********)"


class Webhooks:
    """The webhooks of one scheduler: its settings, its keys."""

    def __init__(self, store: Store, settings: WebhookSettings | None = None) -> None:
        self._store = store
        self.settings = settings or WebhookSettings.from_environment()
        self.allow = AllowList.of(self.settings.allow)
        self._client: Client | None = None
        self._opened: dict[str, Opened] = {}

    @cached_property
    def available(self) -> bool:
        """Whether the extra that webhooks need is installed."""
        return all(find_spec(name) is not None for name in _NEEDED)

    @cached_property
    def vault(self) -> Vault:
        self._need()
        file, former_file = _files(self._store)
        vault = Vault.of(
            [*self.settings.secret_keys, *_keys_of(self._store)],
            file=file,
            former_file=former_file,
        )
        if not vault.ready:
            log.warning(
                "there is no key for secrets on this shared store: webhooks are not signed, and"
                " secret headers are refused, until MAINSPRING_SECRET_KEY is set"
            )
        return vault

    def check_keys(self) -> None:
        """At start: a key that is none is told then, and not by every call that fails of it. Where
        no key is given nothing is loaded."""
        if self.available and (self.settings.secret_keys or os.environ.get(VARIABLE)):
            _ = self.vault

    @property
    def client(self) -> Client:
        """Made when it is first needed: aiohttp takes its time to load."""
        if self._client is None:
            from mainspring.webhooks.client import Client

            self._client = Client(self.allow)
        return self._client

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    def define(self, job_id: str, given: definitions.Given) -> Webhook:
        return definitions.define(job_id, given, self._need().vault, self.allow)

    def changed(self, job: Job, given: definitions.Given) -> Webhook:
        return definitions.changed(job.id, _of(job), given, self._need().vault, self.allow)

    def rotated(
        self, job: Job, now: datetime, *, keep: Span = "24h", secret: str | None = None
    ) -> tuple[Webhook, str]:
        """The webhook with another signing secret, and that secret, to be shown once.

        The former one signs too for the time given, so that receivers can follow.
        """
        webhook, fresh = _of(job), secret or new_signing_secret()
        until = now + duration(keep, what="keep")
        former = [SigningSecret(one.sealed, until) for one in webhook.signing[:1] if until > now]
        signing = definitions.sign_with(job.id, fresh, self.vault)
        return replace(webhook, signing=(signing, *former)), fresh

    def alike(self, one: Job, other: Job) -> bool:
        """Whether both make the same requests, with the same secrets in them. What signs them is
        not looked at: every job is given its own."""
        if one.webhook is None or other.webhook is None:
            return one.webhook is other.webhook
        bare = [replace(_of(job), secret_headers={}, signing=()) for job in (one, other)]
        return bare[0] == bare[1] and self._clear(one) == self._clear(other)

    def replaced(self, draft: Job, stored: Job, *, own_secret: bool) -> Webhook:
        """The draft's webhook in the place of the stored one. What means the same stays as it is
        stored, because sealing a secret once more gives another text."""
        new, old = _of(draft), _of(stored)
        if self.alike(draft, stored):
            new = replace(old, signing=new.signing)
        if own_secret and not self._same_signing(draft, stored):
            return new
        return replace(new, signing=old.signing or new.signing)

    def _same_signing(self, draft: Job, stored: Job) -> bool:
        texts = [
            [self._signing_text(job.id, one) for one in _of(job).signing[:1]]
            for job in (draft, stored)
        ]
        return texts[0] == texts[1]

    def resealed(self, job: Job) -> Job:
        """The job with every secret under the newest key."""
        webhook, opened = _of(job), self._clear(job)
        origin = definitions.origin_of(webhook.url)
        after = replace(
            webhook,
            secret_headers={
                name: self.vault.seal(text, job.id, f"the header {name.lower()}", origin)
                for name, text in opened.items()
            },
            signing=tuple(
                SigningSecret(
                    self.vault.seal(self._signing_text(job.id, one), job.id, _SIGNING), one.until
                )
                for one in webhook.signing
            ),
        )
        return replace(job, webhook=after)

    def stale(self, job: Job) -> bool:
        """Whether a secret of the job is sealed with another key than the newest."""
        webhook = job.webhook
        if webhook is None:
            return False
        sealed = [*webhook.secret_headers.values(), *(one.sealed for one in webhook.signing)]
        return any(map(self.vault.stale, sealed))

    def opened(self, job: Job) -> Opened:
        """What of a job's requests is the same for all, its secrets in clear: worked out once for
        a definition (opening alone took 20 of the 110 µs that a call costs beside aiohttp's own).
        """
        webhook = _of(job)
        known = self._opened.get(job.id)
        if known is None or (known.webhook is not webhook and known.webhook != webhook):
            signing = tuple(
                (Mac(signing_bytes(self._signing_text(job.id, one))), one.until)
                for one in webhook.signing
            )
            clear = self._clear(job)
            known = Opened(webhook, Form.of(webhook, clear), signing, Traces(clear.values()))
            self._opened.pop(job.id, None)
            if len(self._opened) >= MOST_OPENED:
                del self._opened[next(iter(self._opened))]  # the oldest
            self._opened[job.id] = known
        return known

    def preview(self, job: Job, now: datetime, *, body: Any = None, run_id: str = "") -> Prepared:
        """The request that the job would make now, signed, without sending it."""
        facts = Facts(
            job_id=job.id,
            run_id=run_id or f"{job.id}@dry-run",
            attempt=1,
            scheduled_at=job.next_run_at or now,
            now=now,
            body=body,
        )
        return self.opened(job).prepared(facts)

    # Steps

    def _need(self) -> Webhooks:
        if not self.available:
            raise InvalidInput(
                f"webhooks need {' and '.join(_NEEDED)}: pip install 'mainspring[server]'"
            )
        return self

    def _clear(self, job: Job) -> dict[str, str]:
        webhook = _of(job)
        origin = definitions.origin_of(webhook.url)
        return {
            name: self.vault.open(sealed, job.id, f"the header {name.lower()}", origin)
            for name, sealed in webhook.secret_headers.items()
        }

    def _signing_text(self, job_id: str, one: SigningSecret) -> str:
        return self.vault.open(one.sealed, job_id, _SIGNING)


_SIGNING = "the signing secret"


def _of(job: Job) -> Webhook:
    if job.webhook is None:
        raise InvalidInput(f"job {job.id!r} runs the handler {job.handler!r}: it is no webhook")
    return job.webhook


def _files(store: Store) -> tuple[Path, Path] | tuple[None, None]:
    """The key file of an embedded store, beside its database, and its former name."""
    path = getattr(store, "path", None)
    return (None, None) if path is None else key_files(path)


def _keys_of(store: Store) -> list[str]:
    """What lives in memory is gone with the process, and so may its key be."""
    from mainspring.stores.memory import MemoryStore

    if not isinstance(store, MemoryStore):
        return []
    return [_MEMORY_KEYS.setdefault(store, new_key())]
