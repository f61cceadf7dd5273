"""Small tools that the benchmarks share."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

__all__ = ["cpu_of", "folder", "milliseconds", "ratio", "rounded", "spread"]


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A directory for databases, on the disk of the checkout (a tmpfs would sync nothing)."""
    here = Path(__file__).parent / "results" / "tmp"
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
