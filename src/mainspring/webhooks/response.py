"""The response of an endpoint, as far as it has arrived."""

from __future__ import annotations


class PartialResponse:
    """Filled while a response arrives, so that a cancelled call keeps what it received."""

    __slots__ = ("address", "body", "headers", "more", "reason", "status")

    def __init__(self) -> None:
        self.status: int | None = None
        self.reason = ""
        self.headers: list[tuple[str, str]] = []
        self.body = bytearray()
        self.more = False
        """Whether the response is longer than what was read, or the call ended before its end."""
        self.address: str | None = None
