"""`python -m tests.support.servers`: fetch the servers and a browser, start one by hand, sweep up.

fetch                                 into the cache, checked
run standalone|replica-set|sharded    print its URL, run until Ctrl-C
run seaweedfs                         the same for an S3 server
sweep                                 end what crashed sessions left
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence

from tests.support.browser.chromium import chromium
from tests.support.servers.binaries import binaries
from tests.support.servers.cache import ServerUnavailable
from tests.support.servers.mongodb import TOPOLOGIES, Topology
from tests.support.servers.runs import leave_current_run, sweep_now
from tests.support.servers.seaweedfs import SeaweedFs, weed


def main(arguments: Sequence[str]) -> int:
    match arguments:
        case ["fetch"]:
            try:
                say(f"MongoDB: {binaries().mongod}")
                say(f"SeaweedFS: {weed()}")
                say(f"Chromium: {chromium().program}")
            except ServerUnavailable as error:
                say(str(error))
                return 1
        case ["sweep"]:
            for process in sweep_now():
                say(f"ended {process.pid}")
        case ["run", "seaweedfs"]:
            weed()
            run(SeaweedFs)
        case ["run", kind] if kind in TOPOLOGIES:
            binaries()
            run(TOPOLOGIES[kind])
        case _:
            say(__doc__ or "")
            return 2
    return 0


def run(kind: type[Topology] | type[SeaweedFs]) -> None:
    began = time.monotonic()
    with kind() as servers:
        seconds, megabytes = time.monotonic() - began, servers.memory() / 1e6
        about = f"ready in {seconds:.1f} s, {megabytes:.0f} MB, logs: {servers.place}"
        try:
            for number in (signal.SIGINT, signal.SIGTERM):  # a shell's `&` has the first ignored
                signal.signal(number, signal.default_int_handler)
            say(f"{servers.url}\n{about}")  # whoever reads it may send a signal at once
            signal.pause()
        except KeyboardInterrupt:
            say("stopping")
    leave_current_run()


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
