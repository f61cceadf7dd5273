"""Small tools that the benchmarks share."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

RESULTS = Path(__file__).parent / "results"
_began = time.monotonic()


def say(text: str) -> None:
    """Tell on stderr what is being measured, so that a long benchmark does not look stuck."""
    print(f"[{time.monotonic() - _began:4.0f} s] {text}", file=sys.stderr, flush=True)


def rounds(count: int, what: str) -> Iterator[int]:
    """Count rounds, and tell which one begins."""
    for at in range(count):
        say(f"{what}: round {at + 1} of {count}")
        yield at


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A directory for databases, on the disk of the checkout (a tmpfs would sync nothing)."""
    here = RESULTS / "tmp"
    here.mkdir(parents=True, exist_ok=True)
    path = Path(tempfile.mkdtemp(dir=here))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def cpu_of(process: int) -> float:
    """Seconds of CPU that a process has used, by all its threads (Linux)."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def quantile(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def milliseconds(seconds: Sequence[float]) -> dict[str, float]:
    """p50, p99 and the worst of some times, in ms."""
    return {
        "p50_ms": round(median(seconds) * 1000, 2),
        "p99_ms": round(quantile(seconds, 0.99) * 1000, 2),
        "worst_ms": round(max(seconds) * 1000, 2),
        "samples": len(seconds),
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    return {
        "median": rounded(median(values)),
        "least": rounded(min(values)),
        "most": rounded(max(values)),
    }


def rounded(value: float) -> float:
    return round(value) if value >= 100 else round(value, 2)


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the rounds' own ratios: both sides of one round saw the same noise."""
    return round(median(a / b for a, b in zip(ours, theirs, strict=True)), 2)


def compare_latencies(ours: Sequence[list[float]], bare: Sequence[list[float]]) -> dict[str, Any]:
    """The times of all rounds of both sides. The 99th percentile of one round is its worst sample,
    so that ratio is of all rounds together."""
    all_ours, all_bare = milliseconds(list(chain(*ours))), milliseconds(list(chain(*bare)))
    return {
        "mainspring": all_ours,
        "bare": all_bare,
        "p50_of_bare": ratio([median(o) for o in ours], [median(b) for b in bare]),
        "p99_of_bare": round(all_ours["p99_ms"] / all_bare["p99_ms"], 2),
    }
