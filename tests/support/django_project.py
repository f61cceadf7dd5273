"""A small Django project in a folder, and programs that run in it, each in a process of its own:
a process has one Django."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

SETTINGS = """
SECRET_KEY = "secret"
DEBUG = True
ALLOWED_HOSTS = ["*"]
USE_TZ = True
STATIC_URL = "static/"
ROOT_URLCONF = "urls"
INSTALLED_APPS = [
    "django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes",
    "django.contrib.messages", "django.contrib.sessions", "mainspring.contrib.django", "shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [{
    "BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True,
    "OPTIONS": {"context_processors": [
        "django.template.context_processors.request",
        "django.contrib.auth.context_processors.auth",
        "django.contrib.messages.context_processors.messages",
    ]},
}]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db"}}
MAINSPRING = {"DATABASE": "default"}
"""

JOBS = """
from mainspring.contrib.django import job

@job
def ship(number: int) -> int:
    return number
"""


class DjangoProject:
    def __init__(self, folder: Path, *, settings: str = "", jobs: str = JOBS) -> None:
        self.folder = folder
        self.write("settings.py", SETTINGS + dedent(settings))
        self.write("urls.py", "urlpatterns = []")
        self.write("shop/__init__.py", "")
        self.write("shop/jobs.py", jobs)

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
        # Python would take the bytecode of a former text of the same second and length.
        shutil.rmtree(path.parent / "__pycache__", ignore_errors=True)

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run `python …` in the project."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.folder),
            "DJANGO_SETTINGS_MODULE": "settings",
            **variables,
        }
        if tree := os.environ.get("PYTHONPATH"):  # of the tests themselves
            environment["PYTHONPATH"] += os.pathsep + tree
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
        )

    def manage(self, *arguments: str, **variables: str) -> str:
        """What a command of `manage.py` prints. It must succeed."""
        done = self.run("-m", "django", *arguments, **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def execute(self, program: str, **variables: Any) -> str:
        """What a program prints that begins with `django.setup()`. It must succeed."""
        setup = "import django\ndjango.setup()\n"
        done = self.run("-c", setup + dedent(program), **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()
