import os
import subprocess

PEER = os.environ["BENCH_PEER"]
SETTINGS = {
    "agenda": "MongoDB, majority writes, 100 at once, polling at 100 ms",
    "mongo-job-scheduler": "MongoDB, majority writes, 20 workers, polling at 10 ms",
    "graphile-worker": "PostgreSQL, 100 at once, LISTEN, local queue of 500, ends in batches",
    "pg-boss": "PostgreSQL, batches of 1,000, polling at 500 ms, its shortest",
}[PEER]
WORKER = ["node", "npm_peer.mjs", PEER, os.environ["BENCH_STORE"], os.environ["BENCH_NOTES"]]
FOLDER = os.environ["BENCH_NPM"]
_producer = None


def begin(worker: "subprocess.Popen[bytes]") -> None:
    _tell(worker, "work")


def send(sent: float) -> None:
    global _producer
    if _producer is None:
        _producer = subprocess.Popen(
            WORKER, cwd=FOLDER, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
    _tell(_producer, f"send {sent}")


def _schedule(jobs: int) -> None:
    assert _producer is not None
    _tell(_producer, f"schedule {jobs}")


if "MongoDB" in SETTINGS:  # the others have schedules to the minute
    schedule = _schedule


def _tell(process: "subprocess.Popen[bytes]", command: str) -> None:
    assert process.stdin
    assert process.stdout
    process.stdin.write(f"{command}\n".encode())
    process.stdin.flush()
    process.stdout.readline()
