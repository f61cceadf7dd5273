"""The parts of a job that stores keep as JSON, read back: the same few, time and again."""

from __future__ import annotations

import json
from functools import lru_cache

import msgspec

from mainspring import schedules
from mainspring.model import Webhook
from mainspring.policy import Policy
from mainspring.schedules import Schedule

__all__ = ["read_policy", "read_schedule", "read_webhook"]


@lru_cache(maxsize=4096)
def read_schedule(text: str) -> Schedule:
    return schedules.from_dict(json.loads(text))


@lru_cache(maxsize=4096)
def read_policy(text: str) -> Policy:
    return Policy.from_dict(json.loads(text))


read_webhook = lru_cache(maxsize=4096)(msgspec.json.Decoder(Webhook).decode)
