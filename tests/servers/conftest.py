from __future__ import annotations

from tests.servers.fixtures import *  # noqa: F403
