"""Each mistake in the settings, or in jobs.py, is shown by a system check, and nothing starts."""

from __future__ import annotations

import json

from tests.support.django_project import DjangoProject

CASES: dict[str, tuple[object, str, str]] = {
    "no settings": (None, "E001", "MAINSPRING = {"),
    "no dict": ("sqlite:///jobs.db", "E001", "not a dict"),
    "unknown": ({"DATABSE": "default"}, "E002", "Did you mean 'DATABASE'?"),
    "lower case": ({"workers": 3}, "E002", "Did you mean 'WORKERS'?"),
    "no option": ({"INLINE": True}, "E002", "has no option 'INLINE'"),
    "no name": ({"DATABASE": "default", "1": 2}, "E002", "has no option '1'"),
    "zone": ({"TIMEZONE": "Mars/Base"}, "E003", "Mars/Base"),
    "workers": ({"WORKERS": "many"}, "E003", "MAINSPRING['WORKERS']"),
    "queues": ({"QUEUES": 3}, "E003", "MAINSPRING['QUEUES']"),
    "defaults": ({"DEFAULTS": {"retrys": 3}}, "E003", "retries"),
    "around": ({"AROUND": "shop.nothing.there"}, "E003", "shop.nothing"),
    "not dotted": ({"AROUND": "there"}, "E003", "there"),
    "store": ({"STORE": "redis://db/0"}, "E003", "there is no store for redis://"),
    "webhooks": ({"WEBHOOKS": 5}, "E003", "MAINSPRING['WEBHOOKS']"),
    "random": ({"RNG": 5}, "E003", "MAINSPRING['RNG']"),
    "jobs": ({"JOBS": "\0"}, "E003", "MAINSPRING['JOBS']"),
    "url": ({"STORE": "postgresql://["}, "E003", "MAINSPRING['STORE']"),
    "store of no kind": ({"STORE": 3}, "E003", "MAINSPRING['STORE']"),
    "two stores": ({"STORE": "memory://", "DATABASE": "default"}, "E003", "remove one"),
    "alias": ({"DATABASE": "defalt"}, "E004", "'default'"),
    "no alias": ({"DATABASE": ["default"]}, "E004", "no such alias"),
    "engine": ({"DATABASE": "mysql"}, "E004", "PostgreSQL or SQLite"),
}

READ = """
import json
from django.db import connections
from django.test import override_settings
from mainspring.contrib.django.options import read_options
from mainspring.contrib.django.project_scheduler import ProjectScheduler

class Other:
    vendor, in_atomic_block = "mysql", False

connections["mysql"] = Other()
connections.settings["mysql"] = {}
found = {}
for name, value in json.loads(CASES).items():
    with override_settings(MAINSPRING=value):
        options, mistakes = read_options()
        scheduler = ProjectScheduler(mistakes, **options)
        scheduler.import_options()
        found[name] = [(one.id, f"{one.msg} {one.hint}") for one in mistakes]
        try:
            scheduler.open()
        except Exception as error:
            assert type(error).__name__ == "ImproperlyConfigured", (name, error)
        else:
            raise AssertionError(name)
print(json.dumps(found))
"""


def test_each_mistake_in_the_settings_has_a_check(project: DjangoProject) -> None:
    cases = json.dumps({name: value for name, (value, *_) in CASES.items()})
    found = json.loads(project.execute(f"CASES = {cases!r}\n{READ}"))
    for name, (_, id, text) in CASES.items():
        [(shown_id, shown)] = found[name]
        assert shown_id == f"mainspring.{id}", name
        assert text in shown, name


def test_a_project_with_mistakes_can_be_imported_and_checked(project: DjangoProject) -> None:
    settings = (project.folder / "settings.py").read_text()
    project.write("settings.py", settings + 'MAINSPRING = {"WORKER": 1, "POLL": "soon"}')
    for words in (["check"], ["mainspring", "worker"], ["runserver", "0", "--noreload"]):
        done = project.run("-m", "django", *words)
        assert done.returncode == 1, done.stdout + done.stderr
        assert "(mainspring.E002)" in done.stderr
        assert "(mainspring.E003)" in done.stderr


