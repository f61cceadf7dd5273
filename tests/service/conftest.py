from tests.support.service import *  # noqa: F403
