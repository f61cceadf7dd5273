"""The page that asks for an API key. A script sends the key to the API, which answers with the
cookie of a session."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from mainspring.dashboard.pages import PageRoute, render
from mainspring.service.access import access

__all__ = ["router"]

router = APIRouter(include_in_schema=False, route_class=PageRoute)


@router.get("/sign-in")
@access("open")
async def sign_in(request: Request) -> Response:
    return render(request, "sign_in.html", page="sign-in", title="Sign in")
