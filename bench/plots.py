"""The plots and tables of the performance page, made from a report.

    python -m bench plots [bench/results/2026-11-19-report.json]

Writes SVG files that are readable on light and on dark pages, and the tables in
docs/explanation/performance.md and README.md between `<!-- figures: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from bench.measure import RESULTS
from bench.peers import PEERS

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "assets" / "performance"
PAGES = (ROOT / "docs" / "explanation" / "performance.md", ROOT / "README.md")
WIDTH, LEFT, RIGHT, ROW = 720, 190, 120, 24
STYLE = """
text{font:13px system-ui,sans-serif;fill:#1f2430}.title{font-weight:600;font-size:15px}
.note{fill:#5b6270;font-size:12px}.page{fill:#fff}.axis{stroke:#c9ced8}
.c0{fill:#3f51b5;stroke:#3f51b5}.c1{fill:#9aa3b5;stroke:#9aa3b5}.c2{fill:#00897b;stroke:#00897b}
.c3{fill:#c2185b;stroke:#c2185b}.c4{fill:#ef6c00;stroke:#ef6c00}.c5{fill:#6d4c41;stroke:#6d4c41}
path{fill:none!important;stroke-width:2}
@media(prefers-color-scheme:dark){text{fill:#e6e9f0}.note{fill:#a3abba}.page{fill:#1e2129}
.axis{stroke:#454b59}.c0{fill:#8c9eff;stroke:#8c9eff}.c1{fill:#727b8d;stroke:#727b8d}
.c2{fill:#4db6ac;stroke:#4db6ac}.c3{fill:#f48fb1;stroke:#f48fb1}.c4{fill:#ffb74d;stroke:#ffb74d}
.c5{fill:#bcaaa4;stroke:#bcaaa4}}
"""


class Bar(NamedTuple):
    label: str
    value: float
    text: str
    ours: bool = False
    until: float | None = None
    """A second, lighter part of the bar ends here."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("report", nargs="?", type=Path, help="the newest by default")


def run(options: argparse.Namespace) -> dict[str, Any]:
    path = options.report or max(RESULTS.glob("*-report.json"))
    return {"pictures": draw(path), "report": path.name}


def draw(path: Path) -> list[str]:
    """Draw the plots and write the tables of a report; the names of the files."""
    report = json.loads(path.read_text())
    pictures = dict(_pictures(report))
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures.items():
        (PICTURES / f"{name}.svg").write_text(picture)
    tables = _tables(report, path)
    for page in PAGES:
        page.write_text(_filled(page.read_text(), tables))
    return sorted(pictures)


def _filled(text: str, tables: dict[str, str]) -> str:
    for name, table in tables.items():
        before, begin, rest = text.partition(f"<!-- figures: {name} -->")
        if begin:
            _, end, after = rest.partition("<!-- end -->")
            text = f"{before}{begin}\n\n{table}\n\n{end}{after}"
    return text


# -- SVG --------------------------------------------------------------------------------------


def bars(title: str, note: str, rows: Sequence[Bar], *, log: bool = False) -> str:
    """Horizontal bars, each with its figure behind it; the rows in the order given."""
    if not rows:
        return _svg(title, "not measured that day", 60, [])
    ends = [row.until or row.value for row in rows]
    least = min(row.value for row in rows)
    low = 10 ** math.floor(math.log10(least)) if log and least > 0 else 0
    scale = _scale(low, max(ends), LEFT, WIDTH - RIGHT, log=log)
    parts = []
    for at, row in enumerate(rows):
        y = 58 + at * ROW
        if row.until is not None:
            parts.append(_bar(y, scale(row.until), "c0" if row.ours else "c1", 0.45))
        parts.append(_bar(y, scale(row.value), "c0" if row.ours else "c1", 1))
        parts.append(_text(LEFT - 8, y + 12, row.label, "end"))
        parts.append(_text(scale(ends[at]) + 6, y + 12, row.text))
    return _svg(title, note, 58 + len(rows) * ROW + 8, parts)


def lines(title: str, note: str, series: dict[str, list[tuple[float, float]]]) -> str:
    """Lines over the numbers of runs; both axes are logarithmic."""
    points = [point for line in series.values() for point in line]
    if not points:
        return _svg(title, "not measured that day", 60, [])
    left, right, top, bottom = 76, WIDTH - 150, 64, 344
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low, high = 10 ** math.floor(math.log10(min(ys))), 10 ** math.ceil(math.log10(max(ys)))
    across = _scale(min(xs), max(xs), left, right, log=True)
    up = _scale(low, high, bottom, top, log=True)
    parts = []
    for exponent in range(round(math.log10(low)), round(math.log10(high)) + 1):
        y = up(10**exponent)
        parts.append(f'<line class="axis" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(left - 8, y + 4, f"{10**exponent:g} ms", "end", "note"))
    for x in sorted(set(xs)):
        parts.append(_text(across(x), bottom + 20, _count(x), "middle", "note"))
    lowest = 0.0
    for at, (name, line) in sorted(
        enumerate(series.items()), key=lambda item: up(item[1][1][-1][1])
    ):
        places = [f"{across(x):.1f} {up(y):.1f}" for x, y in line]
        parts.append(f'<path class="c{at % 6}" d="M{" L".join(places)}"/>')
        for x, y in line:
            parts.append(f'<circle class="c{at % 6}" cx="{across(x):.1f}" cy="{up(y):.1f}" r="3"/>')
        lowest = max(lowest + 16, up(line[-1][1]) + 4)  # labels do not overlap
        parts.append(_text(across(line[-1][0]) + 10, lowest, name))
    return _svg(title, note, bottom + 34, parts)


def _scale(
    low: float, high: float, start: float, end: float, *, log: bool
) -> Callable[[float], float]:
    def place(value: float) -> float:
        if not log:
            return start + (end - start) * (value - low) / ((high - low) or 1)
        part = math.log(max(value, low) / low) / (math.log(high / low) or 1)
        return start + (end - start) * part

    return place


def _bar(y: float, end: float, kind: str, opacity: float) -> str:
    width = max(1.0, end - LEFT)
    return (
        f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{width:.1f}" height="16" rx="2"'
        f' opacity="{opacity}" stroke-width="0"/>'
    )


def _text(x: float, y: float, text: str, anchor: str = "start", kind: str = "") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{escape(text)}</text>'
    )


def _svg(title: str, note: str, height: float, parts: Iterable[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img">'
        f"<title>{escape(title)}</title><style>{STYLE}</style>"
        f'<rect class="page" width="{WIDTH}" height="{height:.0f}" rx="6"/>'
        + _text(16, 26, title, kind="title")
        + _text(16, 44, note, kind="note")
        + "".join(parts)
        + "</svg>\n"
    )


def _count(number: float) -> str:
    for size, unit in ((1_000_000, " million"), (1_000, ",000")):
        if number >= size:
            return f"{number / size:g}{unit}"
    return f"{number:g}"


# -- what is drawn ----------------------------------------------------------------------------

NAMES = {
    "mainspring": "Mainspring (SQLite)",
    "mainspring-mongodb": "Mainspring (MongoDB)",
    "huey": "Huey (SQLite)",
    "apscheduler3": "APScheduler 3 (SQLite)",
    "apscheduler4": "APScheduler 4 (SQLite)",
    "celery": "Celery (Redis)",
    "dramatiq": "Dramatiq (Redis)",
    "taskiq": "Taskiq (Redis)",
    "rq": "RQ (Redis)",
    "mongo-job-scheduler": "mongo-job-scheduler",
    "agenda": "agenda",
    "mainspring-postgresql": "Mainspring (PostgreSQL)",
    "procrastinate": "Procrastinate",
    "pgqueuer": "PgQueuer",
    "graphile-worker": "Graphile Worker",
    "pg-boss": "pg-boss",
}


def _figures(report: dict[str, Any], part: str) -> dict[str, Any]:
    figures: dict[str, Any] = report.get(part, {}).get("figures", {})
    return figures


def _peers(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {k: v for k, v in _tried_peers(report).items() if "failed" not in v}


def _tried_peers(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    parts = [_figures(report, f"peers-{place}") for place in PEERS]
    return {peer: figures for part in parts for peer, figures in part.items()}


def _pictures(report: dict[str, Any]) -> Iterable[tuple[str, str]]:
    peers = _peers(report)
    for name, key, title, note, most_first in (
        ("drain", "drain_a_second", "No-op runs a second, one worker", "more is better", True),
        ("enqueue", "enqueue_a_second", "Enqueues a second, one by one", "more is better", True),
        ("idle", "idle_percent_of_a_core", "CPU of an idle worker, % of a core",
         "less is better", False),
        ("memory", "worker_megabytes", "Memory of an idle worker, MB", "less is better", False),
    ):  # fmt: skip
        rows = [
            Bar(NAMES[peer], figures[key], f"{figures[key]:,}", peer.startswith("mainspring"))
            for peer, figures in peers.items()
            if key in figures
        ]
        yield name, bars(title, note, sorted(rows, key=lambda r: r.value, reverse=most_first))
    for name, key, title in (
        ("start", "start", "From enqueue to start in an idle worker"),
        ("lateness", "late", "Lateness of 100 jobs that share each second"),
    ):
        rows = [
            Bar(NAMES[peer], figures[f"{key}_p50_ms"],
                f"{figures[f'{key}_p50_ms']:g} / {figures[f'{key}_p99_ms']:g} ms",
                peer.startswith("mainspring"), figures[f"{key}_p99_ms"])
            for peer, figures in peers.items()
            if f"{key}_p50_ms" in figures
        ]  # fmt: skip
        note = "median and, lighter, 99th percentile; logarithmic; less is better"
        yield name, bars(title, note, sorted(rows, key=lambda r: r.value), log=True)
    rows = [Bar(label, value, f"{value:g}", True) for label, value in _ratios(report)]
    yield (
        "bare",
        bars(
            "Speed as a part of the bare loop's",
            "1 is the same work by the driver or framework alone, without a scheduler",
            [*rows, Bar("the bare loop", 1, "1")] if rows else [],
        ),
    )
    for store in ("sqlite", "mongodb"):
        grown = _figures(report, f"growth-{store}").get(store, {})
        series: dict[str, list[tuple[float, float]]] = {}
        for size, figures in grown.items():
            for key, label in OPERATIONS.items():
                series.setdefault(label, []).append((int(size.split()[0]), figures[key]))
        title = f"Cost by finished runs, {'SQLite' if store == 'sqlite' else 'MongoDB'}"
        most = _count(max((f["pending"] for f in grown.values()), default=0))
        yield (
            f"growth-{store}",
            lines(title, f"as many runs are pending, {most} at most; medians", series),
        )


OPERATIONS = {
    "claim_200_ms": "claim 200",
    "enqueue_ms": "enqueue one",
    "list_50_ms": "list 50",
    "job_health_ms": "job health",
    "stats_ms": "count all",
    "prune_100_ms": "prune 100",
}


def _ratios(report: dict[str, Any]) -> list[tuple[str, float]]:
    places = (
        ("drain, SQLite", "sqlite", "drain_of_bare_loop"),
        ("enqueue in bulk, SQLite", "sqlite", "enqueue_of_bare_loop"),
        ("drain, MongoDB", "mongodb", "of_bare_loop"),
        ("drain, PostgreSQL", "postgresql", "of_bare_loop"),
        ("job creation over HTTP", "api", "creations_of_bare"),
        ("webhooks", "webhooks", "of_bare_loop"),
        ("webhooks, calls alone", "webhooks", "of_bare_calls"),
    )
    found = []
    for label, part, key in places:
        figures = _figures(report, part)
        value = figures.get(key, figures.get("drain", {}).get(key))
        if value is not None:
            found.append((label, value))
    return found


# -- tables -----------------------------------------------------------------------------------


def _tables(report: dict[str, Any], path: Path) -> dict[str, str]:
    tables = {
        "conditions": _conditions(report, path),
        "peers": _peer_table(report),
        "losses": _losses(_peers(report)),
        "postgresql": _postgresql_table(_figures(report, "postgresql")),
    }
    rows = list(_readme_rows(report))
    head = "| what | figure |\n|---|---|\n"
    tables["main"] = head + "\n".join(f"| {what} | {figure} |" for what, figure in rows)
    tables["main"] += (
        f"\n\nMeasured on [{path.name[:10]}](bench/results/{path.name}){_load_note(report)}."
    )
    more = list(_more_rows(report))
    tables["more"] = head + "\n".join(f"| {what} | {figure} |" for what, figure in [*rows, *more])
    return tables


def _conditions(report: dict[str, Any], path: Path) -> str:
    machine: dict[str, Any] = next((p["machine"] for p in report.values() if "machine" in p), {})
    failed = [name for name, part in report.items() if "failed" in part]
    failed += [n for n, f in _tried_peers(report).items() if "failed" in f]
    return (
        f"All figures are of [{path.name[:10]}](../../bench/results/{path.name})"
        f"{_load_note(report)}, on two cores, Python {machine.get('python')} and SQLite"
        f" {machine.get('sqlite')}."
        + (f" Not measured that day: {', '.join(failed)}." if failed else "")
    )


def _load_note(report: dict[str, Any]) -> str:
    loads = [part["load_before"] for part in report.values() if "load_before" in part]
    if not loads or max(loads) < 2.5:
        return ""
    return f", on a busy machine (load {min(loads):.0f} to {max(loads):.0f} before each part)"


def _readme_rows(report: dict[str, Any]) -> Iterable[tuple[str, str]]:
    if rates := _figures(report, "sqlite").get("jobs_per_second"):
        yield "enqueue and run, one by one", f"{_of(rates['end to end'])} a second"
        yield "drain a backlog of no-op runs", f"{_of(rates['drain'])} a second"
    if latency := _figures(report, "latency"):
        same, other = (latency[f"{side} process"]["mainspring"] for side in ("same", "other"))
        yield (
            "from enqueue to start, 99th percentile",
            f"{same['p99_ms']:.0f} ms in the same process, {other['p99_ms']:.0f} ms from another",
        )
    if late := _figures(report, "lateness").get("1000 jobs a second"):
        yield (
            "lateness of 1,000 jobs in the same second",
            f"median {late['p50_ms']:.0f} ms, 99th percentile {late['p99_ms']:.0f} ms",
        )


def _more_rows(report: dict[str, Any]) -> Iterable[tuple[str, str]]:
    if late := _figures(report, "lateness").get("100 jobs a second"):
        yield (
            "lateness of 100 jobs in the same second",
            f"median {late['p50_ms']:.0f} ms, 99th percentile {late['p99_ms']:.0f} ms",
        )
    if rates := _figures(report, "mongodb").get("drain", {}).get("jobs_per_second"):
        yield "drained on MongoDB, majority writes", f"{_of(rates['mainspring'])} a second"
    if api := _figures(report, "api"):
        yield (
            "jobs created over HTTP, one by one",
            f"{_of(api['creations_per_second']['ours'])} a second",
        )
        pages = api["list_of_10000_jobs_by_page_of_20"]
        on_mongodb = pages.get("ours on MongoDB")
        more = f", on MongoDB {on_mongodb['p50_ms']} ms" if isinstance(on_mongodb, dict) else ""
        yield (
            "a page of 20 among 10,000 jobs over HTTP",
            f"median {pages['ours']['p50_ms']} ms{more}",
        )
    if rates := _figures(report, "webhooks").get("per_second"):
        yield "webhooks called, each signed and recorded", f"{_of(rates['webhook runs'])} a second"


def _postgresql_table(figures: dict[str, Any]) -> str:
    if not figures:
        return "Not measured that day."
    enqueue, latency = figures["enqueue"], figures["latency"]
    rates = enqueue["runs_per_second"]
    drained = figures["drain"]["jobs_per_second"]["mainspring"]
    processes = ", ".join(f"{rate:,} with {n}" for n, rate in figures["processes"].items())
    rows = (
        ("drain", f"{_of(drained)} a second", figures["drain"]["of_bare_loop"]),
        ("enqueue, one by one", f"{_of(rates['one by one'])} a second", enqueue["one_of_bare"]),
        ("enqueue, 100 at once", f"{_of(rates['batches'])} a second", enqueue["batches_of_bare"]),
        (
            "from enqueue to start, median / 99th percentile",
            f"{latency['mainspring']['p50_ms']:g} / {latency['mainspring']['p99_ms']:g} ms",
            f"{latency['p50_of_bare']:g} / {latency['p99_of_bare']:g}",
        ),
        ("1,000 runs due at once, 99th percentile", f"{figures['lateness']['p99_ms']:g} ms", "–"),
        ("runs a second, by processes", processes, "–"),
    )
    lines = [f"| {what} | {figure} | {ratio} |" for what, figure, ratio in rows]
    hints = enqueue["with_hints_of_without"]
    return (
        "\n".join(["| what | figure | of the bare loop |", "|---|---|---|", *lines])
        + f"\n\nAn enqueue with hints has {hints:g} of the speed of one without."
    )


def _of(spread: dict[str, float]) -> str:
    return f"{spread['median']:,}"


def _peer_table(report: dict[str, Any]) -> str:
    lines = [
        "| | settings and durability | drain /s | enqueue /s | start p50 / p99 ms | late p50 / p99"
        " ms | idle CPU % | MB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for peer, f in _peers(report).items():
        late = f"{f['late_p50_ms']:g} / {f['late_p99_ms']:g}" if "late_p50_ms" in f else "–"
        lines.append(
            f"| {NAMES[peer]} | {f['settings']} | {f['drain_a_second']:,} |"
            f" {f['enqueue_a_second']:,} | {f['start_p50_ms']:g} / {f['start_p99_ms']:g} | {late} |"
            f" {f['idle_percent_of_a_core']:g} | {f['worker_megabytes']} |"
        )
    return "\n".join(lines)


def _losses(peers: dict[str, dict[str, Any]]) -> str:
    """In what a peer is better than Mainspring on the same store (Redis: on SQLite)."""
    lines = []
    for place, group in PEERS.items():
        own = group[0] if group[0].startswith("mainspring") else "mainspring"
        ours = peers.get(own, {})
        for key, what, sign in FIGURES:
            better = sorted(
                (sign * -peers[peer][key], f"{NAMES[peer]} {peers[peer][key]:,}")
                for peer in group
                if key in peers.get(peer, {}) and key in ours
                if sign * (peers[peer][key] - ours[key]) > 0
            )
            if better:
                names = "; ".join(name for _, name in better)
                lines.append(f"| {place} | {what} | {ours[key]:,} | {names} |")
    if not lines:
        return "Nowhere, that day."
    return "\n".join(
        ["| tasks kept in | figure | Mainspring | better |", "|---|---|---|---|", *lines]
    )


FIGURES = (
    ("drain_a_second", "no-op runs a second", 1),
    ("enqueue_a_second", "enqueues a second, one by one", 1),
    ("start_p50_ms", "ms from enqueue to start, median", -1),
    ("start_p99_ms", "ms from enqueue to start, 99th percentile", -1),
    ("late_p99_ms", "ms of lateness, 99th percentile", -1),
    ("idle_percent_of_a_core", "% of a core while idle", -1),
    ("worker_megabytes", "MB of memory", -1),
)
"""Of a peer: the key, what it is, and whether more (1) or less (-1) is better."""
