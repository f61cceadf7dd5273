"""`mainspring doctor` on healthy stores and on damaged ones."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from mainspring.scheduler import Scheduler
from mainspring.stores.protocol import Claim
from mainspring.testing.store_calls import claim_runs
from tests.support.command_line import Run, until

StoredRuns = dict[str, str]

AGO = timedelta(minutes=10)


class Past:
    """A clock ten minutes slow: what it makes has been lying since then."""

    def now(self) -> datetime:
        return datetime.now(UTC) - AGO

    def monotonic(self) -> float:
        return time.monotonic()


def checks(run: Run, *words: str) -> tuple[int, dict[str, dict[str, str]]]:
    answer = run("doctor", *words, "--json")
    document: dict[str, Any] = answer.json
    assert document["ok"] is (answer.code == 0)
    return answer.code, {check["name"]: check for check in document["checks"]}


def producer() -> Scheduler:
    scheduler = Scheduler("sqlite:///mainspring.db", workers=0, clock=Past())

    @scheduler.job()
    def lonely() -> None: ...

    return scheduler


def test_a_healthy_store_passes_every_check(run: Run, stored_runs: StoredRuns) -> None:
    code, found = checks(run)
    assert code == 0
    assert {"python", "mainspring", "sqlite", "tzdata", "clock"} <= found.keys()
    for name in ("store", "store writes", "clock", "due work", "schedules", "leases", "running"):
        assert found[name]["status"] == "ok", found[name]
    assert found["jobs"]["detail"] == "5; runs: 1 succeeded, 1 failed"
    said = run("doctor")
    assert said.code == 0
    assert said.out.splitlines()[0].startswith("ok    python")


def test_doctor_leaves_nothing_behind(run: Run, stored_runs: StoredRuns) -> None:
    before = run("runs", "list", "--json").json, run("jobs", "list", "--json").json
    assert run("doctor").code == 0
    assert (run("runs", "list", "--json").json, run("jobs", "list", "--json").json) == before


def test_files_that_every_user_may_use(run: Run, stored_runs: StoredRuns) -> None:
    _, found = checks(run)
    assert found["files"]["status"] == "ok"
    Path("mainspring.db-secret.key").touch(mode=0o600)
    Path("mainspring.db-secret.key").chmod(0o644)
    Path("mainspring.db-lock").chmod(0o666)
    code, found = checks(run)
    assert code == 0
    assert found["files"]["status"] == "warn"
    assert "mainspring.db-lock (0666), mainspring.db-secret.key (0644)" in found["files"]["detail"]
    assert found["files"]["advice"].startswith("chmod o= ")


def test_a_missing_database_is_a_fault_and_is_not_made(run: Run, folder: Path) -> None:
    answer = run("doctor")
    assert answer.code == 1
    assert f"there is no database {folder / 'mainspring.db'}" in answer.out
    assert "1 fault" in answer.out
    assert not (folder / "mainspring.db").exists()


def test_a_file_that_is_no_database(run: Run, folder: Path) -> None:
    (folder / "mainspring.db").write_text("not a database, sorry " * 100)
    code, found = checks(run)
    assert (code, found["store"]["status"]) == (1, "fail")


def test_an_app_that_cannot_be_loaded(run: Run, folder: Path) -> None:
    code, found = checks(run, "--app", "nowhere:scheduler")
    assert code == 1
    assert "there is no module 'nowhere'" in found["store"]["detail"]


def test_due_work_that_no_worker_takes(run: Run, folder: Path) -> None:
    with producer().blocking as scheduler:
        scheduler.enqueue("lonely")
    code, found = checks(run)
    assert (code, found["due work"]["status"]) == (1, "fail")
    assert re.fullmatch(r"1 due of lonely, the oldest for 1\dm\d\ds", found["due work"]["detail"])
    assert "handler 'lonely'" in found["due work"]["advice"]
    assert "→ no worker takes it" in run("doctor").out


def claim_one(lease: timedelta, *, cancel: bool = False) -> None:
    """A run that was claimed ten minutes ago, by a worker that is not there."""

    async def seed() -> None:
        async with producer() as scheduler:
            made = await scheduler.enqueue("lonely")
            claim = Claim(worker="gone", handlers=frozenset({"lonely"}), limit=1, lease=lease)
            [held] = await claim_runs(scheduler.store, claim)
            assert held.id == made.id
            if cancel:
                await scheduler.cancel(made.id)

    asyncio.run(seed())


def test_leases_that_nobody_rescues(run: Run, folder: Path) -> None:
    claim_one(timedelta(seconds=5))
    code, found = checks(run)
    assert (code, found["leases"]["status"]) == (1, "fail")
    assert "of lonely" in found["leases"]["detail"]


def test_schedules_that_nobody_fires(run: Run, folder: Path) -> None:
    scheduler = producer()
    scheduler.job("1m", id="often")(_nothing)
    with scheduler.blocking:
        pass
    code, found = checks(run)
    assert (code, found["schedules"]["status"]) == (1, "fail")
    assert "often" in found["schedules"]["detail"]


def test_records_that_cannot_be_read(run: Run, folder: Path) -> None:
    with producer().blocking as scheduler:
        run_id = scheduler.enqueue("lonely").id
    with closing(sqlite3.connect(folder / "mainspring.db")) as connection, connection:
        connection.execute("UPDATE mainspring_runs SET payload = '{' WHERE id = ?", (run_id,))
        connection.execute("UPDATE mainspring_jobs SET policy = '{' WHERE id = 'lonely'")
    code, found = checks(run)
    assert (code, found["records"]["status"]) == (1, "fail")
    assert "2 cannot be read: job lonely (policy: " in found["records"]["detail"]
    assert f"run {run_id} (payload: " in found["records"]["detail"]
    assert "upgrade" in found["records"]["advice"]


def test_a_cancel_that_is_ignored(run: Run, folder: Path) -> None:
    claim_one(timedelta(hours=1), cancel=True)
    code, found = checks(run)
    assert (code, found["running"]["status"]) == (0, "warn")
    assert "ctx.cancelled" in found["running"]["advice"]


def test_firing_that_is_switched_off_on_every_worker(run: Run, folder: Path) -> None:
    scheduler = Scheduler("sqlite:///mainspring.db", enabled=False)
    scheduler.job("1m", id="often")(_nothing)

    earlier = producer()
    earlier.job("1m", id="often")(_nothing)
    with earlier.blocking:
        pass
    with scheduler.blocking:
        until(lambda: run("workers", "list", "--json").json["items"] != [])
        [worker] = run("workers", "list", "--json").json["items"]
        assert worker["fires"] is False
        _, found = checks(run)
    assert found["workers"]["detail"].startswith("1 alive, last seen ")
    assert found["firing"] == {
        "status": "warn",
        "name": "firing",
        "detail": "no slot fires: it is switched off (enabled=False) on every worker that is alive",
        "advice": "start a worker that fires",
    }
    assert "schedules" not in found  # they are overdue, and the line above says why


def _nothing() -> None: ...


def test_jobs_whose_last_run_failed_are_warned_of(run: Run, stored_runs: StoredRuns) -> None:
    code, found = checks(run)
    assert code == 0
    assert found["failures"] == {
        "status": "warn",
        "name": "failures",
        "detail": "job 'send_email': the last run failed: ValueError: no such address",
        "advice": f"mainspring runs show {stored_runs['bad']}",
    }


def test_jobs_that_fail_too_often_are_warned_of(run: Run, folder: Path) -> None:
    scheduler = Scheduler("sqlite:///mainspring.db")

    @scheduler.job()
    def flaky(works: bool) -> None:
        assert works

    with scheduler.blocking as blocking:
        for works in (False, True):
            blocking.wait(blocking.enqueue("flaky", {"works": works}).id, 30)
    # No worker is alive after the block, and that is what the health of the job says first.
    assert checks(run)[1]["failures"]["status"] == "ok"
    with scheduler.blocking:
        found = checks(run)[1]["failures"]
    assert found["detail"] == "job 'flaky': 50% of its runs succeeded in the last 24 hours"
    assert found["advice"] == "mainspring runs list --job flaky --state failed"
