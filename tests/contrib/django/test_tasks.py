"""The backend of Django Tasks: the cases of `task_cases.py`, what an enqueue in a transaction does,
and what becomes of tasks when a worker is killed or has other code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.contrib.django.test_example import wait_until
from tests.support.django_project import DjangoProject
from tests.support.web_server import LONG, WebServer

ROOT = Path(__file__).parents[3]
SETTINGS = """
import django
if django.VERSION < (6, 0):
    INSTALLED_APPS.append("django_tasks")
BACKEND = "mainspring.contrib.django.tasks.MainspringBackend"
"""
TASKS = """
try:
    from django.tasks import task
except ImportError:
    from django_tasks import task

@task
def ship(number):
    return number
"""


def make_project(folder: Path, settings: str, tasks: str = TASKS) -> DjangoProject:
    project = DjangoProject(folder, settings=SETTINGS + settings, jobs="")
    project.write("shop/tasks.py", tasks)
    return project


def test_the_cases_of_django_tasks_pass(tmp_path: Path) -> None:
    project = make_project(
        tmp_path,
        """
MAINSPRING = {"STORE": "memory://", "QUEUES": ["default"]}
TASKS = {
    "default": {"BACKEND": BACKEND, "QUEUES": []},
    "strict": {"BACKEND": BACKEND, "QUEUES": ["default", "slow"]},
    "patient": {"BACKEND": BACKEND, "OPTIONS": {"retries": 2, "retry_delay": "10ms"}},
    "hasty": {"BACKEND": BACKEND, "OPTIONS": {"timeout": "200ms"}},
}
""",
    )
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = project.run("-m", "django", "test", "tests.contrib.django.task_cases", PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    assert " 0 tests" not in done.stderr


ON_THE_DATABASE = """
TASKS = {"default": {"BACKEND": BACKEND}}
"""


def test_a_task_belongs_to_the_transaction_on_the_stores_database(tmp_path: Path) -> None:
    project = make_project(tmp_path, ON_THE_DATABASE)
    project.write("shop/late.py", TASKS)
    project.manage("migrate", "--verbosity", "0")
    printed = project.execute("""
        import asyncio
        from asgiref.sync import sync_to_async
        from django.db import connection, transaction
        from mainspring.contrib.django import scheduler
        from mainspring.contrib.django.tasks import TaskResultDoesNotExist
        from mainspring.errors import InvalidState
        from shop.tasks import ship

        def load_ship():
            return ship

        def load_late():
            from shop.late import ship as late
            return late

        def enqueue_and_fail(load):
            try:
                with transaction.atomic():
                    connection.cursor().execute("DELETE FROM django_session")
                    results.append(load().enqueue(2))
                    raise LookupError
            except LookupError:
                pass

        scheduler.open()
        results = [ship.enqueue(1)]
        enqueue_and_fail(load_ship)
        with transaction.atomic():
            results.append(ship.enqueue(3))
        results.append(asyncio.run(ship.aenqueue(4)))
        for result in results:
            try:
                result.refresh()
                print(result.args, end=" ")
            except TaskResultDoesNotExist:
                print("none", end=" ")
        try:
            enqueue_and_fail(load_late)
        except InvalidState as error:
            print("new to the store" in str(error), end=" ")
        late = load_late()
        scheduler.blocking.now()  # waits until its job is stored
        with transaction.atomic():
            results.append(late.enqueue(5))
        print(late.get_result(results[-1].id).status)
    """)
    assert printed == "[1] none [3] [4] True READY"


def test_a_task_is_added_after_the_commit_where_the_store_is_another(tmp_path: Path) -> None:
    project = make_project(
        tmp_path,
        """
