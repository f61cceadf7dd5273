"""What the scheduler of a Django project promises: when it opens, and what an enqueue in a
transaction does."""

from __future__ import annotations

from tests.support.django_project import DjangoProject

TWO_DATABASES = """
DATABASES["other"] = {"ENGINE": "django.db.backends.sqlite3", "NAME": "other.db"}
"""

START = """
from django.db import connections, transaction
from django.test import Client, override_settings
from mainspring.contrib.django import scheduler
from shop.jobs import ship

def stored():
    return {run.id for run in scheduler.blocking.list_runs().items}

class Rollback(Exception): ...
"""


def test_an_enqueue_joins_the_transaction_of_the_same_database(project: DjangoProject) -> None:
    project.manage("migrate", "--verbosity", "0")
    project.execute(
        START
        + """
scheduler.open()
assert scheduler.workers == 0
outside = ship.blocking.enqueue(number=1)
try:
    with transaction.atomic():
        ship.blocking.enqueue(number=2)
        raise Rollback
except Rollback:
    pass
with transaction.atomic():
    kept = ship.blocking.enqueue(number=3)
    try:
        with transaction.atomic():
            scheduler.blocking.trigger("ship", {"number": 4})
            raise Rollback
    except Rollback:
        pass
    several = scheduler.blocking.enqueue_many("ship", [{"number": 5}, {"number": 6}])
    with connections["default"].cursor() as cursor:
        cursor.execute("select count(*) from mainspring_runs")
        assert cursor.fetchone() == (4,)
assert stored() == {outside.id, kept.id, *(run.id for run in several)}
try:
    with transaction.atomic():
        scheduler.blocking.chain((ship, {"number": 1}), (ship, {"number": 2}))
except Exception as error:
    assert "on_commit" in str(error), error
else:
    raise AssertionError
"""
    )


def test_an_enqueue_in_another_database_waits_for_the_commit(project: DjangoProject) -> None:
    project.write("settings.py", (project.folder / "settings.py").read_text() + TWO_DATABASES)
    project.manage("migrate", "--verbosity", "0")
    project.execute(
        START
        + """
from opentelemetry.sdk.trace import TracerProvider

tracer = TracerProvider().get_tracer("test")
with transaction.atomic(using="other"):
    with tracer.start_as_current_span("request") as span:
        first = ship.blocking.enqueue(number=1)
    assert f"{span.get_span_context().trace_id:032x}" in first.trace
    assert stored() == set()
    after = ship.blocking.options(after=first.id).enqueue(number=2)
    try:
        ship.blocking.enqueue(nmber=1)
    except Exception as error:
        assert "did you mean 'number'" in str(error)
assert stored() == {first.id, after.id}
try:
    with transaction.atomic(using="other"):
        ship.blocking.enqueue(number=1)
        raise Rollback
except Rollback:
    pass
assert stored() == {first.id, after.id}
with transaction.atomic(), transaction.atomic(using="other"):  # it joins the one that it can
    third = ship.blocking.enqueue(number=1)
assert stored() == {first.id, after.id, third.id}
"""
    )
    project.write(
        "settings.py",
        (project.folder / "settings.py").read_text()
        + 'MAINSPRING = {"STORE": "sqlite:///jobs.db"}',
    )
    project.execute(
        START
        + """
with transaction.atomic(), transaction.atomic(using="other"):
    run = ship.blocking.enqueue(number=1)
    assert stored() == set()
assert stored() == {run.id}
try:
    with transaction.atomic():
        with transaction.atomic(using="other"):
            ship.blocking.enqueue(number=1)
        raise Rollback
except Rollback:
    pass
print(len(stored()))
"""
    )


VIEWS = """
from asgiref.sync import sync_to_async
from django.db import transaction
from django.http import HttpResponse
from django.urls import path
from shop.jobs import ship

def order(request):
    ship.blocking.enqueue(number=1)
    if "fail" in request.GET:
        raise LookupError
    return HttpResponse()

async def order_async(request):
    await ship.enqueue(number=2)
    with_transaction = sync_to_async(transaction.atomic(lambda: ship.blocking.enqueue(number=3)))
    await with_transaction()
    return HttpResponse()

urlpatterns = [
    path("order", order), path("async", transaction.non_atomic_requests(order_async)),
]
"""


def test_views_enqueue_in_the_transaction_of_their_request(project: DjangoProject) -> None:
    settings = (project.folder / "settings.py").read_text()
    project.write("settings.py", settings + 'DATABASES["default"]["ATOMIC_REQUESTS"] = True\n')
    project.write("urls.py", VIEWS)
    project.manage("migrate", "--verbosity", "0")
    project.execute(
        START
        + """
import asyncio, threading
from django.test import AsyncClient

browser = Client(raise_request_exception=False)
assert browser.get("/order?fail=1").status_code == 500
assert stored() == set()
assert browser.get("/order").status_code == 200
assert len(stored()) == 1
threads = [threading.Thread(target=Client().get, args=["/order"]) for _ in range(5)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(stored()) == 6
asyncio.run(AsyncClient().get("/async"))
assert len(stored()) == 8
"""
    )


def test_a_file_is_opened_before_a_transaction_begins(project: DjangoProject) -> None:
    project.manage("migrate", "--verbosity", "0")
    printed = project.execute(
        START
        + """
try:
    with transaction.atomic():
        ship.blocking.enqueue(number=1)
except Exception as error:
    print(error)
Client().get("/nothing")
assert scheduler.started
with transaction.atomic():
    ship.blocking.enqueue(number=1)
assert len(stored()) == 1
"""
    )
    assert "call scheduler.open() before the transaction" in printed


