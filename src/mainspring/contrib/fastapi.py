"""Mainspring in a FastAPI or Starlette application: lifespan, dependency, dashboard."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Generic, TypeVar

from fastapi import APIRouter, Request, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from mainspring.errors import InvalidInput
from mainspring.scheduler.client import Client

C = TypeVar("C", bound=Client)
Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class Mainspring(Generic[C]):
    """A scheduler or client in an application: `mainspring = Mainspring(scheduler)`.

    It is a dependency that gives the scheduler or client: `Depends(mainspring)`.
    """

    def __init__(self, client: C) -> None:
        self.client = client

    def __call__(self) -> C:
        return self.client

    def lifespan(self, own: Lifespan | None = None) -> Lifespan:
        """The lifespan of the application, around which its own one goes: that opens what handlers
        use before the scheduler starts, and closes it after the last handler has ended."""

        @asynccontextmanager
        async def lifespan(app: Any) -> AsyncIterator[Mapping[str, Any] | None]:
            if own is None:
                async with self.client:
                    yield None
            else:
                async with own(app) as state, self.client:
                    yield state

        return lifespan

    def router(self, prefix: str, *, dependencies: Sequence[Any], **settings: Any) -> APIRouter:
        """The dashboard and the HTTP API below a path, behind dependencies of the application:
        `app.include_router(mainspring.router("/jobs", dependencies=[Depends(require_admin)]))`.

        Whoever passes them may do everything; no API key is asked for. The settings are those of
        `Scheduler.asgi`.
        """
        if not dependencies:
            raise InvalidInput(
                "router needs a dependency that refuses those who may not enter: give"
                " dependencies=[Depends(…)], or mount scheduler.asgi(), which asks for an API key",
                field="dependencies",
            )
        app = self.client.asgi(auth=None, **settings)
        router = APIRouter(prefix=prefix, dependencies=list(dependencies), include_in_schema=False)

        @router.api_route("/{path:path}", methods=list(_METHODS))
        async def forward(request: Request, path: str) -> Response:
            return _Forwarded(app, path)

        return router


class _Forwarded(Response):
    """Another application's response to the request."""

    def __init__(self, app: ASGIApp, path: str) -> None:
        super().__init__()
        self._app = app
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The path stays whole; `root_path` says where the part of the mounted application begins.
        # Some servers leave the application's own root path out of the path.
        before, path = scope.get("root_path", ""), scope["path"]
        whole = path if path.startswith(before) else before + path
        mounted = {
            **scope,
            "path": whole,
            "app_root_path": scope.get("app_root_path", before),
            "root_path": whole[: len(whole) - len(self._path) - 1],
            "path_params": {},
        }
        await self._app(mounted, receive, send)
