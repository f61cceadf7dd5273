"""Settings for calling webhooks, checked when the scheduler is created."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from mainspring.core.durations import duration
from mainspring.core.policy import Span
from mainspring.errors import InvalidInput
from mainspring.webhooks.address_policy import AllowList

ALLOW_VARIABLE = "MAINSPRING_ALLOW_PRIVATE"
PER_HOST_VARIABLE = "MAINSPRING_PER_HOST"
CAP_VARIABLE = "MAINSPRING_RETRY_AFTER_CAP"

MAX_PER_HOST = 10_000


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
        found: dict[str, Any] = {"allow": [entry for entry in map(str.strip, allow) if entry]}
        if text := environ.get(PER_HOST_VARIABLE, "").strip():
            found["per_host"] = _per_host(text)
        if text := environ.get(CAP_VARIABLE, "").strip():
            found["retry_after_cap"] = duration(text, what=CAP_VARIABLE)
        return cls(**found)


def _per_host(text: str) -> int:
    number = int(text) if re.fullmatch(r"[0-9]{1,9}", text) else 0
    if not 1 <= number <= MAX_PER_HOST:
        raise InvalidInput(f"{PER_HOST_VARIABLE} is 1 to {MAX_PER_HOST}, not {text!r}")
    return number
