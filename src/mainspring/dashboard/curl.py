"""Makes curl commands that repeat a run. Secrets are stored masked, so the commands contain the
mask."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from shlex import quote
from typing import Any

__all__ = ["header_pairs", "request_command", "trigger_command"]

_SET_BY_CURL = frozenset({"host", "content-length", "connection", "accept-encoding"})
"""Headers that curl sets by itself."""

LARGEST_BODY = 32 * 1024
"""Characters of a body that are written into a command."""


def request_command(request: Mapping[str, Any]) -> str:
    """Sends the request of a webhook's attempt again, as far as it was kept."""
    lines = [
        # -g: brackets and braces in a URL are no patterns
        f"curl -g -X {quote(str(request.get('method', 'POST')))} {quote(str(request['url']))}"
    ]
    for name, value in header_pairs(request.get("headers")):
        if name.lower() not in _SET_BY_CURL:
            lines.append(f"-H {quote(f'{name}: {value}')}")
    body = str(request.get("body") or "")
    if request.get("encoding") == "base64":
        lines.append("--data-binary @-")
        return f"echo {quote(body)} | base64 -d | " + _join_lines(lines)
    if body:
        lines.append(f"--data-raw {quote(body)}")
    return _join_lines(lines)


def trigger_command(service: str, job_id: str, payload: Any, *, with_key: bool) -> str:
    """Runs the job again with this payload, through the HTTP API of this service."""
    lines = [f"curl -X POST {quote(f'{service}/api/v1/jobs/{job_id}/trigger')}"]
    if with_key:
        lines.append('-H "Authorization: Bearer $MAINSPRING_API_KEY"')
    body = json.dumps({} if payload is None else {"payload": payload}, ensure_ascii=False)
    lines.append("-H 'Content-Type: application/json'")
    if len(body) > LARGEST_BODY:
        lines.append("--data-binary @payload.json")
    else:
        lines.append(f"--data-raw {quote(body)}")
    return _join_lines(lines)


def header_pairs(headers: Any) -> list[tuple[str, str]]:
    """Headers as pairs: they are kept as a mapping, or as a list where a name may occur twice."""
    pairs: Iterable[Any] = headers.items() if isinstance(headers, Mapping) else headers or ()
    return [(str(name), str(value)) for name, value in pairs]


def _join_lines(lines: list[str]) -> str:
    return " \\\n  ".join(lines)
