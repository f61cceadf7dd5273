"""Hooks of mkdocs: links out of docs/ lead to the repository; design pages join the menu."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?\)")
SCHEME = re.compile(r"[a-z]+:")


def on_config(config: Any) -> Any:
    """Add the pages of the code's design, which come and go, to the menu of mkdocs.yml."""
    docs = Path(config.docs_dir)
    decisions = docs / "decisions"
    pages = [
        *sorted((docs / "architecture").glob("*.md")),
        decisions / "index.md",
        *sorted(decisions.glob("0*.md")),
    ]
    config.nav.append({"Design": [str(page.relative_to(docs)) for page in pages]})
    return config


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Pages link to files such as ../deploy/compose.yaml, which are not part of the site."""
    folder = posixpath.dirname(page.file.src_uri)

    def absolute(link: re.Match[str]) -> str:
        target = link[2]
        if SCHEME.match(target):
            return link[0]
        path = posixpath.normpath(posixpath.join("docs", folder, target))
        if path.startswith("docs/") and posixpath.splitext(path)[1]:
            return link[0]
        return f"{link[1]}{config.repo_url.rstrip('/')}/blob/main/{path}{link[3] or ''})"

    return LINK.sub(absolute, markdown)
