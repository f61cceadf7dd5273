"""Many seeds of the simulated cluster on a real MongoDB.

`python -m tests.support.mongodb --seeds 60`.

`--seed 17 --trace` shows one again, as far as real time lets it be the same.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from functools import partial

from tests.support.mongodb.watched_database import WatchedDatabase
from tests.support.servers.mongodb import ReplicaSet
from tests.support.simulation.real_time import simulate_for_real


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.mongodb", description=__doc__)
    parser.add_argument("--seeds", type=int, default=30, help="how many (default 30)")
    parser.add_argument("--start", type=int, default=0, help="the first of them (default 0)")
    parser.add_argument("--at-once", type=int, default=2, help="at the same time (default 2)")
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--stress", action="store_true", help="the harder world")
    parser.add_argument("--trace", action="store_true", help="show all that happens")
    given = parser.parse_args()
    first = given.start if given.seed is None else given.seed
    end = given.start + given.seeds if given.seed is None else given.seed + 1
    counted: Counter[str] = Counter()
    with ReplicaSet(1) as servers:
        while first < end:
            seeds = range(first, min(first + given.at_once, end))
            for report in simulate_for_real(
                seeds, partial(WatchedDatabase, servers.url), trace=given.trace, stress=given.stress
            ):
                for line in report.lines:
                    _say(line)
                if report.violations:
                    _say(f"seed {report.seed} FAILED:", *map(str, report.violations))
                    return 1
                counted += report.counted
            first = seeds.stop
            _say(f"seeds up to {first - 1} held")
    _say("What they met:", *(f"{count:>8,}  {what}" for what, count in counted.most_common()))
    return 0


def _say(*lines: str) -> None:
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
