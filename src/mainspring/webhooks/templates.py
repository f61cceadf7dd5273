"""Templates: `{{name}}` is replaced by one of five facts of an attempt.

There are no expressions, filters or lookups, so a definition cannot read anything else. A name that
is not in `NAMES` is refused when the job is defined.
"""

from __future__ import annotations

import difflib
import re
import secrets
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from mainspring.errors import InvalidInput

NAMES = ("timestamp", "scheduledAt", "jobId", "executionId", "attempt")

_MARK = re.compile(r"\{\{([^{}]{0,200})\}\}")
"""The pattern is unambiguous, so it cannot backtrack: one that matched spaces separately took
minutes for 15,000 of them."""


def check(value: Any, where: str) -> None:
    """Refuse unknown names anywhere in a text, or in the texts of a JSON value."""
    if isinstance(value, str):
        for name in map(str.strip, _MARK.findall(value)):
            if name not in NAMES:
                known = ", ".join(f"{{{{{known}}}}}" for known in NAMES)
                near = difflib.get_close_matches(name, NAMES, n=1)
                advice = f" (did you mean {{{{{near[0]}}}}}?)" if near else ""
                raise InvalidInput(
                    f"{where} has {{{{{name}}}}}, which is not a template name{advice}: use {known}"
                )
    elif isinstance(value, dict):
        for item in value.values():
            check(item, where)
    elif isinstance(value, list | tuple):
        for item in value:
            check(item, where)


def strip_spaces(text: str) -> str:
    """The text without spaces inside `{{ }}`, for URLs, which cannot contain spaces."""
    return _MARK.sub(lambda found: f"{{{{{found[1].strip()}}}}}", text)


class Template(Struct, frozen=True):
    """A text split at its names: `texts[0] names[0] texts[1] names[1] … texts[-1]`."""

    texts: tuple[str, ...]
    names: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> Template:
        """Split a text. Unknown names, which `check` refuses, stay as text."""
        texts, names, end = [], [], 0
        for found in _MARK.finditer(text):
            if (name := found[1].strip()) in NAMES:
                texts.append(text[end : found.start()])
                names.append(name)
                end = found.end()
        return cls((*texts, text[end:]), tuple(names))

    @classmethod
    def of_json(cls, value: Any) -> Template:
        """Split the JSON text of a value. Names in its strings are replaced, names in its keys are
        not."""
        edge = secrets.token_hex(16)  # occurs in no text, and JSON does not escape it
        marked = _mark_names(value, {name: f"{edge}{name}{edge}" for name in NAMES})
        parts = msgspec.json.encode(marked).decode().split(edge)
        return cls(tuple(parts[::2]), tuple(parts[1::2]))

    def fill(self, known: Mapping[str, str]) -> str:
        first, *others = self.texts
        for name, text in zip(self.names, others, strict=True):
            first += known[name] + text
        return first


def _mark_names(value: Any, known: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return Template.of(value).fill(known)
    if isinstance(value, dict):
        return {key: _mark_names(item, known) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mark_names(item, known) for item in value]
    return value
