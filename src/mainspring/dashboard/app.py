"""Makes the application that people and programs use: the HTTP API and the dashboard."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from mainspring.core.clock import Clock
from mainspring.dashboard import pages
from mainspring.dashboard.views import (
    dead_letters,
    job_form,
    jobs,
    keys,
    load,
    overview,
    runs,
    timeline,
)
from mainspring.dashboard.views.load import ForecastCache
from mainspring.scheduler.client import Client
from mainspring.service import app as service_app
from mainspring.service.access import add_routes
from mainspring.service.settings import MountedSettings, ServiceSettings

VIEWS = (overview, jobs, job_form, runs, timeline, load, dead_letters, keys)


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
    add_routes(app, *(view.router for view in VIEWS), pages.assets_router)
    app.state.service.error_page = pages.error_page
    app.state.forecasts = ForecastCache(app.state.service)
    return app


def create_mounted_app(client: Client, settings: dict[str, Any], *, without_keys: bool) -> FastAPI:
    """The API and the dashboard inside another program. Environment variables are not read: they
    are the program's."""
    return create_app(client, MountedSettings.read(**settings), without_keys=without_keys)
