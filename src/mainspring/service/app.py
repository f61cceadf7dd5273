"""The application put together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.openapi.utils import get_openapi

from mainspring import __version__
from mainspring.scheduler import Scheduler
from mainspring.service import (
    documents,
    jobs,
    key_routes,
    observability,
    planning,
    problems,
    reference,
    runs,
    stream,
    words,
)
from mainspring.service.core import Service
from mainspring.service.guard import Guard
from mainspring.service.query import check_query
from mainspring.service.settings import MountedSettings, ServiceSettings

__all__ = ["create_app", "mounted"]

_ABOUT = """Jobs that run on time, once, everywhere. Times are ISO 8601 in UTC; spans are
milliseconds or texts such as `"30s"`. Errors carry `success: false`, one message to act on in
`error`, and the fields of RFC 9457."""


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
        responses={
            "default": {
                "description": "What went wrong, and what to do about it.",
                "content": {"application/problem+json": {"schema": _PROBLEM}},
            }
        },
    )
    app.state.service = service
    problems.install(app)
    for room in (jobs, runs, planning, stream, observability, key_routes, reference):
        app.include_router(room.router, dependencies=[Depends(check_query)])
    app.add_middleware(
        Guard,
        rules=service,
        keys=service.keys,
        settings=settings,
        clock=service.clock,
        answered=service.metrics.answered,
    )
    app.openapi = lambda: _described(app)  # type: ignore[method-assign]
    return app


def mounted(scheduler: Scheduler, settings: dict[str, Any], *, open: bool) -> FastAPI:
    """The API inside of another program, whose environment says nothing of ours."""
    return create_app(scheduler, MountedSettings.read(**settings), open=open)


_PROBLEM = {"$ref": "#/components/schemas/ProblemDocument"}


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    service: Service = app.state.service
    if service.scheduler.started:
        yield
        return
    async with service.scheduler:
        yield
        service.draining.set()


def _described(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        made = get_openapi(
            title=app.title,
            version=app.version,
            description=app.description,
            routes=app.routes,
            openapi_version="3.1.0",
        )
        parts = made.setdefault("components", {})
        parts.setdefault("schemas", {})["ProblemDocument"] = (
            documents.ProblemDocument.model_json_schema(
                ref_template="#/components/schemas/{model}", by_alias=True
            )
        )
        hoisted = parts["schemas"]["ProblemDocument"].pop("$defs", {})
        parts["schemas"] |= hoisted
        words.describe(parts["schemas"])
        parts["securitySchemes"] = {
            "key": {"type": "http", "scheme": "bearer", "description": "`mainspring keys create`"}
        }
        made["security"] = [{"key": []}, {}]
        app.openapi_schema = made
    return app.openapi_schema
