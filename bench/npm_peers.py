"""The npm peers, fetched into a cache with npm and driven by small scripts in `bench/npm`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

__all__ = ["drain", "fetch_peers"]

SCRIPTS = Path(__file__).parent / "npm"
CACHE = Path(__file__).parents[1] / ".cache" / "mainspring-bench"

RUNS = 2_000
SETTINGS = {  # concurrency and polling in ms: the best of those tried
    "mongo-job-scheduler": (20, 10),
    "agenda": (100, 100),
}


def fetch_peers() -> Path:
    """A folder with the scripts and what they need, at the versions in package.json."""
    place = Path(os.environ.get("MAINSPRING_BENCH_CACHE", CACHE)) / "npm"
    place.mkdir(parents=True, exist_ok=True)
    for script in SCRIPTS.iterdir():
        shutil.copy(script, place / script.name)
    wanted = (SCRIPTS / "package.json").read_text()
    done = place / "fetched.json"
    if not done.exists() or done.read_text() != wanted:
        command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"]
        subprocess.run(command, cwd=place, check=True)
        done.write_text(wanted)
    return place


def drain(peer: str, url: str, concurrency: int, poll: int, runs: int = RUNS) -> float:
    """Jobs a second, from the start of its workers to the last completion it tells of."""
    arguments = [peer, url, str(runs), str(concurrency), str(poll)]
    done = subprocess.run(
        ["node", "drain.mjs", *arguments],
        cwd=fetch_peers(), check=True, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    rate: float = json.loads(done.stdout.splitlines()[-1])["rate"]
    return rate
