"""The examples of the pages on web frameworks answer requests and enqueue."""

from __future__ import annotations

import shutil
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

from mainspring import Client
from tests.support.django_project import DjangoProject
from tests.support.doc_examples import DOCS, blocks

PAGES = [
    DOCS / "how-to" / f"{name}.md"
    for name in ("use-in-a-web-application", "use-with-fastapi", "use-with-flask")
]

STORE_JOBS = """
from jobs import scheduler

with scheduler.blocking:
    pass
"""
FASTAPI = """
import sys
from importlib import import_module
from starlette.testclient import TestClient

with TestClient(import_module(sys.argv[1]).app) as web:
    assert web.post("/orders/1").status_code == 200
    assert web.post("/orders/1").json()["run"]
"""
DASHBOARD = """
from starlette.testclient import TestClient
from fastapi_dashboard import app

with TestClient(app) as web:
    assert web.get("/jobs/").status_code == 403
    assert "send_email" in web.get("/jobs/jobs", headers={"x-admin": "let-me-in"}).text
"""
EXTENSION = """
from flask_extension import create_app, mainspring

answer = create_app().test_client().post("/orders/1")
assert mainspring.blocking.get_run(answer.json["run"]).job_id == "send_email"
"""
FORKED = """
import os

def fork_twice(request):
    '''As a server that loads the application before it forks.'''
    children = []
    for number in (1, 2):
        if (child := os.fork()) == 0:
            try:
                request(number)
            except BaseException as error:
                print(repr(error), flush=True)
                os._exit(1)
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
"""
FLASK = """
from flask_app import app

def request(number):
    answer = app.test_client().post(f"/orders/{number}")
    assert answer.status_code == 200 and answer.json["run"], answer.text

fork_twice(request)
"""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the pages, and a store that has their jobs."""
    folder = tmp_path_factory.mktemp("pages")
    for block in chain.from_iterable(map(blocks, PAGES)):
        if block.kind == "framework" and block.title is not None:
            (folder / block.title).write_text(block.text)
    run(folder, STORE_JOBS)
    return folder


@pytest.fixture
def folder(prepared: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(prepared, tmp_path / "app"))


def run(folder: Path, script: str, *arguments: str) -> str:
    (folder / "script.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "script.py", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def runs_in(folder: Path) -> int:
    with Client(f"sqlite:///{folder}/shop.db").blocking as client:
        return len(client.list_runs(job="send_email").items)


@pytest.mark.parametrize(("module", "runs"), [("fastapi_app", 1), ("fastapi_with_workers", 2)])
def test_a_web_process_enqueues_or_runs_its_own_jobs(folder: Path, module: str, runs: int) -> None:
    run(folder, FASTAPI, module)
    assert runs_in(folder) == runs


def test_a_web_process_with_the_extension_enqueues(folder: Path) -> None:
    run(folder, EXTENSION)


def test_the_dashboard_asks_for_the_login_of_the_application(folder: Path) -> None:
    run(folder, DASHBOARD)


def test_each_forked_process_opens_its_own_client(folder: Path) -> None:
    run(folder, FORKED + FLASK)
    assert runs_in(folder) == 2


def test_the_project_of_the_page_on_django_works(tmp_path: Path) -> None:
    project = DjangoProject(tmp_path)
    settings = (tmp_path / "settings.py").read_text().replace('"mainspring.contrib.django", ', "")
    project.write("settings.py", settings)
    for block in blocks(DOCS / "how-to" / "use-with-django.md"):
        if block.title is not None:
            before = (tmp_path / block.title).read_text() if block.append else ""
            project.write(block.title, before + block.text)
    project.manage("migrate", "--verbosity", "0")
    project.manage("test")
    project.execute("""
        from django.contrib.auth.models import User
        from django.test import Client
        from mainspring.contrib.django import scheduler

        browser = Client()
        run = browser.get("/orders/1").json()["run"]
        assert scheduler.blocking.get_run(run).job_id == "send_receipt"
        assert browser.get("/jobs/").status_code == 302
        browser.force_login(User.objects.create_superuser("ada"))
        assert "send_receipt" in browser.get("/jobs/jobs").content.decode()
    """)
    project.execute("""
        from mainspring.contrib.django import scheduler
        from shop.tasks import send_invoice

        with scheduler.blocking:
            result = send_invoice.using(backend="patient").enqueue(3)
            scheduler.blocking.wait(result.id, 30)
            result.refresh()
        assert result.return_value == "the invoice of order 3 is sent"
        assert "shop.tasks.send_invoice:patient" in scheduler.code_job_ids
    """)
