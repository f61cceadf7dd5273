"""The HTTP service over a scheduler: API, keys, probes, metrics.

    server.py       uvicorn, signals, the order in which things stop
    lobby.py        connections whose request has not come yet: how long, how many
    app.py          the application put together; core.py what its routes share
    guard.py        what every request must pass: host, origin, key, rate, body
    keys.py         API keys: made once, kept hashed, read by every instance
    settings.py     environment variables and `.env`
    bodies.py       what clients send, checked field by field (ids.py, spans.py), and together.py
                    what fields make beside each other; changes.py what becomes of it
    schemas/        the documents of `/api/v1`; documents.py has the forms of the compatibility page
    shapes.py       jobs, runs and executions as clients get them; words.py explains each field
    api_v1.py       the endpoints of `/api/v1`
    jobs.py runs.py planning.py stream.py observability.py key_routes.py reference.py
                    what is done, by subject, and the endpoints of the compatibility page
    openapi.py      the description at `/openapi.json`
    idempotency.py  a create that is sent again
    problems.py     errors as RFC 9457 documents
    metrics.py      what is counted; exposition.py writes it for Prometheus
    pages/          the page at `/docs`

It needs the extra `server`; `require_server()` says so where it is missing.
"""

from __future__ import annotations

from importlib.util import find_spec

from mainspring.errors import InvalidInput

__all__ = ["require_server"]

_NEEDED = ("fastapi", "uvicorn", "pydantic_settings", "prometheus_client")


def require_server() -> None:
    """Refuse with advice where the extra is not installed."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise InvalidInput(
            f"the HTTP service needs {', '.join(missing)}: pip install 'mainspring[server]'"
        )
