"""Finds the line of each key in a TOML text, for error messages: `tomllib` does not keep them."""

from __future__ import annotations

import re

_PART = r"(?:[A-Za-z0-9_-]+|\"(?:[^\"\\]|\\.)*\"|'[^']*')"
_KEY = rf"{_PART}(?:\s*\.\s*{_PART})*"
_TABLE = re.compile(rf"\s*\[\[?\s*({_KEY})\s*\]\]?")
_VALUE = re.compile(rf"\s*({_KEY})\s*=(.*)")
_QUOTES = re.compile(r'"""|\'\'\'|"(?:[^"\\]|\\.)*"|\'[^\']*\'|#.*')


def find_lines(text: str) -> dict[tuple[str, ...], int]:
    """The line number of each table and each key that begins a line, by its full path. A key inside
    an inline table or an array has the line of the key that holds it. The text is valid TOML."""
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    inside: str | None = None  # of a text over several lines: the quotes that end it
    depth = 0  # of brackets that are open over several lines
    for number, line in enumerate(text.splitlines(), 1):
        rest = line
        if inside is None and depth == 0:
            if found := _TABLE.match(line):
                table = _parts(found[1])
                lines.setdefault(table, number)
                continue
            found = _VALUE.match(line)
            if found is None:
                continue
            lines.setdefault((*table, *_parts(found[1])), number)
            rest = found[2]
        inside, depth = _after(rest, inside, depth)
    return lines


def _after(rest: str, inside: str | None, depth: int) -> tuple[str | None, int]:
    """What is still open at the end of a line."""
    while True:
        if inside is not None:
            _, end, rest = rest.partition(inside)
            if not end:
                return inside, depth
            inside = None
        found = _QUOTES.search(rest)
        plain = rest if found is None else rest[: found.start()]
        depth += plain.count("[") + plain.count("{") - plain.count("]") - plain.count("}")
        if found is None or found[0].startswith("#"):
            return None, max(depth, 0)
        rest = rest[found.end() :]
        if found[0] in ('"""', "'''"):
            inside = found[0]


def _parts(key: str) -> tuple[str, ...]:
    return tuple(one.strip("\"'") for one in re.findall(_PART, key))
