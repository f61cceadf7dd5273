"""`python -m bench NAME [--json] [its options]`: run a benchmark, or `all`, and print figures."""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import signal
import sqlite3
import sys

from bench.measure import say

BENCHMARKS = {
    "sqlite": "enqueue, drain and end to end on SQLite, beside the bare loop and Huey",
    "latency": "enqueue to start on an idle worker, beside a bare writer and polling reader",
    "lateness": "lateness of starts for 100 and 1,000 jobs that share each second",
    "slots": "1,000 slots a second on one instance and on two: lost, twice, lateness",
    "catch_up": "20,000 jobs after an outage of 30 days: how long until schedules are up to date",
    "cron": "time per `next`, beside croniter",
    "effects": "effect-once beside at-least-once with a commit of its own",
    "api": "job creations and lists over HTTP, beside a bare FastAPI endpoint",
    "dashboard": "server time of every page, with 10,000 jobs and 1,000,000 finished runs",
    "webhooks": "webhook runs a second on loopback, beside a bare aiohttp loop",
    "mongodb": "drain, latency and idle cost on MongoDB, beside bare pymongo",
    "mongodb_scale": "four processes and a limit over them, on MongoDB",
    "objects": "drain, latency, requests and their price on object storage, beside SQLite",
    "postgresql": "enqueue, drain, latency and lateness on PostgreSQL, beside bare psycopg",
    "postgresql_bloat": "claims and commits on PostgreSQL under a held snapshot, and among many",
    "transactions": "adds with dedupe keys and firings on MongoDB, beside bare transactions",
    "within": "a run in the program's own transaction, beside a bare insert in it",
    "statistics": "what counting costs a drain; health and metrics at a million finished runs",
    "sizing": "bytes a run, the cost of counts and pages, and connections on MongoDB",
    "peers": "Mainspring beside 14 others in one table: Celery, RQ, Procrastinate, pg-boss …",
    "growth": "claim, enqueue, list, health and prune at 10 thousand to 10 million runs",
}

SUMMARIES = {
    "report": "every figure of the performance page in at most 25 minutes, and the page from them",
    "plots": "the plots and tables of the performance page, from the newest report",
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "name",
        choices=[*BENCHMARKS, *SUMMARIES, "all"],
        help="; ".join(f"{name}: {what}" for name, what in (BENCHMARKS | SUMMARIES).items()),
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options, more = parser.parse_known_args()
    names = list(BENCHMARKS) if options.name == "all" else [options.name]
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    try:
        report = {name: measure(name, more) for name in names}
    except KeyboardInterrupt:
        sys.exit("interrupted")
    if options.json:
        print(json.dumps({"machine": machine(), **report}, indent=2))
        return
    for name, figures in report.items():
        print(f"\n{name}: {(BENCHMARKS | SUMMARIES)[name]}")
        show(figures, "  ")


def interrupt(*_: object) -> None:
    """Servers end with either signal. A second one does not stop that: after Ctrl+C a benchmark of
    the report has one from the terminal and one from the report."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which programs inherit
    raise KeyboardInterrupt


def measure(name: str, more: list[str]) -> object:
    """The figures of one benchmark. Some have options of their own."""
    say(f"{name}: {(BENCHMARKS | SUMMARIES)[name]}")
    module = importlib.import_module(f"bench.{name}")
    parser = argparse.ArgumentParser(prog=f"python -m bench {name}", description=module.__doc__)
    if not hasattr(module, "add_options"):
        parser.parse_args(more)
        return module.run()
    module.add_options(parser)
    return module.run(parser.parse_args(more))


def machine() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "system": f"{platform.system()} {platform.machine()}",
    }


def show(figures: object, indent: str) -> None:
    if not isinstance(figures, dict):
        print(f"{indent}{figures}")
        return
    for name, value in figures.items():
        if isinstance(value, dict):
            print(f"{indent}{name}")
            show(value, indent + "  ")
        else:
            print(f"{indent}{name:<28} {value}")


if __name__ == "__main__":
    main()
