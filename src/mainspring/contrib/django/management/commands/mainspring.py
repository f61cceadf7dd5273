"""`manage.py mainspring …`: the commands of Mainspring on the project's store."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import autoreload

from mainspring.cli.processes import PLACE, replace_process
from mainspring.cli.program import main

RELOAD = "--reload"
_ALREADY_READ = ("--settings", "--pythonpath")
"""Django takes these from anywhere in the command line."""


class Command(BaseCommand):
    help = (
        "Mainspring's commands, on the project's store: `mainspring worker`, `mainspring runs list`"
        " and so on. `mainspring worker --reload` starts again when the code changes. Without a"
        " command it lists them."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("words", nargs=argparse.REMAINDER, metavar="command …")

    def handle(self, *_: Any, words: list[str], **options: Any) -> None:
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        for option in _ALREADY_READ:
            parser.add_argument(option)
        parser.add_argument(RELOAD, action="store_true")
        chosen, words = parser.parse_known_args(words)
        os.environ["MAINSPRING_APP"] = "mainspring.contrib.django:scheduler"
        # A process that a supervisor keeps has a place: the supervisor watches.
        reloader = _Reloader() if chosen.reload and PLACE not in os.environ else None
        try:
            main(words)
        except SystemExit as end:
            if reloader is None or reloader.changed is None:
                if self._called_from_command_line:
                    raise
                if not end.code:
                    return
                raise CommandError("see the error above", returncode=int(end.code)) from None
            self.stderr.write(f"{reloader.changed} has changed: the worker starts again")
        replace_process(os.getcwd())


class _Reloader:
    """Watches the files of the program, as `runserver` does. When one changes and the project still
    loads, it sends SIGTERM, so that running work ends first, and `changed` is the file."""

    def __init__(self) -> None:
        self.changed: Path | None = None
        self._folder = os.getcwd()
        autoreload.file_changed.connect(self._on_change)
        watch = autoreload.get_reloader().run
        main_thread = threading.main_thread()
        threading.Thread(target=watch, args=[main_thread], daemon=True).start()

    def _on_change(self, file_path: Path, **_: Any) -> bool:
        """Returns whether the change is dealt with: Django would end the process at once."""
        at = sys.orig_argv.index("mainspring")
        check = [sys.executable, *sys.orig_argv[1:at], "check"]
        if self.changed is None and subprocess.run(check, cwd=self._folder).returncode == 0:
            self.changed = file_path
            os.kill(os.getpid(), signal.SIGTERM)
        return True
