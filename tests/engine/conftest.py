from tests.support.scheduler_fixtures import *  # noqa: F403
