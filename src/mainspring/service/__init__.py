"""The HTTP service of a scheduler: the API, API keys, sessions, probes and metrics.

    server.py             runs the service: socket, uvicorn, signals
    connection_limits.py  limits connections that wait for a request
    app.py                makes the application; dependencies.py is what its routes share
    middleware.py         what holds for every request: host, origin, headers, the audit log
    access.py             routes: who may use one, declared where the route is
    admission.py          checks a request against that: key, scope, rate, body
    api/                  `/api/v1`, by subject with its documents, the probes and `/metrics`
    compat.py             nine operations of another scheduler's API, mapped onto `/api/v1`
    schemas/              documents that several share: the class of each is what is described and
                          what is sent
    problems.py           errors as RFC 9457 documents
    openapi.py            `/openapi.json`, and the page at `/docs`
    api_keys.py           API keys, as notes in the store
    sessions.py           people who signed in with a key, by a cookie
    idempotency.py        `Idempotency-Key`: a repeated request creates nothing new
    audit.py              records which key changed what
    metrics.py            the series of `/metrics`
    settings.py           from the command line, environment variables and `.env`
    pages/                the page at `/docs`

It needs the extra `server`.
"""

from __future__ import annotations

from importlib.util import find_spec

from mainspring.errors import InvalidInput, install_advice

_NEEDED = ("fastapi", "uvicorn", "pydantic_settings", "prometheus_client", "jinja2")


def require_server() -> None:
    """Raise `InvalidInput` with advice if the extra is not installed."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise InvalidInput(
            f"the HTTP service needs {', '.join(missing)}: {install_advice('server')}"
        )
