"""Routes: who may use one, and what it returns, declared where the route is.

    router = api_router(prefix="/api/v1")

    @router.post("/jobs", status_code=201)
    @access("write")
    async def create_job(...) -> Reply[Job]: ...

A route without a declaration cannot be made, so no route is open or closed by accident.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from msgspec import Struct
from pydantic.alias_generators import to_camel
from starlette.types import Receive, Scope, Send

from mainspring.service.dependencies import COMPATIBILITY, DRY_RUN
from mainspring.service.schemas.documents import Document, Reply

Needed = Literal["open", "read", "write", "admin"]
F = TypeVar("F", bound=Callable[..., Any])


class Access(Struct, frozen=True):
    needed: Needed
    """The scope that a key must have. `open`: no key is needed, and nothing of jobs is shown."""
    is_change: bool
    """Whether the audit log has an entry of each request that is done."""
    works_without_store: bool = False
    """Whether a key that was read before is valid while the store is away."""


def access(
    needed: Needed, *, is_change: bool | None = None, works_without_store: bool = False
) -> Callable[[F], F]:
    """Declare who may use a route. A route that needs `read`, or none, changes nothing unless
    `is_change` says so; one that needs more changes something if its method is not GET."""

    def declare(endpoint: F) -> F:
        change = needed in ("write", "admin") if is_change is None else is_change
        declared = Access(needed, change, works_without_store)
        endpoint.access = declared  # type: ignore[attr-defined]
        return endpoint

    return declare


class CheckedRoute(APIRoute):
    """A route that runs only for requests that may use it."""

    access: Access

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        declared = getattr(endpoint, "access", None)
        if not isinstance(declared, Access):
            raise TypeError(f"{path} does not declare who may use it: decorate it with @access(…)")
        super().__init__(path, endpoint, **{**options, "response_model": None})
        self.access = declared
        self.documents = _documents_of(endpoint)
        """What it returns: with its own status, and for a dry run with 200."""
        self.takes_body = self.body_field is not None
        self.takes_dry_run = any(query.alias == DRY_RUN for query in self.dependant.query_params)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        admission = scope["app"].state.admission
        async with admission.admit(self, scope, receive) as admitted:
            await super().handle(scope, admitted, send)


def _documents_of(endpoint: Callable[..., Any]) -> list[type[Document]]:
    returned = get_type_hints(endpoint).get("return")
    kinds = [returned] if get_origin(returned) is Reply else get_args(returned)
    return [get_args(kind)[0] for kind in kinds if get_origin(kind) is Reply]


def api_router(**options: Any) -> APIRouter:
    """A router whose routes declare their access and have readable operation ids."""
    return APIRouter(
        route_class=CheckedRoute,
        generate_unique_id_function=operation_id,
        responses={"default": {"description": "A problem."}},  # openapi.py lists them by status
        **options,
    )


def operation_id(route: APIRoute) -> str:
    """`listJobs`; of a compatibility route `compatListJobs`."""
    return to_camel(f"compat_{route.name}" if COMPATIBILITY in route.tags else route.name)


def add_routes(app: FastAPI, *routers: APIRouter) -> None:
    """Let the application serve the routes of these routers. It shares them with others:
    `include_router` would build every route again for each application, which took 50 ms of CPU and
    half the time of the tests of the API."""
    for router in routers:
        for route in router.routes:
            if not isinstance(route, CheckedRoute):
                raise TypeError(f"{route} does not declare who may use it: see access.py")
        app.router.routes.extend(router.routes)
