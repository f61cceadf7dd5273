"""`python -m tests.support.servers fetch`: fetch the servers and a browser into the cache."""

from __future__ import annotations

import sys

from tests.support.browser.chromium import chromium
from tests.support.servers.binaries import binaries
from tests.support.servers.cache import ServerUnavailable
from tests.support.servers.postgresql import OLDEST, programs
from tests.support.servers.seaweedfs import weed


def main() -> int:
    try:
        for name, program in (
            ("MongoDB", binaries().mongod),
            ("PostgreSQL", programs()),
            ("PostgreSQL", programs(OLDEST)),
            ("SeaweedFS", weed()),
            ("Chromium", chromium().program),
        ):
            sys.stdout.write(f"{name}: {program}\n")
    except ServerUnavailable as error:
        sys.stdout.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
