from __future__ import annotations

from pathlib import Path

from tests.support.command_line import Run


def test_revoke_by_a_name_says_that_it_takes_an_id(run: Run, folder: Path) -> None:
    run("keys", "create", "ci")
    refused = run("keys", "revoke", "ci").refusal
    assert "there is no key 'ci'" in refused
    assert "revoke takes the id of a key: `mainspring keys list` lists them" in refused
