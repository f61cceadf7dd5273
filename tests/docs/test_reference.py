"""The reference is complete: nothing public is missing from docs/reference."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import tomllib
from functools import cache
from pathlib import Path

import httpx
import pytest

import mainspring
import mainspring.errors
import mainspring.schedules
import mainspring.testing
import mainspring.webhooks
from mainspring import Client, Policy, RunContext, Scheduler
from mainspring.core.events import EVENTS
from mainspring.core.options import EnqueueOptions, JobChanges, option_names
from mainspring.scheduler.explanation import Reason
from mainspring.scheduler.job_file import FILE_KEYS, JOB_KEYS
from mainspring.service.settings import ServiceSettings
from mainspring.webhooks import WebhookSettings
from mainspring.webhooks.definition import FIELDS as WEBHOOK_FIELDS
from tests.support.deploy_files import KNOWN
from tests.support.doc_examples import DOCS, ROOT
from tests.support.public_names import public_names, returned_names
from tools import reference

PAGES = DOCS / "reference"
GENERATED = cache(reference.pages)


def page(name: str) -> str:
    return (PAGES / name).read_text()


def missing(names: object, text: str) -> set[str]:
    assert isinstance(names, set | frozenset)
    return {name for name in names if f"`{name}`" not in text}


def test_commands_show_each_example_and_mark_what_is_required() -> None:
    text = GENERATED()["commands.md"]
    assert "    MAINSPRING_SECRET_KEY=NEW,OLD mainspring store reseal\n" in text
    assert "    mainspring backfill JOB --from TIME [OPTIONS]\n" in text
    assert re.search(r"^\| `--from TIME` \| .* Required\. \|$", text, re.MULTILINE)
    assert "    mainspring worker [MODULE:ATTR] [OPTIONS]\n" in text


def test_the_job_document_is_printed_once() -> None:
    text = GENERATED()["http-documents.md"]
    assert text.count("| `startDeadline` |") == 1
    assert "The fields of [JobBody](#jobbody), and:" in text


def test_every_problem_code_is_listed_under_errors() -> None:
    schemas = Scheduler("memory://", workers=0).asgi(auth=None).openapi()["components"]["schemas"]
    codes = set(re.findall(r"- `(\w+)`", schemas["Problem"]["properties"]["code"]["description"]))
    assert len(codes) > 20
    assert missing(codes, page("http-api.md")) == set()


def test_every_extra_is_described_with_its_packages() -> None:
    text = (DOCS / "how-to" / "install.md").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra, needed in project["optional-dependencies"].items():
        if extra in ("docs", "dev"):
            continue
        [row] = re.findall(rf"^\| `{extra}` .*$", text, re.MULTILINE)
        for package in needed:
            name = re.split(r"[<>=\[]", package)[0]
            assert name == "mainspring" or name in row.lower(), (extra, name)


def test_every_option_of_a_job_is_described() -> None:
    options = set(option_names(JobChanges)) | {"id", "on_start", "on_success", "on_error"}
    fields = {field.name for field in dataclasses.fields(Policy)}
    assert missing(options | fields, page("job-options.md")) == set()


def test_every_key_of_a_job_file_is_described() -> None:
    assert missing(frozenset(FILE_KEYS) | JOB_KEYS, page("mainspring-toml.md")) == set()
    assert missing(frozenset(WEBHOOK_FIELDS), page("mainspring-toml.md")) == set()


def test_every_option_of_an_enqueue_is_described() -> None:
    described = page("job-options.md").partition("## Options of one enqueue")[2]
    assert missing(option_names(EnqueueOptions), described) == set()


def test_every_option_of_the_scheduler_is_described() -> None:
    names = set(inspect.signature(Scheduler).parameters) - {"unknown"}  # it only makes the error
    assert missing(names, page("settings.md")) == set()
    names = set(inspect.signature(Client).parameters) - {"unknown"}
    assert missing(names, page("python/client.md")) == set()


def test_every_setting_is_described_with_its_default() -> None:
    text = page("settings.md")
    assert missing(frozenset(KNOWN), text) == set()
    settings = ServiceSettings.read()
    for name, value in settings.model_dump().items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            [row] = re.findall(rf"^\| `{name.upper()}` .*$", text, re.MULTILINE)
            assert re.search(rf"\b{value:g}\b|\b{value:.0f}\b", row), row


def test_every_variable_that_the_source_reads_is_described() -> None:
    """Names in capitals that the source looks up in the environment."""
    names = set()
    for path in (ROOT / "src").rglob("*.py"):
        names |= set(re.findall(r"[\"'](MAINSPRING_[A-Z_]+[A-Z])[\"']", path.read_text()))
        names |= set(
            re.findall(r"environ(?:\.get\(|\[|\.pop\()[\"']([A-Z_]+)[\"']", path.read_text())
        )
    assert len(names) > 5
    assert missing(names - {"TERM"}, page("settings.md")) == set()


def test_every_event_is_described() -> None:
    assert missing(EVENTS, page("events.md")) == set()


async def test_every_metric_is_described() -> None:
    async with Scheduler("memory://") as scheduler:
        app = scheduler.asgi(auth=None)
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://app.example") as api:
            text = (await api.get("/metrics")).text
    names = set(re.findall(r"^# HELP (\w+)", text, re.MULTILINE))
    assert len(names) > 15
    assert missing(names, page("metrics.md")) == set()


def test_every_attribute_of_the_context_is_described() -> None:
    text = page("python/context.md")
    names = {name for name in dir(RunContext) if not name.startswith("_")}
    assert len(names) > 18
    assert {
        name for name in names if not re.search(rf"^\| `{name}[`(]", text, re.MULTILINE)
    } == set()


def test_every_option_of_webhook_settings_is_described() -> None:
    names = {field.name for field in dataclasses.fields(WebhookSettings)}
    assert missing(names, inspect.getdoc(WebhookSettings) or "") == set()


def test_every_public_name_has_its_entry() -> None:
    entries = set()
    for path in (PAGES / "python").glob("*.md"):
        entries |= set(re.findall(r"^::: (\S+)$", path.read_text(), re.MULTILINE))
    protocol = "mainspring.stores.protocol"
    public = {one.rpartition(".")[2] for one in public_names()}
    returned = {
        one
        for one in returned_names()
        if one.rpartition(".")[2] not in public and not one.startswith(protocol)
    }
    assert len(returned) > 25
    assert (public_names() | returned) - entries == set()
    assert entries - public_names() - returned == {protocol}


def test_every_value_that_a_method_returns_has_a_docstring() -> None:
    for name in returned_names():
        module, _, last = name.rpartition(".")
        value = getattr(importlib.import_module(module), last)
        assert value.__doc__, name
        assert not value.__doc__.startswith(f"{last}("), name  # what a dataclass makes up


def test_every_code_of_an_explanation_is_described() -> None:
    assert missing(frozenset(map(str, Reason)), page("explanations.md")) == set()


def error_names() -> set[str]:
    return {
        name
        for name, kind in vars(mainspring.errors).items()
        if inspect.isclass(kind) and issubclass(kind, BaseException)
    }


def test_every_public_name_has_a_docstring() -> None:
    for name in public_names() | {f"mainspring.errors.{name}" for name in error_names()}:
        module, _, last = name.rpartition(".")
        value = getattr(__import__(module, fromlist=[last]), last)
        if inspect.isclass(value) or inspect.isroutine(value):
            inherited = inspect.isclass(value) and value.__doc__ == value.__base__.__doc__
            assert value.__doc__, name
            assert not inherited, name


@pytest.mark.parametrize("kind", [Client, Scheduler, RunContext, mainspring.Run, mainspring.Job])
def test_every_public_method_has_a_docstring(kind: type) -> None:
    bare = {
        name
        for name, member in inspect.getmembers(kind)
        if not name.startswith("_")
        and (inspect.isfunction(member) or isinstance(member, property))
        and not member.__doc__
    }
    assert bare == set()


def test_every_page_of_the_reference_is_listed() -> None:
    text = page("index.md")
    for path in PAGES.rglob("*.md"):
        name = str(Path(path).relative_to(PAGES))
        assert name == "index.md" or f"]({name})" in text, name
    for name in GENERATED():
        assert f"]({name})" in text, name
