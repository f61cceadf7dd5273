"""How this process calls webhooks: one value, checked when the scheduler is made."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from mainspring.durations import duration
from mainspring.errors import InvalidInput
from mainspring.policy import Span
from mainspring.webhooks.address import AllowList

__all__ = ["ALLOW_VARIABLE", "WebhookSettings"]

ALLOW_VARIABLE = "MAINSPRING_ALLOW_PRIVATE"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    """`allow`: hosts, addresses and CIDR ranges that webhooks may reach although they are not of
    the public internet. `per_host`: calls to one host at once, from this process.
    `retry_after_cap`: the longest wait that an endpoint may ask for. `secret_keys`: keys for
    secrets, the newest first, beside those of the environment."""

    allow: Iterable[str] = ()
    per_host: int = 50
    retry_after_cap: Span = timedelta(hours=1)
    secret_keys: Iterable[str] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        for name in ("allow", "secret_keys"):
            given = getattr(self, name)
            object.__setattr__(self, name, (given,) if isinstance(given, str) else tuple(given))
        if isinstance(self.per_host, bool) or not isinstance(self.per_host, int):
            raise InvalidInput(f"per_host is a whole number, not {self.per_host!r}")
        if not 1 <= self.per_host <= 10_000:
            raise InvalidInput(f"per_host is 1 to 10000, not {self.per_host!r}")
        cap = duration(self.retry_after_cap, what="retry_after_cap")
        object.__setattr__(self, "retry_after_cap", cap)
        AllowList.of(self.allow)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> WebhookSettings:
        """What a scheduler uses that is given none: MAINSPRING_ALLOW_PRIVATE, with commas."""
        environ = os.environ if environ is None else environ
        allow = environ.get(ALLOW_VARIABLE, "").split(",")
        return cls(allow=[entry for entry in map(str.strip, allow) if entry])
