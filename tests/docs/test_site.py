"""The site of `make docs` holds every page and public name, and loads nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from tests.support.dashboard import *  # noqa: F403
from tests.support.doc_examples import DOCS, ROOT
from tools import reference

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = ["-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_in_the_site_and_in_its_menu(site: Path) -> None:
    home = (site / "index.html").read_text()
    pages = [page.relative_to(DOCS) for page in DOCS.rglob("*.md")]
    pages += [Path("reference") / name for name in reference.pages()]
    for page in pages:
        made = page.with_suffix(".html")
        if page.parts[0] in ("architecture", "decisions", "maintainers"):
            assert not (site / made).exists(), page
            continue
        assert (site / made).exists(), page
        assert f'href="{made}"' in home or str(made) == "index.html", page


def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 50
    for page in pages:
        text = page.read_text()
        loaded = re.findall(r"<(?:script|img|iframe|source)[^>]*\ssrc=\"?([^\s\">]+)", text)
        loaded += re.findall(r"<link[^>]*rel=\"?(?:stylesheet|icon|preload)[^>]*>", text)
        assert [one for one in loaded if "://" in one or 'href="//' in one] == [], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?https?:|@import", sheet.read_text()), sheet


async def test_search_works_from_the_file_system_without_a_network(site: Path, page: Page) -> None:
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    await page.goto((site / "index.html").as_uri())
    await page.locator(".md-search__input").focus()
    await page.keyboard.insert_text("TransactionExpired")
    link = page.locator('.md-search-result__link[href*="reference/python/errors.html"]')
    await expect(link.first).to_be_attached()
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
