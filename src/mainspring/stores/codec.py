"""The parts of a job that stores keep as JSON, read back: the same few, time and again."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TypeVar

import msgspec

from mainspring.core import schedules
from mainspring.core.model import Webhook
from mainspring.core.policy import Policy
from mainspring.core.schedules import Schedule

__all__ = ["read_policy", "read_schedule", "read_webhook"]

LONGEST_KEPT = 4096
"""Characters. A webhook's body may have 256 KiB, and each edit makes another text: 4,096 of those
would be two gigabytes."""

T = TypeVar("T")


def _kept(read: Callable[[str], T]) -> Callable[[str], T]:
    """What was read of the last texts, unless they are long."""
    kept = lru_cache(maxsize=4096)(read)

    @wraps(read)
    def reading(text: str) -> T:
        return (kept if len(text) <= LONGEST_KEPT else read)(text)

    return reading


@_kept
def read_schedule(text: str) -> Schedule:
    return schedules.from_dict(json.loads(text))


@_kept
def read_policy(text: str) -> Policy:
    return Policy.from_dict(json.loads(text))


_webhook = msgspec.json.Decoder(Webhook)


@_kept
def read_webhook(text: str) -> Webhook:
    return _webhook.decode(text)
