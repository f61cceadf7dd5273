"""The example of docs/maintainers/writing-a-store.md passes the suite as any store must."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from examples.file_store import FileStore
from mainspring.stores.codec import JOB, RUN, Table
from mainspring.stores.protocol import Store
from mainspring.testing import StoreConformance
from mainspring.testing.conformance.base import Repair


@pytest.mark.thorough
class TestFileStore(StoreConformance):
    reads_clock = True
    refuses_when_closed = False  # it opens the file for each call

    def make_store(self) -> Store:
        return FileStore(self.place / "jobs.json", self.clock)

    async def damage_run(self, store: Store, run_id: str, part: str) -> Repair:
        return self._damage("runs", run_id, part)

    async def damage_job(self, store: Store, job_id: str, part: str) -> Repair:
        return self._damage("jobs", job_id, "handler" if part == "definition" else part)

    async def damage_every_field(
        self, store: Store, kind: str, record_id: str
    ) -> AsyncIterator[str]:
        table: Table[Any] = RUN if kind == "run" else JOB
        for name in table.fields:
            if name != "id":  # it is the key of the record, too
                repair = self._damage(f"{kind}s", record_id, name)
                yield name
                await repair()

    def _damage(self, kind: str, record_id: str, part: str) -> Repair:
        """Put an object in place of a field's value, which no field of a record has."""
        path, damaged = self.place / "jobs.json", {"damaged": True}
        contents = json.loads(path.read_text("utf-8"))
        record = contents[kind][record_id]
        whole, record[part] = record.get(part), damaged
        path.write_text(json.dumps(contents), "utf-8")

        async def repair() -> None:
            contents = json.loads(path.read_text("utf-8"))
            record = contents[kind][record_id]
            if record.get(part) == damaged:
                record[part] = whole
            path.write_text(json.dumps(contents), "utf-8")

        return repair


ROOT = Path(__file__).parents[2]


def test_the_page_shows_the_code_of_the_example() -> None:
    page = (ROOT / "docs/maintainers/writing-a-store.md").read_text("utf-8")
    example = (ROOT / "examples/file_store.py").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) > 10
    for block in blocks:
        source = Path(__file__).read_text("utf-8") if "StoreConformance" in block else example
        for part in block.strip().split("\n\n"):
            indented = textwrap.indent(part, "    ")
            assert part in source or indented in source, f"the example has changed:\n{part}"


def test_the_page_names_every_member_of_the_protocol() -> None:
    page = (ROOT / "docs/maintainers/writing-a-store.md").read_text("utf-8")
    members = [name for name in vars(Store) if not name.startswith("_")]
    assert [name for name in members if f"`{name}" not in page] == []


def test_the_example_has_less_than_300_lines() -> None:
    assert len((ROOT / "examples/file_store.py").read_text("utf-8").splitlines()) < 300
