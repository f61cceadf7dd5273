"""What the stores on SQL databases share: lanes, limits as columns, and who holds a dedupe key.

A lane is `9 - priority, job, queue, handler`, joined by 0x1F. The same claims may take all pending
runs of a lane, so a claim takes the earliest of each lane. Lanes are sorted as claims take from
them: from the highest priority down, then by job.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from mainspring.core.model import LIVE, Job, Run, replace
from mainspring.core.policy import MAX_PRIORITY
from mainspring.errors import InvalidInput
from mainspring.stores.limits import ConcurrencyLimit, RateLimit, concurrency_limit, rate_limit
from mainspring.stores.protocol import Added, Claim

SEPARATOR = "\x1f"


class Lane(NamedTuple):
    priority: int
    job_id: str
    queue: str
    handler: str

    @classmethod
    def of(cls, run: Run) -> Lane:
        if SEPARATOR in f"{run.job_id}{run.queue}{run.handler}":
            raise InvalidInput(
                "a queue, handler or job name may not contain the character 0x1F:"
                f" {run.queue!r}, {run.handler!r}, {run.job_id!r}"
            )
        return cls(run.priority, run.job_id, run.queue, run.handler)

    @classmethod
    def parse(cls, name: str) -> Lane | None:
        """None: the lane is damaged, or that of runs that were set aside."""
        try:
            priority, job_id, queue, handler = name.split(SEPARATOR)
            return cls(MAX_PRIORITY - int(priority), job_id, queue, handler)
        except ValueError:
            return None

    @property
    def name(self) -> str:
        return SEPARATOR.join((str(MAX_PRIORITY - self.priority), *self[1:]))

    def is_claimed_by(self, claim: Claim) -> bool:
        """Whether the claim may take runs from the lane."""
        return (
            self.handler in claim.handlers
            and (claim.queues is None or self.queue in claim.queues)
            and claim.most.get(self.job_id, 1) > 0
        )


ALL_LANES = ("/", ":")
"""Between these names lie all lanes with a priority: the characters before "0" and behind "9"."""


def lanes_from_turn(turns: Mapping[int, str]) -> list[tuple[str, str]]:
    """The names between which lie the lanes that a claim takes from, in the order of the turns."""
    ranges = []
    low, last = ALL_LANES
    for priority, job_id in sorted(turns.items(), reverse=True):
        level = str(MAX_PRIORITY - priority)
        behind = f"{level}{SEPARATOR}{job_id} "  # a space comes behind the separator
        ranges += [(low, level), (behind, f"{level}~"), (level, behind)]
        low = f"{level}~"
    return [*ranges, (low, last)]


# -- limits as columns of a job -------------------------------------------------------------

LIMIT_COLUMNS = ("concurrency", "limit_key", "rate", "queue", "follows")
"""What claims and lists search jobs by: made from the policy."""


def limit_columns(job: Job) -> list[Any]:
    limit, rate = concurrency_limit(job), rate_limit(job)
    return [
        None if limit is None else limit.most,
        None if limit is None else limit.key,
        None if rate is None else json.dumps(rate),
        job.policy.queue,
        bool(job.policy.after),
    ]


def read_limits(
    columns: Mapping[str, Sequence[Any]],
) -> tuple[dict[str, ConcurrencyLimit], dict[str, RateLimit]]:
    """The limits of jobs, of their first three columns. Of what is damaged, nothing starts."""
    concurrency: dict[str, ConcurrencyLimit] = {}
    rates: dict[str, RateLimit] = {}
    for job_id, (most, key, rate) in columns.items():
        if most is not None:
            concurrency[job_id] = stored_concurrency(job_id, most, key)
        if rate is not None:
            rates[job_id] = _stored_rate(job_id, rate)
    return concurrency, rates


def stored_concurrency(job_id: str, most: int, key: str | None) -> ConcurrencyLimit:
    own = f"job:{job_id}"
    if key is None or not (key == own or key.startswith("key:")):  # it is damaged
        return ConcurrencyLimit(own, 0)
    return ConcurrencyLimit(key, most)


def _stored_rate(job_id: str, text: str) -> RateLimit:
    try:
        name, most, span = json.loads(text)
        return RateLimit(str(name), int(most), int(span))
    except (TypeError, ValueError):  # it is damaged
        return RateLimit(f"job:{job_id}", 0, 60_000_000)


# -- dedupe keys ----------------------------------------------------------------------------


def find_duplicates(
    runs: Sequence[Run], known: set[str], holders: dict[str | None, Run], now: datetime
) -> dict[int, Added]:
    """The runs whose dedupe key is taken, by a stored run (`holders`) or by an earlier one of the
    same call, by position. `known` are the ids that are stored already."""
    known = set(known)
    duplicates: dict[int, Added] = {}
    refused: set[str] = set()
    for at, run in enumerate(runs):
        if run.id in known:
            continue
        if not refused.isdisjoint(run.after):
            refused.add(run.id)
            duplicates[at] = Added(replace(run, duplicate=True), duplicate=True)
        elif run.dedupe_key is not None and run.dedupe_key in holders:
            refused.add(run.id)
            holder = replace(holders[run.dedupe_key], duplicate=True)
            duplicates[at] = Added(holder, duplicate=True)
        else:
            known.add(run.id)
            lasts = run.dedupe_until is not None and run.dedupe_until > now
            if run.dedupe_key is not None and (run.state in LIVE or lasts):
                holders[run.dedupe_key] = run
    return duplicates
