"""Which definitions the stores cache after reading them."""

from __future__ import annotations

import msgspec

from mainspring.core.model import Webhook
from mainspring.stores.codec import read_webhook


def text(body: str) -> str:
    return msgspec.json.encode(Webhook(url="https://example.com/", body=body)).decode()


def test_a_short_definition_is_parsed_once() -> None:
    assert read_webhook(text("short")) is read_webhook(text("short"))


def test_a_long_definition_is_not_cached() -> None:
    """Each edit of a large body makes another: thousands of them would fill the memory."""
    first, second = read_webhook(text("x" * 100_000)), read_webhook(text("x" * 100_000))
    assert first == second
    assert first is not second
