"""What an endpoint answers, as far as it has come."""

from __future__ import annotations

__all__ = ["Heard"]


class Heard:
    """What came back so far: also of a call that is cut off, so much is known."""

    __slots__ = ("address", "body", "headers", "more", "reason", "status")

    def __init__(self) -> None:
        self.status: int | None = None
        self.reason = ""
        self.headers: list[tuple[str, str]] = []
        self.body = bytearray()
        self.more = False
        """Whether there was more: beyond what is read, or after the call was cut off."""
        self.address: str | None = None
