"""A number with its noun in messages: 1 run, 1,234 runs."""

from __future__ import annotations

__all__ = ["plural"]


def plural(count: float, word: str, words: str | None = None) -> str:
    """`words` is the plural where it is not the word with an s."""
    return f"{count:,} {word if count == 1 else words or word + 's'}"