def test_forked_processes_and_overridden_settings_open_their_own_store(
    project: DjangoProject,
) -> None:
    project.manage("migrate", "--verbosity", "0")
    project.execute(
        START
        + """
import os

for number in range(2):  # as gunicorn does with --preload
    if (child := os.fork()) == 0:
        ship.blocking.enqueue(number=number)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
assert len(stored()) == 2
with override_settings(MAINSPRING={"STORE": "memory://"}):
    assert stored() == set()
    ship.blocking.enqueue(number=1)
    assert len(stored()) == 1
assert len(stored()) == 2
"""
    )


def test_a_handler_leaves_no_connection_that_is_too_old(project: DjangoProject) -> None:
    """Async handlers use the connections of the thread in which Django makes their queries."""
    project.write(
        "shop/jobs.py",
        """
        from asgiref.sync import sync_to_async
        from django.db import connection
        from mainspring.contrib.django import job

        def query() -> bool:
            was_open = connection.connection is not None
            with connection.cursor() as cursor:
                cursor.execute("select 1")
            return was_open

        @job
        def in_thread() -> bool:
            return query()

        @job
        async def on_loop() -> bool:
            return await sync_to_async(query)()
        """,
    )
    work = """
from mainspring.contrib.django import scheduler

scheduler.configure(workers=1)
with scheduler.blocking as running:
    for name in ("in_thread", "on_loop"):
        for _ in range(2):
            ended = running.wait(running.enqueue(name), timeout=60)
        print(ended.result, end=" ")
"""
    assert project.execute(work) == "False False"
    settings = (project.folder / "settings.py").read_text()
    project.write("settings.py", settings + 'DATABASES["default"]["CONN_MAX_AGE"] = 600\n')
    assert project.execute(work) == "True True"


ELSEWHERE = """
DATABASES["other"] = {"ENGINE": "django.db.backends.sqlite3", "NAME": "other.db"}
MAINSPRING = {"STORE": "sqlite:///jobs.db"}
"""


def test_a_rolled_back_inner_transaction_adds_nothing_when_the_outer_commits(
    project: DjangoProject,
) -> None:
    project.write("settings.py", (project.folder / "settings.py").read_text() + ELSEWHERE)
    project.execute(
        START
        + """
for outer, inner in (("default", "other"), ("other", "default")):
    with transaction.atomic(using=outer):
        try:
            with transaction.atomic(using=inner):
                ship.blocking.enqueue(number=1)
                raise Rollback
        except Rollback:
            pass
    assert stored() == set()
"""
    )


def test_a_dedupe_key_is_refused_where_the_run_waits_for_the_commit(
    project: DjangoProject,
) -> None:
    project.write("settings.py", (project.folder / "settings.py").read_text() + ELSEWHERE)
    printed = project.execute(
        START
        + """
with transaction.atomic():
    try:
        ship.blocking.options(dedupe_key="one").enqueue(number=1)
    except Exception as error:
        print(type(error).__name__, error)
"""
    )
    assert printed.startswith("InvalidState")
    assert "transaction.on_commit" in printed


def test_a_store_that_fails_at_the_commit_is_logged_and_stops_no_other_hook(
    project: DjangoProject,
) -> None:
    project.write("settings.py", (project.folder / "settings.py").read_text() + ELSEWHERE)
    printed = project.execute(
        START
        + """
import logging, sys
logging.basicConfig(stream=sys.stdout)
scheduler.open()

def fail(*_):
    raise OSError("the disk is full")

with transaction.atomic():
    run = ship.blocking.enqueue(number=1)
    transaction.on_commit(lambda: print("the other hook"))
    scheduler._runs.add_plan = fail
print(run.id)
"""
    )
    id = printed.splitlines()[-1]
    assert "ERROR:mainspring" in printed
    assert f"{id} of 'ship'" in printed
    assert "the disk is full" in printed
    assert "the other hook" in printed


def test_a_file_that_another_program_has_locked_stops_no_request(project: DjangoProject) -> None:
    project.manage("migrate", "--verbosity", "0")
    project.execute(
        START
        + """
import sqlite3
busy = sqlite3.connect("shop.db", isolation_level=None)
busy.execute("BEGIN EXCLUSIVE")
scheduler.open_before_transactions()
assert not scheduler.started
busy.execute("ROLLBACK")
scheduler.open_before_transactions()
assert scheduler.started
"""
    )


def test_a_fork_after_the_first_use_opens_the_store_anew(project: DjangoProject) -> None:
    """In a SQLite file it cannot, unless the parent has closed it: the error says so."""
    project.manage("migrate", "--verbosity", "0")
    printed = project.execute(
        START
        + """
import os

def enqueue_in_child():
    if (child := os.fork()) == 0:
        try:
            ship.blocking.enqueue(number=2)
        except Exception as error:
            print(error, flush=True)
        os._exit(0)
    os.waitpid(child, 0)

ship.blocking.enqueue(number=1)
enqueue_in_child()
scheduler.close()
enqueue_in_child()
assert len(stored()) == 2
scheduler.close()
with override_settings(MAINSPRING={"STORE": "file://" + os.path.abspath("objects")}):
    ship.blocking.enqueue(number=1)
    enqueue_in_child()
    assert len(stored()) == 2
"""
    )
    assert "scheduler.close()" in printed
    assert len(printed.splitlines()) == 1
