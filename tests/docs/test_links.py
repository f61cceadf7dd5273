"""What pages name exists: linked pages and headings, files, settings, commands and their flags."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mainspring.cli.program import app as program
from tests.support.command_line import command_words
from tests.support.deploy_files import KNOWN
from tests.support.doc_examples import DOCS, ROOT, page_files
from tools import reference

GENERATED = cache(reference.pages)

SOURCES = [
    path
    for folder in ("src", "deploy", "examples")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".yaml", ".service", ".example", ".html", ".md") and path.is_file()
]
OTHER_VARIABLES = {"OTEL_EXPORTER_OTLP_ENDPOINT", "SSL_CERT_FILE", "NO_COLOR", "MAINSPRING_DEBUG"}
OTHER_VARIABLES |= {"EFFECT_ONCE"}  # no variable: a value of executionType
OTHER_VARIABLES |= {"MAINSPRING_NODE"}  # read by engine/live_workers.py
OTHER_VARIABLES |= {"FLASK_APP"}  # read by contrib/flask.py
OTHER_VARIABLES |= {
    *("ATOMIC_REQUESTS", "CONN_MAX_AGE", "SECURE_PROXY_SSL_HEADER", "TIME_ZONE"),
    *("DEFAULT_HANDLER", "USE_X_FORWARDED_HOST"),
}  # settings of Django
OTHER_VARIABLES |= {"MAINSPRING_PLACE", "MAINSPRING_QUICK_REPLACEMENTS"}  # read by cli/processes.py
OTHER_VARIABLES |= {
    *("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_ENDPOINT"),
    *("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AZURE_STORAGE_ACCOUNT_NAME"),
}  # read by stores/objects
OTHER_VARIABLES |= {
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    *("AWS_WEB_IDENTITY_TOKEN_FILE", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_APPLICATION_CREDENTIALS"),
    *("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_KEY", "AZURE_CLIENT_ID"),
    *("AZURE_CLIENT_SECRET", "AZURE_TENANT_ID"),
}  # read by obstore
OTHER_VARIABLES |= {"CRON_TZ", "TYPE_CHECKING"}  # no variables of the environment
MAINSPRING_COMMAND = re.compile(
    r"(?<![\w./-])(?<!from )(?<!manage\.py )mainspring((?: [a-z][a-z0-9]*(?:-[a-z]+)*){1,2})"
    r"((?: [A-Z]\w*| --[a-z-]+(?: [^\s`]+)?)*)"
)


def anchor(heading: str) -> str:
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-")


def headings(text: str) -> set[str]:
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    return {anchor(one) for one in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}


@pytest.mark.parametrize("page", page_files(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith(("http:", "https:")):
            continue
        name, _, part = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        generated = GENERATED().get(target.name) if target.parent == DOCS / "reference" else None
        assert generated is not None or target.exists(), link
        if part:
            assert part in headings(generated or target.read_text()), link


def test_every_decision_is_listed_and_has_its_number_as_title() -> None:
    folder = DOCS / "decisions"
    listed = (folder / "index.md").read_text()
    for page in sorted(folder.glob("0*.md")):
        assert f"| [{page.name[:4]}]({page.name}) |" in listed, page
        assert page.read_text().startswith(f"# {page.name[:4]}: "), page


def test_pages_that_sources_name_exist() -> None:
    for path in SOURCES:
        for name in re.findall(r"\bdocs/[\w/-]+\.md", path.read_text()):
            assert (ROOT / name).exists(), (path, name)


def test_files_that_pages_name_exist() -> None:
    for page in page_files():
        for name in re.findall(r"\b(?:deploy|examples)/[\w./-]*\w", page.read_text()):
            assert (ROOT / name).exists(), (page, name)


def test_variables_that_pages_name_are_read() -> None:
    for page in DOCS.rglob("*.md"):
        for name in re.findall(r"`((?:MAINSPRING_)?[A-Z]{3,}_[A-Z_]+)(?==|`)", page.read_text()):
            # Of APScheduler, and of the clouds whose buckets stores/objects opens.
            other = name.startswith(("EVENT_", "AWS_", "AZURE_", "GOOGLE_"))
            known = name in KNOWN | OTHER_VARIABLES or page.parent.name == "decisions"
            assert known or other, (page, name)


def test_commands_that_pages_name_have_these_flags() -> None:
    """In blocks that no test runs, and in the text: a command, its subcommand, its flags."""
    known = set(command_words())
    groups = {words[0] for words in known if len(words) > 1}
    shown: dict[tuple[str, ...], str] = {}
    seen = 0
    for page in page_files():
        if page.parent.name in ("decisions", "architecture"):
            continue
        for words, rest in MAINSPRING_COMMAND.findall(page.read_text()):
            command = tuple(words.split())
            if command[:1] in known:
                command = command[:1]
            elif command[0] not in groups or len(command) < 2:
                continue
            assert command in known, (page, command)
            if command not in shown:
                done = CliRunner().invoke(program, [*command, "--help"], env={"COLUMNS": "200"})
                assert done.exit_code == 0, (page, command)
                shown[command] = done.output
            for flag in re.findall(r"--[a-z-]+", rest):
                assert flag in shown[command], (page, command, flag)
                seen += 1
    assert seen > 30
