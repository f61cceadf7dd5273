from __future__ import annotations

from pathlib import Path

from tests.support.command_line import Run


def test_revoke_by_a_name_says_which_id_it_has(run: Run, folder: Path) -> None:
    made = run("keys", "create", "ci", "--json").json
    refused = run("keys", "revoke", "ci").refusal
    assert "there is no key 'ci'" in refused
    assert f"revoke takes the id of a key: {made['id']} is named 'ci'" in refused
    assert "`mainspring keys list` lists the keys" in run("keys", "revoke", "cd").err
