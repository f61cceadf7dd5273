from __future__ import annotations

import signal

from tests.support.command_line import Start


def test_failures_of_the_demo_are_said_to_be_made_up_and_have_no_traceback(start: Start) -> None:
    demo = start("serve", "--demo", "--port", "0")
    demo.wait_for_output("the failures in this log are made up")
    demo.wait_for_output("job call_partner: attempt 1 failed")
    demo.popen.send_signal(signal.SIGINT)
    assert demo.ends() == 0
    assert "Traceback" not in demo.output
