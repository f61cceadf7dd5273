from __future__ import annotations

from tests.support.servers.fixtures import *  # noqa: F403
