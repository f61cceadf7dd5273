from tests.support.servers.fixtures import *  # noqa: F403
