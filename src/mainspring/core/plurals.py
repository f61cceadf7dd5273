"""Formats counts with their nouns (`2 runs`) and shortened lists (`a, b and 3 more`)."""

from __future__ import annotations

from collections.abc import Sequence


def plural(count: float, word: str, words: str | None = None) -> str:
    """`1 run`, `1,234 runs`. `words` is the plural where it is not the word with an s."""
    return f"{count:,} {word if count == 1 else words or word + 's'}"


def list_some(names: Sequence[str], most: int) -> str:
    """The first names, and how many there are besides: `a, b, c and 2 more`."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")
