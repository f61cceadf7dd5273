from tests.support.dashboard import *  # noqa: F403
from tests.support.service import *  # noqa: F403
