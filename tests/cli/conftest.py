from tests.support.command_line import *  # noqa: F403
