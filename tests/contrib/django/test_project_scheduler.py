"""What the scheduler of a Django project promises: where its jobs come from, when it opens, and
what an enqueue in a transaction does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.django_project import DjangoProject


@pytest.fixture
def project(tmp_path: Path) -> DjangoProject:
    return DjangoProject(tmp_path)


def test_an_enqueue_joins_the_transaction_of_the_same_database(project: DjangoProject) -> None:
    project.manage("migrate", "--verbosity", "0")
    printed = project.execute("""
        from django.db import transaction
        from mainspring.contrib.django import scheduler
        from shop.jobs import ship

        scheduler.open()
        outside = ship.blocking.enqueue(number=1)
        try:
            with transaction.atomic():
                lost = ship.blocking.enqueue(number=2)
                raise LookupError
        except LookupError:
            pass
        with transaction.atomic():
            kept = ship.blocking.enqueue(number=3)
        stored = {run.id for run in scheduler.blocking.list_runs().items}
        print(stored == {outside.id, kept.id}, scheduler.workers)
    """)
    assert printed == "True 0"
