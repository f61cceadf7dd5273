"""The dashboard and the HTTP API behind Django's own login and permissions.

A view calls the ASGI application once for each request, and waits for all of the response, so it
works the same on WSGI and on ASGI. The application runs on the scheduler's own event loop.
"""

from __future__ import annotations

import asyncio
import functools
from typing import Any

from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.urls import NoReverseMatch, reverse
from django.views.decorators.csrf import csrf_exempt

from mainspring.contrib.django.project_scheduler import project_scheduler

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_NOT_PASSED_ON = ("content-length", "cookie", "host", "transfer-encoding")
_ORIGINS = {"Origin", "Sec-Fetch-Site"}
"""One says which page has made the request. The application refuses those of other sites."""
_STREAMS = "api/v1/events"


@csrf_exempt  # the application checks the origin of each request, and takes no token
@transaction.non_atomic_requests  # the scheduler's loop writes, and would wait for the request
def dashboard(request: HttpRequest, path: str = "", **_: object) -> HttpResponseBase:
    """Staff with the permission `mainspring.view_dashboard` may look; with
    `mainspring.change_dashboard` too they may do everything. Superusers who are staff have both.
    Other arguments, of the path that the project includes this under, are ignored."""
    user = request.user
    if not user.is_authenticated and request.method == "GET" and not path.startswith("api/"):
        return redirect_to_login(request.get_full_path(), _login_page())  # else LOGIN_URL
    actions = ("view",) if request.method in SAFE_METHODS else ("view", "change")
    needed = [f"mainspring.{action}_dashboard" for action in actions]
    if not (user.is_staff and user.has_perms(needed)):
        raise PermissionDenied(f"this needs {' and '.join(needed)}, as staff")
    if "change" in actions and not request.headers.keys() & _ORIGINS:
        raise PermissionDenied("a change needs the header Origin, which browsers send")
    if path == _STREAMS:
        why = "event streams are not served here: one would hold a worker of the web server"
        return HttpResponse(f"{why}. `manage.py mainspring serve` has them.\n", status=501)
    return _call(request, path)


def _login_page() -> str | None:
    try:
        return str(reverse("admin:login"))
    except NoReverseMatch:
        return None


@functools.cache
def _application() -> Any:
    return project_scheduler().asgi(auth=None)


def _call(request: HttpRequest, path: str) -> HttpResponse:
    body, whole = request.body, request.path
    headers = {
        name.lower(): value
        for name, value in request.headers.items()
        if name.lower() not in _NOT_PASSED_ON
    }
    headers |= {"host": request.get_host(), "content-length": str(len(body))}
    headers["x-forwarded-proto"] = str(request.scheme)  # what SECURE_PROXY_SSL_HEADER says
    root = whole[: len(whole) - len(path) - 1]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.scheme,
        "path": whole,
        "root_path": root,
        "app_root_path": root,
        "query_string": request.META.get("QUERY_STRING", "").encode(),
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers.items()],
        "client": (request.META.get("REMOTE_ADDR"), 0),
        "state": {},
    }
    messages = [{"type": "http.request", "body": body}]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return messages.pop() if messages else await asyncio.Future()

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    project_scheduler().run_on_loop(lambda: _application()(scope, receive, send))
    start, *parts = sent
    response = HttpResponse(
        b"".join(part.get("body", b"") for part in parts), status=start["status"]
    )
    del response.headers["content-type"]
    for name, value in start["headers"]:
        response.headers[name.decode("latin-1")] = value.decode("latin-1")
    return response
