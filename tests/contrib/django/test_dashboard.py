"""Who may see the dashboard and change something there, on WSGI and on ASGI."""

from __future__ import annotations

from tests.support.django_project import DjangoProject

URLS = """
from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("staff/jobs/", include("mainspring.contrib.django.urls")),
]
"""

PEOPLE = """
from django.contrib.auth.models import Permission, User
from django.test import AsyncClient, Client

def person(name, *permissions, **options):
    user = User.objects.create_user(name, **options)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(user)
    return browser

def change(browser, **headers):
    return browser.post(
        "/staff/jobs/api/v1/jobs/ship/trigger",
        {"payload": {"number": 1}},
        content_type="application/json",
        headers=headers,
    ).status_code
"""

SAME = '"http://testserver"'


def test_only_staff_with_the_permission_may_enter(project: DjangoProject) -> None:
    project.write("urls.py", URLS)
    project.manage("migrate", "--verbosity", "0")
    printed = project.execute(
        PEOPLE
        + f"""
anyone = Client()
answer = anyone.get("/staff/jobs/runs?state=failed")
assert answer.status_code == 302
assert answer.url == "/admin/login/?next=/staff/jobs/runs%3Fstate%3Dfailed", answer.url
assert anyone.get("/staff/jobs/api/v1/jobs").status_code == 403
assert change(anyone, origin={SAME}) == 403

for browser in (
    person("customer"),
    person("clerk", is_staff=True),
    person("guest", "view_dashboard", "change_dashboard"),
):
    for path in ("", "runs", "keys", "assets/x", "api/v1/jobs", "livez"):
        assert browser.get("/staff/jobs/" + path).status_code == 403, path
    assert change(browser, origin={SAME}) == 403
    assert b"mainspring/dashboard" not in browser.get("/admin/").content

reader = person("reader", "view_dashboard", is_staff=True)
page = reader.get("/staff/jobs/")
assert page.status_code == 200 and b'href="/staff/jobs/runs"' in page.content
assert "default-src" in page["content-security-policy"]
assert reader.head("/staff/jobs/").status_code == 200
assert change(reader, origin={SAME}) == 403
assert b"/admin/mainspring/dashboard/" in reader.get("/admin/").content
assert reader.get("/admin/mainspring/dashboard/").url == "/staff/jobs/"
assert reader.get("/admin/mainspring/dashboard/add/").status_code == 403

boss = person("boss", is_staff=True, is_superuser=True)
assert change(boss, origin={SAME}) == 202
assert boss.get("/staff/jobs/api/v1/nothing").status_code == 404
assert boss.get("/staff/jobs/api/v1/events").status_code == 501
"""
    )
    assert printed == ""


def test_a_page_of_another_site_cannot_make_a_change(project: DjangoProject) -> None:
    project.write("urls.py", URLS)
    project.manage("migrate", "--verbosity", "0")
    project.execute(
        PEOPLE
        + f"""
from mainspring.contrib.django import scheduler

boss = person("boss", is_superuser=True, is_staff=True)
assert change(boss) == 403
assert change(boss, origin="https://evil.example") == 403
assert change(boss, origin="null") == 403
assert change(boss, origin="http://testserver:8001") == 403
assert change(boss, origin={SAME}, sec_fetch_site="cross-site") == 403
assert change(boss, sec_fetch_site="same-site") == 403
form = dict(data="number=1", content_type="text/plain", headers={{"origin": "null"}})
assert boss.post("/staff/jobs/api/v1/jobs/ship/trigger", **form).status_code == 403
assert scheduler.blocking.list_runs().items == []
assert change(boss, sec_fetch_site="same-origin") == 202
assert len(scheduler.blocking.list_runs().items) == 1
"""
    )


def test_the_dashboard_works_in_async_django(project: DjangoProject) -> None:
    project.write("urls.py", URLS)
    project.manage("migrate", "--verbosity", "0")
    project.execute(
        PEOPLE
        + f"""
import asyncio

user = User.objects.create_superuser("boss")

async def visit():
    browser = AsyncClient(enforce_csrf_checks=True)
    await browser.aforce_login(user)
    pages = await asyncio.gather(*(browser.get("/staff/jobs/") for _ in range(5)))
    assert [page.status_code for page in pages] == [200] * 5
    assert (await browser.get("/staff/jobs/api/v1/events")).status_code == 501
    answer = await browser.post(
        "/staff/jobs/api/v1/jobs/ship/pause", {{}}, "application/json", headers={{"origin": {SAME}}}
    )
    assert answer.status_code == 200, answer.content

asyncio.run(visit())
"""
    )


def test_a_change_of_the_dashboard_is_outside_the_transaction_of_its_request(
    project: DjangoProject,
) -> None:
    atomic = 'DATABASES["default"] |= {"ATOMIC_REQUESTS": True, "OPTIONS": %r}\n'
    settings = (project.folder / "settings.py").read_text()
    project.write("settings.py", settings + atomic % {"transaction_mode": "IMMEDIATE"})
    project.write("urls.py", URLS.replace("staff/jobs/", "<slug:shop>/jobs/"))  # is ignored
    project.manage("migrate", "--verbosity", "0")
    project.execute(
        PEOPLE
        + f"""
boss = person("boss", is_superuser=True, is_staff=True)
assert change(boss, origin={SAME}) == 202
writer = person("writer", "change_dashboard", is_staff=True)
assert change(writer, origin={SAME}) == 403
both = person("both", "view_dashboard", "change_dashboard", is_staff=True)
assert change(both, origin={SAME}) == 202
"""
    )


def test_the_model_of_the_dashboard_has_a_table_that_django_can_read(
    project: DjangoProject,
) -> None:
    project.write("urls.py", URLS)
    project.manage("migrate", "--verbosity", "0")
    assert "mainspring.dashboard" not in project.manage("dumpdata", "mainspring")
    project.execute(
        PEOPLE
        + """
boss = person("boss", is_superuser=True, is_staff=True)
assert boss.get("/admin/mainspring/dashboard/1/change/").status_code in (302, 404)
"""
    )


def test_a_command_that_is_called_by_a_program_returns_or_raises(project: DjangoProject) -> None:
    project.manage("migrate", "--verbosity", "0")
    printed = project.execute("""
        from django.core.management import CommandError, call_command
        call_command("mainspring", "runs", "list")
        try:
            call_command("mainspring", "runs", "show", "nothing")
        except CommandError as error:
            print("code", error.returncode)
    """)
    assert printed.splitlines()[-1] == "code 2"
