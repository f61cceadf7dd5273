"""Makes the application that people and programs use: the HTTP API and the dashboard."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from mainspring.core.clock import Clock
from mainspring.dashboard import assets, pages
from mainspring.dashboard.forecast_cache import ForecastCache
from mainspring.dashboard.views import (
    dead_letters,
    job,
    job_form,
    jobs,
    keys,
    load,
    overview,
    run,
    runs,
    sign_in,
    timeline,
    workers,
)
from mainspring.scheduler.client import Client
from mainspring.service import app as service_app
from mainspring.service.router import add_routes
from mainspring.service.settings import MountedSettings, ServiceSettings

__all__ = ["create_app", "create_mounted_app"]

VIEWS = (
    overview,
    jobs,
    job_form,
    job,
    runs,
    run,
    timeline,
    load,
    dead_letters,
    workers,
    keys,
    sign_in,
)


def create_app(
    client: Client,
    settings: ServiceSettings | None = None,
    *,
    loopback: bool = False,
    without_keys: bool = False,
    clock: Clock | None = None,
) -> FastAPI:
    """The API of a client or a scheduler, with the dashboard at `/`. See `service.app.create_app`
    for the options."""
    app = service_app.create_app(
        client, settings, loopback=loopback, without_keys=without_keys, clock=clock
    )
    add_routes(app, *(view.router for view in VIEWS), assets.router)
    app.state.service.error_page = pages.error_page
    app.state.forecasts = ForecastCache(app.state.service)
    return app


def create_mounted_app(client: Client, settings: dict[str, Any], *, without_keys: bool) -> FastAPI:
    """The API and the dashboard inside another program. Environment variables are not read: they
    are the program's."""
    return create_app(client, MountedSettings.read(**settings), without_keys=without_keys)
