"""Hooks of mkdocs: generated pages join the site; links to files outside lead to the repository."""

from __future__ import annotations

import posixpath
import re
from typing import Any

from mkdocs.structure.files import File

from tools.reference import pages

LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?\)")
SCHEME = re.compile(r"[a-z]+:")
FOR_MAINTAINERS = ("docs/architecture/", "docs/decisions/", "docs/maintainers/")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are generated from the source."""
    for name, text in pages().items():
        files.append(File.generated(config, f"reference/{name}", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Pages link to files such as ../deploy/compose.yaml, which are not part of the site."""
    folder = posixpath.dirname(page.file.src_uri)

    def absolute(link: re.Match[str]) -> str:
        target = link[2]
        if SCHEME.match(target):
            return link[0]
        path = posixpath.normpath(posixpath.join("docs", folder, target))
        on_site = path.startswith("docs/") and not path.startswith(FOR_MAINTAINERS)
        if on_site and posixpath.splitext(path)[1]:
            return link[0]
        return f"{link[1]}{config.repo_url.rstrip('/')}/blob/main/{path}{link[3] or ''})"

    return LINK.sub(absolute, markdown)
