"""The performance page is drawn from a report, also from one that misses parts."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import plots

PEER = {
    "settings": "here & there",
    "drain_a_second": 1234,
    "enqueue_a_second": 12,
    "idle_percent_of_a_core": 0.0,
    "worker_megabytes": 40,
    "start_p50_ms": 1.5,
    "start_p99_ms": 20.0,
}
GROWN = {"pending": 10_000, "filled_in_s": 1, **dict.fromkeys(plots.OPERATIONS, 2.5)}
REPORT = {
    "peers-sqlite": {
        "load_before": 9.0,
        "figures": {"mainspring": PEER | {"drain_a_second": 900}, "huey": PEER},
    },
    "peers-redis": {"figures": {"rq": {"failed": "no Redis"}}},
    "sqlite": {"failed": "it took longer than 300 s", "load_before": 1.0},
    "growth-sqlite": {
        "figures": {"sqlite": {"10000 finished": GROWN, "100000 finished": GROWN}},
        "machine": {"python": "3.11", "sqlite": "3.40"},
    },
}


def test_a_report_becomes_pictures_and_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    names = ("losses", "peers", "conditions")
    page.write_text("".join(f"a <!-- figures: {name} -->\nold\n<!-- end -->\n" for name in names))
    report = tmp_path / "2026-01-02-report.json"
    report.write_text(json.dumps(REPORT))
    monkeypatch.setattr(plots, "PAGES", (page,))
    monkeypatch.setattr(plots, "PICTURES", tmp_path)
    drawn = plots.draw(report)
    assert {"drain", "growth-sqlite", "growth-mongodb", "lateness"} < set(drawn)
    for name in drawn:
        assert ElementTree.parse(tmp_path / f"{name}.svg").getroot().tag.endswith("svg")
    text = page.read_text()
    assert "| Huey (SQLite) | here & there | 1,234 | 12 | 1.5 / 20 | – | 0 | 40 |" in text
    assert "| sqlite | no-op runs a second | 900 | Huey (SQLite) 1,234 |\n" in text
    assert "old" not in text
    assert "Not measured that day: sqlite, rq." in text
    assert "on a busy machine (load 1 to 9 before each part)" in text
