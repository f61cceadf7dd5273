from tests.servers.fixtures import *  # noqa: F403