MAINSPRING = {"STORE": "sqlite:///jobs.db"}
TASKS = {
    "default": {"BACKEND": BACKEND},
    "apart": {"BACKEND": BACKEND, "OPTIONS": {"enqueue_on_commit": False}},
}
""",
    )
    printed = project.execute("""
        from django.db import transaction
        from mainspring.contrib.django.tasks import TaskResultDoesNotExist
        from shop.tasks import ship

        def is_stored(result):
            try:
                result.refresh()
            except TaskResultDoesNotExist:
                return False
            return True

        for task in (ship, ship.using(backend="apart")):
            with transaction.atomic():
                result = task.enqueue(1)
                print(is_stored(result), end=" ")
            print(is_stored(result), end=" ")
            try:
                with transaction.atomic():
                    result = task.enqueue(2)
                    raise LookupError
            except LookupError:
                print(is_stored(result), end=" ")
        for value in ("x" * 300_000, object()):
            with transaction.atomic():
                try:
                    ship.enqueue(value)
                except (TypeError, ValueError) as error:
                    print(type(error).__name__, end=" ")
    """)
    assert printed == "False True False True True True InvalidPayload TypeError"


def test_a_worker_leaves_tasks_alone_whose_code_it_lacks(tmp_path: Path) -> None:
    """Here the name of the function has changed."""
    project = make_project(tmp_path, ON_THE_DATABASE)
    project.manage("migrate", "--verbosity", "0")
    former = project.execute("from shop.tasks import ship; print(ship.enqueue(1).id)")
    project.write("shop/tasks.py", TASKS.replace("ship", "send"))
    printed = project.execute(f"""
        from mainspring.contrib.django import scheduler
        from mainspring.contrib.django.tasks import TaskResultDoesNotExist
        from shop.tasks import send

        with scheduler.blocking:
            scheduler.blocking.wait(send.enqueue(2).id, 30)
            print(scheduler.blocking.explain("{former}").code, end=" ")
            try:
                send.get_result("{former}")
            except TaskResultDoesNotExist as error:
                print(error)
    """)
    assert printed.startswith("no_handler")
    assert "a run of 'shop.tasks.ship', which is no task of the backend 'default'" in printed
    project.write("shop/tasks.py", TASKS)
    printed = project.execute(f"""
        from mainspring.contrib.django import scheduler
        from shop.tasks import ship

        with scheduler.blocking:
            scheduler.blocking.wait("{former}", 30)
            print(ship.get_result("{former}").return_value)
    """)
    assert printed == "1"


SLOW = (
    TASKS
    + """
import time
from pathlib import Path

@task(takes_context=True)
def pack(context, number):
    with open("begun", "a") as begun:
        begun.write(f"{context.attempt}\\n")
    while not Path("go").exists():
        time.sleep(0.02)
    return [number, context.attempt]
"""
)
VIEWS = """
from django.http import JsonResponse
from django.urls import path
from shop.tasks import pack

def order(request, number):
    return JsonResponse({"id": pack.enqueue(number).id})

def result(request, id):
    result = pack.get_result(id)
    value = result.return_value if result.is_finished else None
    errors = [error.exception_class.__name__ for error in result.errors]
    return JsonResponse({"status": result.status, "value": value, "errors": errors})

urlpatterns = [
    path("orders", lambda request: JsonResponse({})),
    path("orders/<int:number>", order),
    path("results/<id>", result),
]
"""


def test_a_killed_worker_loses_no_task(tmp_path: Path) -> None:
    project = make_project(
        tmp_path,
        ON_THE_DATABASE
        + """
MAINSPRING = {"DATABASE": "default", "LEASE": "2s"}
DATABASES["default"]["OPTIONS"] = {"transaction_mode": "IMMEDIATE", "timeout": 30}
""",
        SLOW,
    )
    project.write("urls.py", VIEWS)
    project.manage("migrate", "--verbosity", "0")
    environment = {
        **os.environ,
        "PYTHONPATH": str(tmp_path),
        "DJANGO_SETTINGS_MODULE": "settings",
    }
    django = [sys.executable, "-m", "django"]

    def start_worker() -> subprocess.Popen[bytes]:
        return subprocess.Popen([*django, "mainspring", "worker"], cwd=tmp_path, env=environment)

    server = ("django", "runserver", "--noreload", "127.0.0.1:{port}")
    with WebServer(tmp_path, *server, environment=environment) as web:

        def statuses() -> set[str]:
            return {web.get(f"/results/{id}")["status"] for id in ids}

        ids = [web.get(f"/orders/{number}")["id"] for number in range(3)]
        first = start_worker()
        begun = tmp_path / "begun"
        wait_until(lambda: begun.exists() and begun.read_text().count("1") == 3)
        assert statuses() == {"RUNNING"}
        first.kill()
        first.wait()
        (tmp_path / "go").touch()
        second = start_worker()
        try:
            wait_until(
                lambda: {web.get(f"/results/{id}")["status"] for id in ids} == {"SUCCESSFUL"}
            )
            results = [web.get(f"/results/{id}") for id in ids]
        finally:
            second.terminate()
            assert second.wait(LONG) == 0
    assert [result["value"] for result in results] == [[0, 2], [1, 2], [2, 2]]
    assert [result["errors"] for result in results] == [["RunLost"]] * 3


def test_tasks_of_a_subclassed_backend_are_found(tmp_path: Path) -> None:
    project = make_project(
        tmp_path,
        """
MAINSPRING = {"STORE": "memory://"}
TASKS = {"default": {"BACKEND": "shop.backend.Mine"}}
""",
    )
    project.write(
        "shop/backend.py",
        """
        from mainspring.contrib.django.tasks import MainspringBackend

        class Mine(MainspringBackend): ...
        """,
    )
    show = "from mainspring.contrib.django import scheduler; print(scheduler.code_job_ids)"
    assert project.execute(show) == "['shop.tasks.ship']"
    settings = (project.folder / "settings.py").read_text()
    project.write("settings.py", settings + "TASKS = None")
    project.write("shop/tasks.py", "")
    assert project.execute(show) == "[]"
