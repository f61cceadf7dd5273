"""The examples of the pages about jobs, effects and the library run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mainspring.core.events import EVENTS
from mainspring.core.policy import Policy

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["jobs.md", "effect-once.md", "library.md"])
def test_the_examples_run(page: str, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    script = tmp_path / "page.py"
    script.write_text("\n\n".join(blocks))
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "never" not in done.stderr  # awaited, retrieved: what Python says of forgotten work


def test_every_policy_and_event_is_described() -> None:
    jobs, library = (DOCS / "jobs.md").read_text(), (DOCS / "library.md").read_text()
    options = set(Policy.__dataclass_fields__) | {"retry_delay", "timezone", "jitter", "enabled"}
    assert {name for name in options if f"`{name}`" not in jobs} == set()
    parts = {part for name in EVENTS for part in name.split(".")}
    assert {part for part in parts if part not in library} == set()
