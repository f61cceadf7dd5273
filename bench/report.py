"""Every figure of the performance page in one run, at most 25 minutes, and the page made from it.

    python -m bench report [--only api] [--minutes 25]

Each benchmark is a program of its own: one that fails, or takes too long, is named in the report,
and the others go on. What is there is kept after each, in `bench/results`, under the day's date; a
report of the same day is completed. At the end `plots` draws the page.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from typing import Any

from bench import peers, plots
from bench.measure import RESULTS, say

PARTS: dict[str, list[str]] = {
    "sqlite": [],
    "latency": [],
    "lateness": [],
    "api": [],
    "webhooks": [],
    "mongodb": [],
    "postgresql": [],
    "peers-sqlite": ["peers", "--on", "sqlite"],
    "peers-redis": ["peers", "--on", "redis"],
    "peers-mongodb": ["peers", "--on", "mongodb"],
    "peers-postgresql": ["peers", "--on", "postgresql"],
    "growth-mongodb": ["growth", "--store", "mongodb"],
    "growth-sqlite": ["growth", "--store", "sqlite", "--most", "10000000"],
}
"""The last takes what is left of the time: it is told when to stop growing."""
SECONDS = 300


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", choices=PARTS, action="append", help="repeatable")
    parser.add_argument("--minutes", type=float, default=25, help="the whole must end by then")


def run(options: argparse.Namespace) -> dict[str, Any]:
    ends = time.monotonic() + options.minutes * 60 - 20
    path = RESULTS / f"{datetime.now(UTC):%Y-%m-%d}-report.json"
    report: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for name in options.only or PARTS:
        began, load = datetime.now(UTC), os.getloadavg()[0]
        most: float = SECONDS
        left = ends - time.monotonic()
        if name == "growth-sqlite":
            most = max(most, left)
        command = [*(PARTS[name] or [name]), "--json"]
        if name.startswith(("growth", "peers")):
            spare = peers.SECONDS + 20 if name.startswith("peers") else 30
            command += ["--seconds", str(max(0, int(min(most, left) - spare)))]
        figures = _figures(command, min(most, left))
        if "failed" in figures and "figures" in report.get(name, {}):
            say(f"report: {name} failed, so its earlier figures stay: {figures['failed']}")
            continue
        report[name] = {
            "at": f"{began:%Y-%m-%dT%H:%MZ}",
            "load_before": round(load, 2),
            "seconds": round((datetime.now(UTC) - began).total_seconds()),
            **figures,
        }
        path.write_text(json.dumps(report, indent=2) + "\n")
    plots.draw(path)
    return {name: part.get("failed", "measured") for name, part in report.items()}


def _figures(command: list[str], seconds: float) -> dict[str, Any]:
    """The figures and the machine, or `failed`."""
    if seconds < 30:
        say(f"report: no time left for {command[0]}")
        return {"failed": "no time was left"}
    program = [sys.executable, "-m", "bench", *command]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
        except BaseException as error:
            process.send_signal(signal.SIGTERM)  # its servers end, too
            process.wait(60)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            return {"failed": f"it took longer than {seconds:.0f} s"}
    if process.returncode:
        return {"failed": f"it ended with code {process.returncode}"}
    figures: dict[str, Any] = json.loads(output)
    return {"machine": figures["machine"], "figures": figures[command[0]]}
