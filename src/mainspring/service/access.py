"""Who may use a route: declared where the route is declared.

    @router.post("/jobs")
    @access("write")
    async def create_job(...): ...

A route without a declaration cannot be made, so no route is open or closed by accident.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from fastapi.routing import APIRoute
from msgspec import Struct
from starlette.types import Receive, Scope, Send

Needed = Literal["open", "read", "write", "admin"]
F = TypeVar("F", bound=Callable[..., Any])

DRY_RUN = "dryRun"


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
        super().__init__(path, endpoint, **options)
        self.access = declared
        self.takes_body = self.body_field is not None
        self.takes_dry_run = any(one.alias == DRY_RUN for one in self.dependant.query_params)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        admission = scope["app"].state.admission
        async with admission.admit(self, scope, receive) as admitted:
            await super().handle(scope, admitted, send)