def test_two_apps_with_one_job_id_are_a_mistake(project: DjangoProject) -> None:
    settings = (project.folder / "settings.py").read_text()
    project.write("settings.py", settings + 'INSTALLED_APPS.append("billing")')
    project.write("billing/__init__.py", "")
    project.write("billing/jobs.py", (project.folder / "shop" / "jobs.py").read_text())
    done = project.run("-m", "django", "check")
    assert done.returncode == 1
    for part in ("mainspring.E005", "'ship'", "shop.jobs.ship", "billing.jobs.ship", "id="):
        assert part in done.stderr, done.stderr
    printed = project.execute("""
        from shop.jobs import ship
        try:
            ship.blocking.enqueue(number=1)
        except Exception as error:
            print(type(error).__name__, error)
    """)
    assert printed.startswith("ImproperlyConfigured")


def test_options_of_the_settings_reach_the_scheduler(project: DjangoProject) -> None:
    settings = (project.folder / "settings.py").read_text()
    project.write(
        "settings.py",
        settings
        + """
TIME_ZONE = "Europe/Berlin"
MAINSPRING = {
    "STORE": "sqlite:///jobs.db", "WORKERS": 3, "QUEUES": ["mail"], "DEFAULTS": {"retries": 2},
    "RESOURCES": "shop.tools.resources",
}
""",
    )
    project.write("shop/tools.py", "resources = {'color': 'red'}")
    printed = project.execute("""
        from mainspring.contrib.django import job, scheduler
        print(scheduler.timezone, scheduler.workers, *scheduler.queues, scheduler.defaults)
        print(scheduler.url, scheduler.code_job_ids)
        scheduler.open()
    """)
    assert printed.splitlines() == [
        "Europe/Berlin 3 mail {'retries': 2}",
        "sqlite:///jobs.db ['ship']",
    ]


def test_a_dotted_option_may_lie_beside_jobs_and_import_models(project: DjangoProject) -> None:
    settings = (project.folder / "settings.py").read_text()
    options = {
        "DATABASE": "default",
        **{"RESOURCES": "shop.jobs.resources", "AROUND": "shop.jobs.around"},
        **{"CLOCK": "shop.jobs.clock", "WEBHOOKS": "shop.jobs.webhooks"},
        "DEFAULT_HANDLER": "shop.jobs.other",
    }
    project.write("settings.py", settings + f"MAINSPRING = {options!r}")
    project.write(
        "shop/jobs.py",
        """
        from contextlib import contextmanager
        from django.contrib.auth.models import User
        from mainspring.contrib.django import job
        from mainspring.core.clock import SystemClock
        from mainspring.webhooks import WebhookSettings

        resources, clock, webhooks = {"model": User}, SystemClock(), WebhookSettings(per_host=3)

        @contextmanager
        def around(ctx):
            print("around")
            yield

        def other(): ...

        @job
        def ship(ctx, number: int) -> str:
            return ctx.resources["model"].__name__
        """,
    )
    project.write("shop/models.py", "from mainspring.contrib.django import job, scheduler")
    project.manage("check")
    project.manage("migrate", "--verbosity", "0")
    printed = project.execute("""
        from mainspring.contrib.django import scheduler
        from shop import jobs
        assert scheduler._clock is jobs.clock and scheduler.webhooks.settings is jobs.webhooks
        assert scheduler._registry.default.function is jobs.other
        scheduler.configure(workers=1)
        with scheduler.blocking as running:
            print(running.wait(running.enqueue("ship", {"number": 1}), timeout=60).result)
    """)
    assert printed.split() == ["around", "User"]
    project.write("shop/jobs.py", "raise_here = 1")
    done = project.run("-m", "django", "check")
    assert "mainspring.E003" in done.stderr
