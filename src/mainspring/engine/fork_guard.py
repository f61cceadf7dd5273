"""What a fork leaves behind: a process that looks like ours, without our threads."""

from __future__ import annotations

import os
import sys
import traceback

from mainspring.engine.attempt import Problem

__all__ = ["end_if_forked"]


def end_if_forked(pid: int, problem: Problem | None) -> None:
    """End this process if it is a fork that came back from its handler.

    A handler called `os.fork()`, and this is the child. Only one process may go on as the worker:
    the child shares the worker's event loop, sockets and locks, and would never end.
    """
    if os.getpid() == pid:
        return
    code = 0
    if problem is not None:
        error = problem.exception
        code = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
        if error is not None and not isinstance(error, SystemExit):
            traceback.print_exception(error)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            continue
    os._exit(code)
