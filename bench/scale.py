"""What a claim costs at 10 thousand, 100 thousand and 1 million pending runs."""

from __future__ import annotations

from typing import Any

from bench import bare_sqlite
from bench.measure import folder

SIZES = (10_000, 100_000, 1_000_000)


def run() -> dict[str, Any]:
    with folder() as path:
        cost = {
            f"{size} pending": bare_sqlite.claim_cost(path / f"{size}.db", size, 0)
            for size in SIZES
        }
        cost["10000 pending, 1000000 future of high priority"] = bare_sqlite.claim_cost(
            path / "future.db", 10_000, 1_000_000
        )
    first, *_, last, future = cost.values()
    return {
        "ms_per_claim_of_200": {name: round(value, 2) for name, value in cost.items()},
        "million_to_ten_thousand": round(last / first, 2),
        "with_million_future_to_without": round(future / first, 2),
    }
