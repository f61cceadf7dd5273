"""The built-in handler `webhook`: it calls URLs, signs requests and protects internal addresses.

    service.py         define, change, rotate and preview webhooks for the scheduler
    definition.py      checks what a user writes, and encrypts its secrets
    request.py         builds and signs the request of one attempt (pure)
    transport.py       sends it over a checked connection and reads the response
    handler.py         runs an attempt: send, read, decide the outcome
    vault.py           encrypts secrets at rest
    address_policy.py  decides which addresses may be called (pure)
    redaction.py       masks secrets that a response echoes

It needs aiohttp and cryptography, which the extra `server` installs.
"""

from mainspring.webhooks.redaction import MASK
from mainspring.webhooks.request import AttemptFacts, PreparedRequest, prepare
from mainspring.webhooks.service import WebhookSettings
from mainspring.webhooks.vault import Vault, new_key, new_signing_secret

__all__ = [
    "MASK",
    "AttemptFacts",
    "PreparedRequest",
    "Vault",
    "WebhookSettings",
    "new_key",
    "new_signing_secret",
    "prepare",
]
