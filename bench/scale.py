"""What a claim of 200 costs at 10 thousand, 100 thousand and 1 million pending runs.

The files are filled first and then measured in turns, so that noise falls on all alike.
"""

from __future__ import annotations

import asyncio
from statistics import median
from typing import Any

from bench.bare_sqlite import backlog, claim_times
from bench.measure import folder, rounds, say

SHAPES: dict[str, dict[str, Any]] = {
    "10,000 pending": {"pending": 10_000},
    "100,000 pending": {"pending": 100_000},
    "1,000,000 pending": {"pending": 1_000_000},
    "1,000,000 pending, enqueued at once": {"pending": 1_000_000, "at_once": True},
    "10,000 pending and 1,000,000 future of priority 9": {"pending": 10_000, "future": 1_000_000},
}
ROUNDS = 6
CLAIMS = 6


def run() -> dict[str, Any]:
    times: dict[str, list[float]] = {name: [] for name in SHAPES}
    with folder() as path:
        files = {name: path / f"{at}.db" for at, name in enumerate(SHAPES)}
        for name, shape in SHAPES.items():
            say(f"filling: {name}")
            backlog(files[name], **shape)
        for _ in rounds(ROUNDS, "claims"):
            for name, file in files.items():
                # The first claim after opening reads the file's pages, whatever its size.
                times[name] += asyncio.run(claim_times(file, CLAIMS + 1))[1:]
    cost = {name: median(values) for name, values in times.items()}
    least, _, most, at_once, with_future = cost.values()
    return {
        "ms_per_claim_of_200": {name: round(value * 1000, 2) for name, value in cost.items()},
        "million_to_ten_thousand": round(most / least, 2),
        "million_at_once_to_ten_thousand": round(at_once / least, 2),
        "with_a_million_future_to_without": round(with_future / least, 2),
    }
