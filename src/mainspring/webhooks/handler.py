"""An attempt of a webhook: make the request, read the answer, decide."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from mainspring.clock import Clock
from mainspring.context import RunContext
from mainspring.handlers import Handler
from mainspring.webhooks.define import check_body
from mainspring.webhooks.desk import HANDLER, Webhooks

__all__ = ["WebhookHandler"]

Pause = Callable[[str], Awaitable[object]]


class WebhookHandler(Handler):
    """The handler `webhook`, built in. A run's payload, where there is one, is its body."""

    def __init__(self, webhooks: Webhooks, clock: Clock, pause: Pause) -> None:
        super().__init__(HANDLER, self.send)
        self._webhooks = webhooks
        self._clock = clock
        self._pause = pause

    def check(self, payload: Any) -> None:
        check_body(payload)

    async def send(self, ctx: RunContext) -> dict[str, Any]:
        raise NotImplementedError
