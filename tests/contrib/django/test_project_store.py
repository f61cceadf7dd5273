"""The store in a database of Django: its tables, Django's test databases, and other databases."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from mainspring.stores.postgresql.schema import MIGRATIONS as ON_POSTGRESQL
from mainspring.stores.sqlite.schema import MIGRATIONS as ON_SQLITE
from tests.support.django_project import DjangoProject

TESTS = """
from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase
from mainspring.contrib.django import scheduler
from mainspring.testing import TestScheduler
from .jobs import ship

def stored():
    return len(scheduler.blocking.list_runs().items)

class InTransaction(TestCase):
    @classmethod
    def setUpClass(cls):
        scheduler.open()  # before the transaction of the class
        super().setUpClass()

    def test_a_run_is_rolled_back_with_the_test(self):
        with self.captureOnCommitCallbacks(execute=True):
            ship.blocking.enqueue(number=1)

    test_again = test_a_run_is_rolled_back_with_the_test

class Virtual(TestCase):
    def test_a_job_of_the_project_is_tested_without_a_worker(self):
        scheduler.close()  # a test before may have used it
        with TestScheduler(scheduler).blocking as test:
            with self.captureOnCommitCallbacks(execute=True):
                ship.blocking.enqueue(number=3)
            test.tick()
            assert test.assert_succeeded("ship", times=1)[0].result == 3

class Committed(TransactionTestCase):
    def test_a_run_is_stored_with_the_transaction(self):
        scheduler.open()
        before = stored()
        with transaction.atomic():
            ship.blocking.enqueue(number=1)
        assert stored() == before + 1
        assert "test" in (scheduler.url or "") or connection.vendor == "sqlite"
"""


@pytest.fixture
def database(postgresql_url: str) -> Iterator[dict[str, Any]]:
    """A database of its own, as the settings of Django name it."""
    at = urlsplit(postgresql_url)
    name = f"shop_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgresql_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield {
        "ENGINE": "django.db.backends.postgresql",
        **{"HOST": at.hostname, "PORT": at.port, "NAME": name, "USER": at.username},
    }
    with psycopg.connect(postgresql_url, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def add_settings(project: DjangoProject, settings: str) -> None:
    project.write("settings.py", (project.folder / "settings.py").read_text() + settings)


def test_tests_of_the_project_on_sqlite_use_their_own_store(project: DjangoProject) -> None:
    project.write("shop/tests.py", TESTS)
    done = project.run("-m", "django", "test")
    assert done.returncode == 0, done.stderr
    assert "Ran 4 tests" in done.stderr
    assert not (project.folder / "shop.db").exists()


def test_tests_of_the_project_on_sqlite_in_a_file(project: DjangoProject) -> None:
    add_settings(project, 'DATABASES["default"]["TEST"] = {"NAME": "test.db"}')
    project.write("shop/tests.py", TESTS)
    done = project.run("-m", "django", "test", "--noinput")
    assert done.returncode == 0, done.stderr


def test_the_store_lies_in_postgresql(project: DjangoProject, database: dict[str, Any]) -> None:
    add_settings(project, f'DATABASES["default"] = {database!r}')
    project.write("shop/tests.py", TESTS)
    project.manage("migrate", "--verbosity", "0")
    place = f"postgresql://{database['USER']}@{database['HOST']}:{database['PORT']}"
    with psycopg.connect(f"{place}/{database['NAME']}") as connection:
        [(version,)] = connection.execute(
            "SELECT value FROM mainspring.meta WHERE name = 'version'"
        ).fetchall()
        assert version == len(ON_POSTGRESQL)
    project.execute("""
        from django.db import transaction
        from mainspring.contrib.django import scheduler
        from shop.jobs import ship

        with transaction.atomic():
            kept = ship.blocking.enqueue(number=1)
        try:
            with transaction.atomic():
                ship.blocking.enqueue(number=2)
                raise LookupError
        except LookupError:
            pass
        [run] = scheduler.blocking.list_runs().items
        assert run.id == kept.id
    """)
    project.manage("migrate", "mainspring", "zero", "--verbosity", "0")  # keeps the runs
    project.manage("migrate", "--verbosity", "0")
    assert "ship" in project.manage("mainspring", "runs", "list")
    for options in ([], ["--parallel", "2"]):
        done = project.run("-m", "django", "test", "--noinput", *options)
        assert done.returncode == 0, done.stderr
        assert "Ran 4 tests" in done.stderr


def test_a_new_version_of_the_tables_has_a_migration(project: DjangoProject) -> None:
    """When this fails: add a migration to contrib/django/migrations that calls
    `make_store_tables`, and change LATEST."""
    from mainspring.contrib.django.store_schema import LATEST

    assert {"postgresql": len(ON_POSTGRESQL), "sqlite": len(ON_SQLITE)} == LATEST
    assert "No changes" in project.manage("makemigrations", "--check")


def test_only_the_database_of_the_store_gets_its_tables(project: DjangoProject) -> None:
    add_settings(
        project,
        """
DATABASES["jobs"] = {"ENGINE": "django.db.backends.sqlite3", "NAME": "jobs.db"}
MAINSPRING = {"DATABASE": "jobs"}

class Router:
    def allow_migrate(self, db, app_label, **hints):
        return (db == "jobs") == (app_label == "mainspring")

DATABASE_ROUTERS = ["settings.Router"]
""",
    )
    tables = """
        from django.db import connections
        for alias in ("default", "jobs"):
            names = connections[alias].introspection.table_names()
            print(sum(name.startswith("mainspring_") for name in names) > 0, end=" ")
    """
    project.manage("migrate", "--verbosity", "0")
    project.manage("migrate", "--verbosity", "0", "--database", "jobs")
    assert project.execute(tables) == "False True"
    project.execute("""
        from django.db import transaction
        from mainspring.contrib.django import scheduler
        from shop.jobs import ship

        scheduler.open()
        with transaction.atomic(using="jobs"):
            ship.blocking.enqueue(number=1)
        assert len(scheduler.blocking.list_runs().items) == 1
    """)
