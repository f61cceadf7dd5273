"""`mainspring workflow` and `mainspring chain`."""

from __future__ import annotations

from tests.support.command_line import Run

StoredRuns = dict[str, str]


def test_a_chain_is_queued_and_drawn(run: Run, stored_runs: StoredRuns) -> None:
    answer = run("chain", "whoami", 'send_email={"to": "b"}')
    assert answer.code == 0
    first, second = answer.out.split()
    assert run("runs", "show", second, "--json").json["after"] == [first]
    drawn = run("workflow", first)
    assert drawn.out.splitlines() == ["whoami  pending", "└─ send_email  waiting"]
    graph = run("workflow", first, "--json").json
    assert graph["edges"] == [{"from": first, "to": second}]


def test_a_wrong_chain_says_what_is_wrong(run: Run, stored_runs: StoredRuns) -> None:
    unknown = run("chain", "whoami", "whoareyou")
    assert unknown.code == 2
    assert "whoareyou" in unknown.err
    payload = run("chain", "send_email={to}")
    assert (payload.code, "not JSON" in payload.err) == (2, True)
    choice = run("chain", "whoami", "--after-failure", "stop")
    assert (choice.code, "skip or run" in choice.err) == (2, True)
    nothing = run("workflow", "whoareyou")
    assert nothing.code == 2
    assert "whoareyou" in nothing.err
