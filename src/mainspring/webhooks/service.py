"""The webhooks of a scheduler: settings, definitions and changes, secrets, previews of requests."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from msgspec import Struct

from mainspring.core import note_kinds
from mainspring.core.durations import duration
from mainspring.core.model import Job, Note, SigningSecret, Webhook, replace
from mainspring.core.policy import Span
from mainspring.errors import InvalidInput, SecretKeyMissing, install_advice
from mainspring.stores.protocol import NoteQuery, NoteWrite, Store
from mainspring.webhooks import definition
from mainspring.webhooks.address_policy import AllowList
from mainspring.webhooks.redaction import MASK, SecretRedactor
from mainspring.webhooks.request import AttemptFacts, PreparedRequest, RequestTemplate, prepare
from mainspring.webhooks.vault import (
    VARIABLE,
    Vault,
    key_file,
    new_key,
    new_signing_secret,
    signing_bytes,
)

if TYPE_CHECKING:
    from mainspring.webhooks.transport import WebhookClient

log = logging.getLogger("mainspring")

HANDLER = "webhook"
"""The name of the built-in handler."""

ALLOW_VARIABLE = "MAINSPRING_ALLOW_PRIVATE"
PER_HOST_VARIABLE = "MAINSPRING_PER_HOST"
CAP_VARIABLE = "MAINSPRING_RETRY_AFTER_CAP"

MAX_PER_HOST = 10_000

MAX_DECRYPTED = 10_000
"""How many jobs' decrypted secrets are kept in memory."""

_NEEDED = ("aiohttp", "cryptography")
_MEMORY_KEYS: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    """`allow`: hosts, addresses and CIDR ranges outside the public internet that webhooks may call.
    `per_host`: how many calls this process makes to one host at once; None means all that it has
    capacity for, and half of that to a slow or failing host. `retry_after_cap`: the longest wait
    that an endpoint may ask for. `secret_keys`: encryption keys for secrets, the newest first, in
    addition to those of the environment."""

    allow: Iterable[str] = ()
    per_host: int | None = None
    retry_after_cap: Span = timedelta(hours=1)
    secret_keys: Iterable[str] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        for name in ("allow", "secret_keys"):
            given = getattr(self, name)
            object.__setattr__(self, name, (given,) if isinstance(given, str) else tuple(given))
        if isinstance(self.per_host, bool) or not isinstance(self.per_host, int | None):
            raise InvalidInput(f"per_host is a whole number, not {self.per_host!r}")
        if self.per_host is not None and not 1 <= self.per_host <= MAX_PER_HOST:
            raise InvalidInput(f"per_host is 1 to {MAX_PER_HOST}, not {self.per_host!r}")
        cap = duration(self.retry_after_cap, what="retry_after_cap")
        object.__setattr__(self, "retry_after_cap", cap)
        AllowList.of(self.allow)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> WebhookSettings:
        """Settings from MAINSPRING_ALLOW_PRIVATE (separated by commas), MAINSPRING_PER_HOST and
        MAINSPRING_RETRY_AFTER_CAP, for a scheduler that is given none."""
        environ = os.environ if environ is None else environ
        allow = environ.get(ALLOW_VARIABLE, "").split(",")
        settings: dict[str, Any] = {"allow": [entry for entry in map(str.strip, allow) if entry]}
        if text := environ.get(PER_HOST_VARIABLE, "").strip():
            settings["per_host"] = _per_host(text)
        if text := environ.get(CAP_VARIABLE, "").strip():
            settings["retry_after_cap"] = duration(text, what=CAP_VARIABLE)
        return cls(**settings)


def _per_host(text: str) -> int:
    number = int(text) if re.fullmatch(r"[0-9]{1,9}", text) else 0
    if not 1 <= number <= MAX_PER_HOST:
        raise InvalidInput(f"{PER_HOST_VARIABLE} is 1 to {MAX_PER_HOST}, not {text!r}")
    return number


def masked_headers(webhook: Webhook) -> dict[str, str]:
    """A webhook's headers with secrets masked."""
    return {**webhook.headers, **dict.fromkeys(webhook.secret_headers, MASK)}


def masked_webhook(webhook: Webhook) -> dict[str, Any]:
    """A webhook as JSON, without its secrets."""
    return {
        "url": webhook.url,
        "method": webhook.method,
        "headers": masked_headers(webhook),
        "body": webhook.body,
        "success": webhook.success,
        "retry_on": webhook.retry_on,
        "signed": bool(webhook.signing),
    }


