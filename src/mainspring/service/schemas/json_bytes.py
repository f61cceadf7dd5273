"""Documents as bytes of JSON."""

from __future__ import annotations

import json
from typing import Any

import msgspec

__all__ = ["written"]


def written(document: Any) -> bytes:
    """The standard library takes longer, but it escapes lone surrogates. A handler may name a file
    whose name is no UTF-8, and that must not take a list of runs from everybody."""
    try:
        return msgspec.json.encode(document)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(document), separators=(",", ":")).encode()
