"""The app of Django: finds `jobs.py` and `tasks.py` of each installed app, registers the checks,
and follows requests, test databases and overridden settings."""

from __future__ import annotations

import importlib
from typing import Any

from django.apps import AppConfig, apps
from django.conf import settings
from django.core import checks
from django.core.signals import request_started, setting_changed
from django.db.backends.signals import connection_created
from django.utils.module_loading import autodiscover_modules, module_has_submodule

from mainspring.contrib.django import scheduler
from mainspring.errors import JobExists


class MainspringConfig(AppConfig):
    name = "mainspring.contrib.django"
    label = "mainspring"
    verbose_name = "Mainspring"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        for app in apps.get_app_configs():
            if module_has_submodule(app.module, "jobs"):
                _import_jobs(app)
        if settings.is_overridden("TASKS"):  # a backend in it may be a subclass of Mainspring's
            autodiscover_modules("tasks")
        scheduler.import_options()
        checks.register(_mistakes, "mainspring")
        request_started.connect(_open_before_transactions)
        connection_created.connect(_close_for_other_databases)
        setting_changed.connect(_follow_settings)


def _import_jobs(app: AppConfig) -> None:
    """Import the jobs of an app. A job that another app has too is a mistake: the checks show it,
    and the scheduler does not start."""
    try:
        importlib.import_module(f"{app.name}.jobs")
    except JobExists as error:
        hint = "Give one of them another id: @job(id='…')."
        scheduler.mistakes.append(checks.Error(str(error), hint, app.label, "mainspring.E005"))


def _mistakes(**_: Any) -> list[checks.Error]:
    return list(scheduler.mistakes)


def _open_before_transactions(**_: Any) -> None:
    """Open a store on SQLite before the first request of a process begins a transaction: that may
    hold the file's lock, and opening needs it."""
    scheduler.open_before_transactions()


def _close_for_other_databases(connection: Any, **_: Any) -> None:
    """Close the store's connections before Django makes, copies or drops a test database: the
    connection for that has no database."""
    if connection.alias == "__no_db__":
        scheduler.close()


def _follow_settings(setting: str, **_: Any) -> None:
    """Close the store when a test overrides what names it; the next use opens the other one."""
    if setting in ("MAINSPRING", "DATABASES"):
        scheduler.close()
