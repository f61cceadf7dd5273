"""The application put together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Depends, FastAPI

from mainspring import __version__
from mainspring.scheduler import Scheduler
from mainspring.service import openapi, problems
from mainspring.service.dependencies import Service
from mainspring.service.middleware import Guard
from mainspring.service.query_parameters import check_query
from mainspring.service.routes import docs, events, health, jobs, keys, runs, schedules, v1
from mainspring.service.settings import MountedSettings, ServiceSettings

__all__ = ["create_app", "mounted"]

_ABOUT = """Jobs that run on time, once, everywhere. The API is `/api/v1`. Times are ISO 8601 in
UTC; spans are milliseconds or texts such as `"30s"`. Lists have `items` and `nextCursor`. Errors
are problems of RFC 9457 with a `code` for programs. The operations tagged `compatibility` do the
same in the forms of an older page, for clients that were made from it."""


def create_app(
    scheduler: Scheduler,
    settings: ServiceSettings | None = None,
    *,
    loopback: bool = False,
    open: bool = False,
) -> FastAPI:
    """The API over a scheduler, which it starts and stops unless that is done already.

    `loopback`: only this machine can connect, so that who asks it by its own name needs no key
    until there is one.
    `open`: no key is needed at all, because the program that mounts it guards it.
    """
    settings = settings or ServiceSettings.read()
    service = Service(scheduler, settings, loopback=loopback, open=open)
    app = FastAPI(
        title="Mainspring",
        version=__version__,
        description=_ABOUT,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        redirect_slashes=False,  # it would name its host by plain HTTP, also behind a TLS proxy
        lifespan=_lifespan,
        generate_unique_id_function=openapi.operation_id,
        responses={"default": {"description": "A problem."}},  # told by status in openapi.py
    )
    app.state.service = service
    problems.install(app)
    parts = (v1, jobs, runs, schedules, events, health, keys, docs)
    for part in parts:
        app.include_router(part.router, dependencies=[Depends(check_query)])
    app.state.routes = [route for part in parts for route in part.router.routes]
    app.add_middleware(
        Guard,
        rules=service,
        keys=service.keys,
        settings=settings,
        clock=service.clock,
        answered=service.metrics.count_response,
    )
    app.openapi = lambda: openapi.description(app)  # type: ignore[method-assign]
    return app


def mounted(scheduler: Scheduler, settings: dict[str, Any], *, open: bool) -> FastAPI:
    """The API inside of another program, whose environment says nothing of ours."""
    return create_app(scheduler, MountedSettings.read(**settings), open=open)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    service: Service = app.state.service
    if service.scheduler.started:
        yield
        return
    async with service.scheduler:
        yield
        service.draining.set()
