"""Runs the command `mainspring` in forks of a process that has imported it.

A command spends most of its CPU on imports: half a second, and more than a second for `serve`. Here
one process imports them all and then forks for each command. The command is a real process with its
own arguments, folder, environment, signals and exit code; only its imports are not its own. So
tests of imports, of `kill -9` and of anything that must have a parent start `mainspring` itself.

    with PreloadedCommand(folder) as command:
        subprocess.run(["mainspring", "jobs", "list"], env={"PATH": f"{command.binaries}:…"})

`binaries` has a small program called `mainspring`. It passes its arguments and its standard streams
to the process, passes signals on to the fork, and exits as the fork does.
"""

from __future__ import annotations

import ast
import gc
import importlib
import os
import pkgutil
import select
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import NoReturn, Self

from tests.support.startable import Startable

PACKAGES = ("mainspring.cli", "mainspring.service")
MODULES = ("mainspring", "mainspring.stores.memory", "mainspring.stores.sqlite", "pydantic.types")

PROGRAM = """#!{python} -IS
import os, signal, socket, sys

link = socket.socket(socket.AF_UNIX)
link.connect({address!r})
request = repr((sys.argv, os.getcwd(), dict(os.environ))).encode()
socket.send_fds(link, [len(request).to_bytes(8, "big")], [0, 1, 2])
link.sendall(request)
command = int.from_bytes(link.recv(8), "big")
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: os.kill(command, number))
code = int.from_bytes(link.recv(8), "big", signed=True)
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


class PreloadedCommand(Startable):
    def __init__(self, folder: Path) -> None:
        self.binaries = folder / "bin"
        self._address = str(folder / "socket")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        self.binaries.mkdir()
        program = self.binaries / "mainspring"
        program.write_text(PROGRAM.format(python=sys.executable, address=self._address))
        program.chmod(0o755)
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.preloaded_command", self._address],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.PIPE,  # its end says that this process has ended
            stdout=subprocess.PIPE,
        )
        self._process = process
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return self

    def stop(self) -> None:
        if self._process is not None:
            self._process.communicate()


# In the process that forks


def main() -> None:
    root = os.getcwd()
    for name in _modules():
        importlib.import_module(name)
    assert threading.active_count() == 1, threading.enumerate()  # a fork has one thread only
    gc.collect()
    gc.freeze()
    sys.path.remove(root)  # an installed command does not have it
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(sys.argv[1])
    listener.listen(64)
    os.write(1, b"ready\n")
    waiting = 0
    while True:
        able, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in able:
            return
        link, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _run(link)
        link.close()
        waiting += 1
        while waiting and os.waitpid(-1, os.WNOHANG)[0]:
            waiting -= 1


def _modules() -> list[str]:
    found = list(MODULES)
    for name in PACKAGES:
        package = importlib.import_module(name)
        found += [one.name for one in pkgutil.walk_packages(package.__path__, f"{name}.")]
    return [name for name in found if not name.endswith("__main__")]


def _run(link: socket.socket) -> NoReturn:
    """Run the command in a fork of this fork; wait for it here, and pass its exit code on."""
    length, streams, _, _ = socket.recv_fds(link, 8, 3)
    request = b""
    while len(request) < int.from_bytes(length, "big"):
        request += link.recv(1 << 16)
    command = os.fork()
    if command == 0:
        link.close()
        _become(ast.literal_eval(request.decode()), streams)
    for stream in streams:
        os.close(stream)
    link.sendall(command.to_bytes(8, "big"))
    _, status = os.waitpid(command, 0)
    link.sendall(os.waitstatus_to_exitcode(status).to_bytes(8, "big", signed=True))
    os._exit(0)


def _become(request: tuple[list[str], str, dict[str, str]], streams: list[int]) -> NoReturn:
    arguments, folder, environment = request
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = arguments
    sys.path.insert(0, str(Path(arguments[0]).parent))
    sys.modules["__main__"] = ModuleType("__main__")  # child processes would import this module
    from mainspring.cli import main as run_command

    run_command()
    sys.exit(0)


if __name__ == "__main__":
    main()
