"""Ends the child of a handler that called `os.fork()`, once it returns from the handler."""

from __future__ import annotations

import os
import sys
import traceback

from mainspring.engine.attempt import AttemptError


def end_if_forked(pid: int, error: AttemptError | None) -> None:
    """End this process if it is a fork that came back from its handler.

    A handler called `os.fork()`, and this is the child. Only one process may go on as the worker:
    the child shares the worker's event loop, sockets and locks, and would never end.
    """
    if os.getpid() == pid:
        return
    code = 0
    if error is not None:
        raised = error.exception
        code = raised.code if isinstance(raised, SystemExit) and isinstance(raised.code, int) else 1
        if raised is not None and not isinstance(raised, SystemExit):
            traceback.print_exception(raised)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            continue
    os._exit(code)
