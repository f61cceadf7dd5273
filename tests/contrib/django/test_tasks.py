"""The backend of Django Tasks: the cases of `task_cases.py`, what an enqueue in a transaction does,
and what becomes of tasks when a worker is killed or has other code."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.django_project import DjangoProject

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
