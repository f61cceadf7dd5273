"""Makes the routers of the API, and adds their routes to an application without building them
again.

`include_router` would build every route again for each application, at its first request: that took
50 ms of CPU, and half the time of the tests of the API.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, FastAPI

from mainspring.service.access import CheckedRoute
from mainspring.service.dependencies import check_query
from mainspring.service.openapi import operation_id

__all__ = ["add_routes", "api_router"]


def api_router(**options: Any) -> APIRouter:
    """A router whose routes refuse unknown query parameters and have readable operation ids."""
    return APIRouter(
        route_class=CheckedRoute,
        dependencies=[Depends(check_query)],
        generate_unique_id_function=operation_id,
        responses={"default": {"description": "A problem."}},  # openapi.py lists them by status
        **options,
    )


def add_routes(app: FastAPI, *routers: APIRouter) -> None:
    """Let the application answer at the routes of these routers. It shares them with others."""
    for router in routers:
        for route in router.routes:
            if not isinstance(route, CheckedRoute):
                raise TypeError(f"{route} does not declare who may use it: see access.py")
        app.router.routes.extend(router.routes)
