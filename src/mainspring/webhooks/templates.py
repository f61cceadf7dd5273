"""Templates without code: `{{name}}` stands for one of five facts, and nothing else is there.

No expressions, no filters, no lookups: what a definition can make Mainspring say is decided by
this list alone. A name that is not on it is refused when the job is made.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from mainspring.errors import InvalidInput

__all__ = ["NAMES", "check", "fill", "fill_text", "tight"]

NAMES = ("timestamp", "scheduledAt", "jobId", "executionId", "attempt")

_MARK = re.compile(r"\{\{\s*([^{}]{0,100}?)\s*\}\}")

Quote = Callable[[str], str]


def check(value: Any, where: str) -> None:
    """Refuse unknown names anywhere in a text, or in the texts of a JSON value."""
    if isinstance(value, str):
        for name in _MARK.findall(value):
            if name not in NAMES:
                known = ", ".join(f"{{{{{known}}}}}" for known in NAMES)
                raise InvalidInput(
                    f"{where} has {{{{{name}}}}}, which stands for nothing; known are {known}"
                )
    elif isinstance(value, dict):
        for item in value.values():
            check(item, where)
    elif isinstance(value, list | tuple):
        for item in value:
            check(item, where)


def tight(text: str) -> str:
    """The text with no spaces inside its marks: a URL has none."""
    return _MARK.sub(r"{{\1}}", text)


def fill_text(text: str, facts: Mapping[str, str], quote: Quote | None = None) -> str:
    """The text with its names filled in; an unknown one (it was checked before) stays."""
    if "{{" not in text:
        return text

    def filled(found: re.Match[str]) -> str:
        if found[1] not in NAMES:
            return found[0]
        fact = facts[found[1]]
        return fact if quote is None else quote(fact)

    return _MARK.sub(filled, text)


def fill(value: Any, facts: Mapping[str, str]) -> Any:
    """A JSON value with the names in its texts filled in; keys stay as they are."""
    if isinstance(value, str):
        return fill_text(value, facts)
    if isinstance(value, dict):
        return {key: fill(item, facts) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [fill(item, facts) for item in value]
    return value
