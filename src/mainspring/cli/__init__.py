"""The command `mainspring`.

    program.py               the commands put together; errors become exit codes here
    worker.py supervise.py   work until a signal; several processes of it
    serve.py keys.py         the HTTP service, and the keys to it
    jobs.py runs.py enqueue.py schedule.py doctor.py
    options.py environment.py connect.py loading.py completion.py
                             where the store is, and how to reach it
    output.py shapes.py times.py logs.py failures.py  what is said, and how

Each command imports what it needs when it runs, so that `--help` stays quick.
"""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """The entry point of the console script."""
    from mainspring.cli.program import app

    app(prog_name="mainspring")
