from tests.support.command_line import environment, folder, run  # noqa: F401
from tests.support.service import *  # noqa: F403
