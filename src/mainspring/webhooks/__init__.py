"""The built-in handler `webhook`: a safe client, signed requests, templates without code.

    desk.py        what the scheduler asks of webhooks: define, change, rotate, preview
    define.py      what people write, checked; secrets sealed      headers.py templates.py
    secrets.py     the vault: AES-GCM, keys that can be changed
    render.py      the request of one attempt, signed (pure)
    address.py     which addresses may be called (pure)
    client.py      the connection: checked, bounded, never redirected
    handler.py     an attempt: send, read the answer, decide       echoes.py tracing.py

The core is installed without what this needs (aiohttp, cryptography): the extra is `server`.
"""

from mainspring.webhooks.headers import MASK
from mainspring.webhooks.request import Facts, Prepared, prepare
from mainspring.webhooks.settings import WebhookSettings
from mainspring.webhooks.vault import Vault, new_key, new_signing_secret

__all__ = [
    "MASK",
    "Facts",
    "Prepared",
    "Vault",
    "WebhookSettings",
    "new_key",
    "new_signing_secret",
    "prepare",
]
