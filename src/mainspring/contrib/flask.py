"""Mainspring in a Flask application: an extension, its commands, and the application's context
around each handler."""

from __future__ import annotations

import os
from typing import Any

import click
from flask import Flask
from flask.cli import ScriptInfo
from flask.ctx import AppContext

from mainspring.core.context import RunContext
from mainspring.errors import InvalidState
from mainspring.scheduler import Scheduler

_apps: list[Flask] = []
"""The application of this process: the one that an extension was given last."""


class Mainspring(Scheduler):
    """A scheduler as an extension: `mainspring = Mainspring("sqlite:///jobs.db")`, and in the
    application's factory `mainspring.init_app(app)`.

    Takes the options of `Scheduler`. Handlers run inside the application's context; an `around` of
    yours replaces that, and enters `app_context(ctx)` itself. In a web process it opens at its
    first use, after a fork, and only enqueues: `flask mainspring worker` runs the jobs.
    """

    opens_itself = True

    def __init__(self, *store: Any, app: Flask | None = None, **options: Any) -> None:
        super().__init__(*store, **{"around": app_context, **options})
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Add the extension and the command `flask mainspring` to an application."""
        if _apps and _apps[-1].extensions.get("mainspring", self) is not self:
            raise InvalidState(
                f"the application {_apps[-1].name!r} of this process has another Mainspring"
                " extension: make one, in a module of its own, and give it to init_app"
            )
        app.extensions["mainspring"] = self
        app.cli.add_command(_command)
        _apps[:] = [app]


def app_context(ctx: RunContext) -> AppContext:
    """The context of the application, for `around`."""
    return _application().app_context()


def scheduler() -> Scheduler:
    """The extension of the application that `FLASK_APP` names, as `mainspring worker` takes it."""
    extension = _application().extensions.get("mainspring")
    if not isinstance(extension, Scheduler):
        raise InvalidState(
            f"the application {_application().name!r} has no Mainspring extension: call"
            " mainspring.init_app(app) where it is made"
        )
    return extension


def _application() -> Flask:
    if not _apps:  # a process that has only imported the module of its handler
        _apps[:] = [ScriptInfo(app_import_path=os.environ.get("FLASK_APP")).load_app()]
    return _apps[-1]


@click.command(
    "mainspring",
    help="Mainspring's commands, on the application's scheduler: `flask mainspring worker`.",
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def _command(context: click.Context, words: tuple[str, ...]) -> None:
    from mainspring.cli.program import main

    info = context.ensure_object(ScriptInfo)
    _apps[:] = [info.load_app()]
    if info.app_import_path is not None:  # `flask --app …`; other processes find it there
        os.environ["FLASK_APP"] = info.app_import_path
    os.environ["MAINSPRING_APP"] = f"{__name__}:{scheduler.__name__}"
    main(words)
