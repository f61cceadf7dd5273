"""Makes the FastAPI application of the service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from mainspring import __version__
from mainspring.core.clock import Clock, SystemClock
from mainspring.scheduler.client import Client
from mainspring.service import compat, openapi
from mainspring.service.access import add_routes
from mainspring.service.admission import Admission
from mainspring.service.api import events, health, jobs, keys, runs, schedules
from mainspring.service.dependencies import Service
from mainspring.service.middleware import RequestChecks
from mainspring.service.problems import install_error_handlers
from mainspring.service.settings import ServiceSettings

_ABOUT = """Jobs that run on time, once, everywhere. The API is `/api/v1`. Times are ISO 8601 in
UTC; durations are milliseconds or texts such as `"30s"`. Lists have `items` and `nextCursor`.
Errors are problems of RFC 9457 with a `code` for programs. The operations tagged `compatibility`
(`/api/…` without `v1`) take and answer the documents of an earlier scheduler's HTTP API, so that
its clients need no change."""


def create_app(
    client: Client,
    settings: ServiceSettings | None = None,
    *,
    loopback: bool = False,
    without_keys: bool = False,
    clock: Clock | None = None,
) -> FastAPI:
    """The API of a client or a scheduler, which it starts and stops if that is not started yet.

    `loopback`: only this machine can connect, so requests to its own names need no key until there
    is one.
    `without_keys`: no key is needed, because the program that mounts the API guards it.
    `clock`: the time by which keys, sessions, rates and caches expire; the system's by default.
    """
    settings = settings or ServiceSettings.read()
    service = Service(
        client, settings, loopback=loopback, without_keys=without_keys, clock=clock or SystemClock()
    )
    app = FastAPI(
        title="Mainspring",
        version=__version__,
        description=_ABOUT,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,  # openapi.py has it
        redirect_slashes=False,  # behind a TLS proxy it would redirect to plain HTTP
        lifespan=_lifespan,
    )
    app.state.service = service
    app.state.admission = admission = Admission(service)
    app.router.default = admission.refuse_unknown
    install_error_handlers(app)
    parts = (jobs, runs, schedules, events, health, keys, openapi, compat)
    add_routes(app, jobs.firing, *(part.router for part in parts))
    app.add_middleware(RequestChecks, service=service, charge=admission.charge)
    app.openapi = lambda: openapi.description(app)  # type: ignore[method-assign]
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    service: Service = app.state.service
    if service.client.started:
        yield
        return
    async with service.client:
        yield
        service.draining.set()
        await service.audit.flush()