class DecryptedWebhook(Struct, frozen=True):
    """A webhook with decrypted secrets, ready to build requests."""

    webhook: Webhook
    form: RequestTemplate
    signing: tuple[tuple[bytes, datetime | None], ...]
    """The signing keys in order, and until when each is used."""
    redactor: SecretRedactor
    """Masks the secrets in responses."""

    def prepare(self, facts: AttemptFacts) -> PreparedRequest:
        """The request of one attempt, signed by the secrets that are valid then."""
        now = facts.now
        signing = [key for key, until in self.signing if until is None or until > now]
        return prepare(self.form, facts, signing)

    def __repr__(self) -> str:
        return "DecryptedWebhook(********)"


class Webhooks:
    """The webhooks of one scheduler, with its settings and keys."""

    def __init__(self, store: Store, settings: WebhookSettings | None = None) -> None:
        self._store = store
        self.settings = settings or WebhookSettings.from_environment()
        self.allow = AllowList.of(self.settings.allow)
        self._client: WebhookClient | None = None
        self._decrypted: dict[str, DecryptedWebhook] = {}
        self._has_read_store_key = False

    @cached_property
    def available(self) -> bool:
        """Whether the extra that webhooks need is installed."""
        return all(find_spec(name) is not None for name in _NEEDED)

    @cached_property
    def vault(self) -> Vault:
        self._require_extra()
        database = self._store.info().file
        return Vault.of(
            [*self.settings.secret_keys, *_keys_of(self._store)],
            file=None if database is None else key_file(database),
        )

    async def load_store_key(self, *, make: bool = True, again: bool = False) -> None:
        """Read the key that a shared store keeps for its secrets, and `make` it if no other key is
        given. Of several processes that make it at once all use the first. It is read once, and
        `again` if a secret needs a key that is not known. Must run on the engine's loop."""
        if not (self.can_read_store_key or (again and self._has_read_store_key)):
            return
        query = NoteQuery(
            kind=note_kinds.SECRET_KEY, names=frozenset({note_kinds.SECRET_KEY}), limit=1
        )
        page = await self._store.notes(query)
        if not page.items and make and not self.vault.is_usable:
            note = Note(
                kind=note_kinds.SECRET_KEY, name=note_kinds.SECRET_KEY, value={"key": new_key()}
            )
            await self._store.put_notes([NoteWrite.put(note)])
            page = await self._store.notes(query)
            log.info(
                "made a key for the secrets of webhooks, which is kept in the store itself: set %s"
                " to encrypt them with a key that is not in the store",
                VARIABLE,
            )
        if page.items:
            self.vault.add_key(page.items[0].value["key"])
        self._has_read_store_key = self.vault.is_usable

    @property
    def can_read_store_key(self) -> bool:
        """Whether the store may have a key that was not read yet."""
        return not self._has_read_store_key and self.available and self._keeps_key_in_store

    @property
    def needs_store_key(self) -> bool:
        """Whether the store has to make a key before secrets can be stored."""
        return self.available and self._keeps_key_in_store and not self.vault.is_usable

    @property
    def can_sign(self) -> bool:
        """Whether there is a key to encrypt signing secrets with, or one can be made."""
        return self.available and (self.vault.is_usable or self._keeps_key_in_store)

    @cached_property
    def _keeps_key_in_store(self) -> bool:
        info = self._store.info()  # SQLite looks for the file behind a link, each time
        return info.shared and info.file is None

    def check_keys(self) -> None:
        """Raise at start if a key is invalid, rather than in every call. Loads nothing if no key is
        given."""
        if self.available and (self.settings.secret_keys or os.environ.get(VARIABLE)):
            _ = self.vault

    @property
    def client(self) -> WebhookClient:
        """Created at first use, because aiohttp is slow to import."""
        if self._client is None:
            from mainspring.webhooks.transport import WebhookClient

            self._client = WebhookClient(self.allow)
        return self._client

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    def define(self, job_id: str, given: definition.Given) -> Webhook:
        return definition.define(job_id, given, self._require_extra().vault, self.allow)

    def change(self, job: Job, given: definition.Given) -> Webhook:
        return definition.change(job.id, _of(job), given, self._require_extra().vault, self.allow)

    def rotate_secret(
        self, job: Job, now: datetime, *, old_valid_for: Span = "24h", secret: str | None = None
    ) -> tuple[Webhook, str]:
        """The webhook with a new signing secret, and that secret, which is shown once.

        Requests are also signed with the former secret for the time given, so that receivers can
        change over.
        """
        webhook, fresh = _of(job), secret or new_signing_secret()
        until = now + duration(old_valid_for, what="old_valid_for")
        former = [
            SigningSecret(current.sealed, until) for current in webhook.signing[:1] if until > now
        ]
        signing = definition.sign_with(job.id, fresh, self.vault)
        return replace(webhook, signing=(signing, *former)), fresh

    def sends_same_requests(self, one: Job, other: Job) -> bool:
        """Whether both send the same requests with the same secret headers. Signing secrets are not
        compared: every job has its own."""
        if one.webhook is None or other.webhook is None:
            return one.webhook is other.webhook
        bare = [replace(_of(job), secret_headers={}, signing=()) for job in (one, other)]
        return bare[0] == bare[1] and self._decrypt_headers(one) == self._decrypt_headers(other)

    def replace_stored(self, draft: Job, stored: Job, *, own_secret: bool) -> Webhook:
        """The draft's webhook in place of the stored one. Equal secrets keep their stored text,
        because encrypting one again gives another text."""
        new, old = _of(draft), _of(stored)
        if self.sends_same_requests(draft, stored):
            new = replace(old, signing=new.signing)
        if own_secret and not self._same_signing(draft, stored):
            return new
        return replace(new, signing=old.signing or new.signing)

    def _same_signing(self, draft: Job, stored: Job) -> bool:
        texts = [
            [self._signing_text(job.id, signing) for signing in _of(job).signing[:1]]
            for job in (draft, stored)
        ]
        return texts[0] == texts[1]

    def reseal(self, job: Job) -> Job:
        """The job with every secret encrypted with the newest key."""
        webhook, opened = _of(job), self._decrypt_headers(job)
        origin = definition.origin_of(webhook.url)
        after = replace(
            webhook,
            secret_headers={
                name: self.vault.seal(text, job.id, f"the header {name.lower()}", origin)
                for name, text in opened.items()
            },
            signing=tuple(
                SigningSecret(
                    self.vault.seal(self._signing_text(job.id, signing), job.id, _SIGNING),
                    signing.until,
                )
                for signing in webhook.signing
            ),
        )
        return replace(job, webhook=after)

    def has_old_secrets(self, job: Job) -> bool:
        """Whether a secret of the job is encrypted with another key than the newest."""
        webhook = job.webhook
        if webhook is None:
            return False
        sealed = [
            *webhook.secret_headers.values(),
            *(signing.sealed for signing in webhook.signing),
        ]
        return any(map(self.vault.is_outdated, sealed))

    async def decrypt_with_store_key(self, job: Job) -> DecryptedWebhook:
        """As `decrypt`, also with the key that the store keeps. Must run on the engine's loop."""
        try:
            return self.decrypt(job)
        except SecretKeyMissing:
            await self.load_store_key(make=False, again=True)
            return self.decrypt(job)

    def decrypt(self, job: Job) -> DecryptedWebhook:
        """The job's webhook with decrypted secrets, computed once for a definition: decrypting
        alone took 20 of the 110 µs that a call costs beside aiohttp's part.
        """
        webhook = _of(job)
        known = self._decrypted.get(job.id)
        if known is None or (known.webhook is not webhook and known.webhook != webhook):
            signing = tuple(
                (signing_bytes(self._signing_text(job.id, signing_secret)), signing_secret.until)
                for signing_secret in webhook.signing
            )
            clear = self._decrypt_headers(job)
            known = DecryptedWebhook(
                webhook, RequestTemplate.of(webhook, clear), signing, SecretRedactor(clear.values())
            )
            self._decrypted.pop(job.id, None)
            if len(self._decrypted) >= MAX_DECRYPTED:
                del self._decrypted[next(iter(self._decrypted))]  # the oldest
            self._decrypted[job.id] = known
        return known

    def preview(
        self, job: Job, now: datetime, *, body: Any = None, run_id: str = ""
    ) -> PreparedRequest:
        """The signed request that the job would send now. It is not sent."""
        facts = AttemptFacts(
            job_id=job.id,
            run_id=run_id or f"{job.id}@dry-run",
            attempt=1,
            scheduled_at=job.next_run_at or now,
            now=now,
            body=body,
        )
        return self.decrypt(job).prepare(facts)

    def _require_extra(self) -> Webhooks:
        if not self.available:
            raise InvalidInput(
                f"webhooks need {' and '.join(_NEEDED)}: {install_advice('server')}",
                field="webhook",
            )
        return self

    def _decrypt_headers(self, job: Job) -> dict[str, str]:
        webhook = _of(job)
        origin = definition.origin_of(webhook.url)
        return {
            name: self.vault.open(sealed, job.id, f"the header {name.lower()}", origin)
            for name, sealed in webhook.secret_headers.items()
        }

    def _signing_text(self, job_id: str, one: SigningSecret) -> str:
        return self.vault.open(one.sealed, job_id, _SIGNING)


_SIGNING = "the signing secret"


def _of(job: Job) -> Webhook:
    if job.webhook is None:
        raise InvalidInput(
            f"job {job.id!r} runs the handler {job.handler!r}: it is not a webhook job",
            field="webhook",
        )
    return job.webhook


def _keys_of(store: Store) -> list[str]:
    """A key for a store that no other process can open: the key lives as long as the store."""
    if store.info().shared:
        return []
    return [_MEMORY_KEYS.setdefault(store, new_key())]
