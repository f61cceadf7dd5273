"""`mainspring worker` with real processes and real signals."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path

import pytest

from mainspring import Client, __version__
from mainspring.cli.app_loader import load_scheduler
from tests.support.command_line import Run, Start, until

READY = "Press Ctrl+C to stop after running jobs finish, or twice to stop immediately."


def test_sigterm_lets_running_work_end(start: Start, run: Run, folder: Path) -> None:
    worker = start("worker", "app:scheduler")
    worker.wait_for_output(READY)
    assert "sqlite:///mainspring.db" in worker.output
    assert "2 runs at once from all queues" in worker.output
    assert "Monday through Friday" in worker.output

    done = run("enqueue", "send_email", '{"to": "a@example.org"}', "--wait", "--json")
    assert (done.code, done.json["result"]) == (0, "sent to a@example.org")

    flag = str(folder / "flag")
    lingering = run("enqueue", "linger", json.dumps({"until": flag})).out.strip()
    until(Path(flag + ".began").exists)
    worker.popen.send_signal(signal.SIGTERM)
    worker.wait_for_output("stopping")
    Path(flag).touch()
    assert worker.ends() == 0
    assert run("runs", "show", lingering, "--json").json["result"] == "lingered"


@pytest.mark.parametrize(
    "command", [["worker", "long:scheduler"], ["serve", "--app", "long:scheduler", "--port", "0"]]
)
def test_what_does_not_end_within_the_drain_timeout_is_given_back(
    start: Start, run: Run, folder: Path, command: list[str]
) -> None:
    (folder / "long.py").write_text(
        "import asyncio\n"
        "from pathlib import Path\n"
        "from mainspring import Scheduler\n"
        "scheduler = Scheduler('sqlite:///mainspring.db')\n"
        "@scheduler.job()\n"
        "async def sleep_long(began: str) -> None:\n"
        "    Path(began).touch()\n"
        "    await asyncio.sleep(600)\n"
    )
    worker = start(*command, "--drain-timeout", "100ms")
    worker.wait_for_output(READY)
    began = folder / "began"
    run_id = run("enqueue", "sleep_long", json.dumps({"began": str(began)})).out.strip()
    until(began.exists)
    worker.popen.send_signal(signal.SIGTERM)
    assert worker.ends() == 0
    assert run("runs", "show", run_id, "--json").json["state"] == "pending"


def test_start_says_which_jobs_no_worker_can_run(start: Start, folder: Path) -> None:
    with Client("sqlite:///mainspring.db").blocking as client:
        client.add_job("gone", handler="renamed", schedule="1h")
    worker = start("worker", "app:scheduler")
    worker.wait_for_output(READY)
    [line] = [line for line in worker.output.splitlines() if line.startswith("  gone ")]
    assert line.endswith(" no live worker can run it")


def test_a_store_of_the_environment_that_is_not_the_codes_is_warned_of(
    start: Start, folder: Path
) -> None:
    (folder / ".env").write_text("MAINSPRING_STORE=sqlite:///other.db\n")
    worker = start("worker", "app:scheduler")
    worker.wait_for_output(
        "app:scheduler uses the store sqlite:///mainspring.db, as its code says, and"
        " MAINSPRING_STORE names sqlite:///other.db, which is not used here"
    )
    (folder / ".env").write_text(f"MAINSPRING_STORE=sqlite:///{folder / 'mainspring.db'}\n")
    same = start("worker", "app:scheduler")
    same.wait_for_output(READY)
    assert "MAINSPRING_STORE" not in same.output


def test_failures_are_logged(start: Start, run: Run) -> None:
    worker = start("worker", "app:scheduler", "--verbose")
    worker.wait_for_output(READY)
    run("enqueue", "send_email", '{"to": "nobody"}')
    worker.wait_for_output(
        "job send_email: attempt 1 failed, no attempt follows: ValueError: no such address"
    )
    worker.wait_for_output('raise ValueError("no such address")')
    run("enqueue", "send_email", '{"to": "b"}')
    worker.wait_for_output("job send_email: succeeded in")
    assert "writing to b" in worker.output
    worker.popen.terminate()
    assert worker.ends() == 0
    assert worker.output.count("attempt 1 failed") == 1


def test_json_tells_the_start_as_a_document_and_logs_as_lines(start: Start, run: Run) -> None:
    worker = start("worker", "app:scheduler", "--json")
    worker.wait_for_output("\n}\n")
    greeting, _ = json.JSONDecoder().raw_decode(worker.output, worker.output.index("{\n"))
    assert greeting["pid"] == worker.pid
    assert greeting["workers"] == 2
    assert "send_email" in [job["id"] for job in greeting["jobs"]]
    run("enqueue", "send_email", '{"to": "nobody"}')
    worker.wait_for_output("attempt 1 failed")
    lines = [json.loads(line) for line in worker.output.splitlines() if line.startswith('{"')]
    [failure] = [line for line in lines if line["level"] == "error"]
    assert (failure["job_id"], failure["attempt"]) == ("send_email", 1)
    assert "in send_email" in failure["traceback"]
    worker.popen.terminate()
    assert worker.ends() == 0


def test_quiet_prints_nothing_without_a_failure(start: Start, run: Run) -> None:
    worker = start("worker", "app:scheduler", "--quiet")
    until(lambda: run("jobs", "show", "whoami").code == 0)
    assert run("enqueue", "whoami", "--wait", "--json").json["result"] == worker.pid
    worker.popen.terminate()
    assert worker.ends() == 0
    assert worker.output == ""


def test_a_process_full_of_stuck_threads_is_replaced(start: Start, run: Run) -> None:
    worker = start("worker", "app:scheduler")
    worker.wait_for_output(READY)
    run("enqueue", "hang")
    worker.wait_for_output(
        "threads that outlived their timeout take 1 of the worker's capacity of 2"
    )
    worker.wait_for_output(READY)
    # The same process id, working again with all its places.
    assert run("enqueue", "whoami", "--wait", "--json").json["result"] == worker.pid
    worker.popen.terminate()
    assert worker.ends() == 0


def test_several_processes_work_and_ctrl_c_stops_each_once(
    start: Start, run: Run, folder: Path
) -> None:
    worker = start("worker", "app:scheduler", "--processes", "2", "--workers", "1")
    worker.wait_for_output(READY)
    flag = str(folder / "flag")
    busy = run("enqueue", "linger", json.dumps({"until": flag})).out.strip()
    until(Path(flag + ".began").exists)
    # One process is taken: the other answers.
    pid = run("enqueue", "whoami", "--wait", "--json").json["result"]
    assert pid != worker.pid
    assert os.getpgid(pid) != os.getpgid(worker.pid)  # else it would get the signal twice
    os.killpg(worker.pid, signal.SIGINT)  # as a terminal does: to the whole foreground group
    worker.wait_for_output("stopping 2 processes")
    Path(flag).touch()
    assert worker.ends() == 0
    assert run("runs", "show", busy, "--json").json["result"] == "lingered"
    assert not _alive(pid)


def test_a_process_that_dies_is_started_again(start: Start, run: Run) -> None:
    worker = start("worker", "app:scheduler", "--processes", "2")
    worker.wait_for_output(READY)
    killed: set[int] = set()
    while len(killed) < 3:  # one more than there were at first: a process that was started again
        pid = run("enqueue", "whoami", "--wait", "--timeout", "60s", "--json").json["result"]
        assert pid not in killed
        killed.add(pid)
        os.kill(pid, signal.SIGKILL)
        worker.wait_for_output("ended by SIGKILL; another starts in", times=len(killed))
    assert "ended by SIGKILL; another starts in 0.5 s" in worker.output
    worker.popen.terminate()
    assert worker.ends() == 0


def test_the_pause_grows_while_a_process_keeps_dying(start: Start, folder: Path) -> None:
    (folder / "mainspring.db").write_text("this is no database" * 100)
    worker = start("worker", "app:scheduler", "--processes", "2")
    worker.wait_for_output("ended with exit code 3; another starts in 0.5 s", times=2)
    worker.wait_for_output("ended with exit code 3; another starts in 1.0 s", times=2)
    worker.popen.terminate()
    assert worker.ends() == 0


def test_second_signal_kills_all_processes(start: Start, run: Run, folder: Path) -> None:
    worker = start("worker", "app:scheduler", "--processes", "2")
    worker.wait_for_output(READY)
    pid = run("enqueue", "whoami", "--wait", "--json").json["result"]
    flag = str(folder / "never")
    run("enqueue", "linger", json.dumps({"until": flag}))
    until(Path(flag + ".began").exists)
    worker.popen.terminate()
    worker.wait_for_output("stopping 2 processes")
    worker.popen.terminate()
    assert worker.ends() == 128 + signal.SIGTERM
    assert "killing all processes" in worker.output
    until(lambda: not _alive(pid))


def test_processes_end_when_their_supervisor_is_gone(start: Start, run: Run) -> None:
    worker = start("worker", "app:scheduler", "--processes", "2")
    worker.wait_for_output(READY)
    pid = run("enqueue", "whoami", "--wait", "--json").json["result"]
    worker.popen.kill()
    until(lambda: not _alive(pid))
    until(lambda: not _session_alive(worker.pid))
    left = run("enqueue", "whoami", "--json").json["id"]
    shown = run("runs", "show", left, "--json").json
    assert shown["state"] == "pending"  # no worker is left to run it


def test_an_app_that_cannot_be_loaded_ends_the_supervisor(start: Start) -> None:
    worker = start("worker", "nowhere:scheduler", "--processes", "2")
    assert worker.ends() == 2
    assert "there is no module 'nowhere'" in worker.output


def test_a_signal_ends_the_wait_for_a_store_that_is_away(start: Start, folder: Path) -> None:
    away = "mongodb://[::1]:1/x?timeoutMS=500"
    app = (folder / "app.py").read_text().replace("sqlite:///mainspring.db", away)
    (folder / "app.py").write_text(app)
    worker = start("worker", "app:scheduler")
    worker.wait_for_output("waiting for the store up to 30 seconds: no MongoDB server answers")
    worker.popen.send_signal(signal.SIGTERM)
    assert worker.ends() == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("worker", "app:idle"), "workers=0"),
        (("worker", "app:scheduler", "--queues", ","), "--queues names no queue"),
        (("worker", "app:scheduler", "--workers", "0"), "--workers"),
        (("worker", "app:scheduler", "--leader-election=redis://r"), "--leader-election"),
        (("worker",), "name the scheduler to run, or a file of jobs"),
    ],
)
def test_wrong_options_are_refused_with_a_message(
    run: Run, words: tuple[str, ...], message: str
) -> None:
    assert message in run(*words).refusal


def _session_alive(pid: int) -> bool:
    """Whether a process of the session still runs. Each worker process has its own group."""
    sessions = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
            sessions[stat] = int(session) == pid and state != "Z"
    return any(sessions.values())


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie that nobody has reaped yet is dead enough.
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_worker_at_its_memory_limit_is_replaced_and_loses_nothing(
    run: Run, start: Start, folder: Path
) -> None:
    (folder / "leaky.py").write_text(
        "from mainspring import Scheduler\n"
        'scheduler = Scheduler("sqlite:///jobs.db", poll="50ms")\n'
        "kept = []\n"
        "@scheduler.job\n"
        "def leak(size: int) -> int:\n"
        "    kept.append(b'x' * size)\n"
        "    return len(kept)\n"
    )
    worker = start("worker", "leaky:scheduler", "--memory-limit", "300MB")
    worker.wait_for_output(READY)
    # Above the limit, and below the 125 % of it at which a run is stopped at once.
    first = run("enqueue", "leak", '{"size": 260000000}', "--app", "leaky:scheduler", "--json").json
    worker.wait_for_output("it is replaced")
    answer = run("enqueue", "leak", '{"size": 10}', "--app", "leaky:scheduler", "--wait", "--json")
    assert (answer.code, answer.json["result"]) == (0, 1)  # a new process: nothing is kept
    shown = run("runs", "show", first["id"], "--app", "leaky:scheduler", "--json").json
    assert shown["state"] == "succeeded"


def test_a_run_that_grows_past_the_limit_of_each_process_ends_failed(
    run: Run, start: Start, folder: Path
) -> None:
    (folder / "growing.py").write_text(
        "import asyncio\n"
        "from mainspring import Scheduler\n"
        'scheduler = Scheduler("sqlite:///jobs.db", poll="50ms")\n'
        '@scheduler.job(retries=1, retry_delay="10ms")\n'
        "async def grow() -> None:\n"
        "    kept = []\n"
        "    while True:\n"
        "        kept.append(bytearray(b'x' * 10_000_000))\n"
        "        await asyncio.sleep(0.02)\n"
    )
    worker = start("worker", "growing:scheduler", "--memory-limit", "200MB", "--drain-timeout=1s")
    worker.wait_for_output(READY)
    answer = run("enqueue", "grow", "--app", "growing:scheduler", "--wait", "--json")
    assert answer.json["state"] == "failed"
    assert (answer.json["reason"], len(answer.json["attempts"])) == ("memory", 2)


@pytest.mark.parametrize(("file", "words"), [("1d", ("--prune-every", "1s")), ("1s", ())])
def test_finished_runs_are_deleted_as_often_as_the_option_or_the_file_says(
    run: Run, start: Start, folder: Path, file: str, words: tuple[str, ...]
) -> None:
    (folder / "short.py").write_text("def work() -> None: ...\n")
    jobs = '[jobs.work]\nhandler = "short:work"\nhistory = 2\n'
    (folder / "jobs.toml").write_text(f'prune_every = "{file}"\n{jobs}')
    start("worker", "--file", "jobs.toml", *words, "--quiet")
    until(lambda: "work" in run("jobs", "list").out)
    for _ in range(6):
        assert run("jobs", "trigger", "work").code == 0
    until(lambda: len(run("runs", "list", "--json").json["items"]) == 2)


def work() -> None: ...


def test_a_worker_is_listed_with_its_load_and_its_queues(run: Run, folder: Path) -> None:
    with load_scheduler("app:scheduler").blocking:
        until(lambda: bool(run("workers", "list", "--json").json["items"]))
        [worker] = run("workers", "list", "--json").json["items"]
        answer = run("workers", "list")
    assert (answer.code, answer.err) == (0, "")
    heads, row = answer.out.splitlines()
    assert heads.split()[:4] == ["ID", "LEADS", "FIRES", "RUNNING"]
    assert row.split()[:6] == [worker["id"], "yes", "yes", "0", "of", "2"]
    assert " all " in row
    assert f" {__version__} " in row
    assert (worker["pid"], worker["capacity"], worker["queues"]) == (os.getpid(), 2, None)
