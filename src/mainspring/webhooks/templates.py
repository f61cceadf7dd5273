"""Templates without code: `{{name}}` stands for one of five facts, and nothing else is there.

No expressions, no filters, no lookups: what a definition can make Mainspring say is decided by
this list alone. A name that is not on it is refused when the job is made.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from mainspring.errors import InvalidInput

__all__ = ["NAMES", "Template", "check", "tight"]

NAMES = ("timestamp", "scheduledAt", "jobId", "executionId", "attempt")

_MARK = re.compile(r"\{\{([^{}]{0,200})\}\}")
"""Nothing in it can match in two ways: with the spaces apart from the name, 15,000 of them held the
process for minutes."""


def check(value: Any, where: str) -> None:
    """Refuse unknown names anywhere in a text, or in the texts of a JSON value."""
    if isinstance(value, str):
        for name in map(str.strip, _MARK.findall(value)):
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
    return _MARK.sub(lambda found: f"{{{{{found[1].strip()}}}}}", text)


class Template(Struct, frozen=True):
    """A text taken apart at its names: `texts[0] names[0] texts[1] names[1] … texts[-1]`."""

    texts: tuple[str, ...]
    names: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> Template:
        """An unknown name (it was checked before) is text like any other."""
        texts, names, end = [], [], 0
        for found in _MARK.finditer(text):
            if (name := found[1].strip()) in NAMES:
                texts.append(text[end : found.start()])
                names.append(name)
                end = found.end()
        return cls((*texts, text[end:]), tuple(names))

    @classmethod
    def of_json(cls, value: Any) -> Template:
        """The JSON text of a value, with names in its texts; keys stay as they are."""
        edge = secrets.token_hex(16)  # stands in no text, and as it is in JSON
        marked = _marked(value, {name: f"{edge}{name}{edge}" for name in NAMES})
        parts = msgspec.json.encode(marked).decode().split(edge)
        return cls(tuple(parts[::2]), tuple(parts[1::2]))

    def filled(self, known: Mapping[str, str]) -> str:
        first, *others = self.texts
        for name, text in zip(self.names, others, strict=True):
            first += known[name] + text
        return first


def _marked(value: Any, known: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return Template.of(value).filled(known)
    if isinstance(value, dict):
        return {key: _marked(item, known) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_marked(item, known) for item in value]
    return value
