"""Commands for curl: any shell reads them as one command, whatever the texts contain."""

from __future__ import annotations

import shlex

from mainspring.dashboard import curl

NASTY = 'it\'s $(reboot) `id`\n"x" \\ <b>'


def words(command: str) -> list[str]:
    return shlex.split(command.replace("\\\n ", " "))


def test_a_request_is_sent_again_as_it_was_kept() -> None:
    command = curl.request_command(
        {
            "method": "PUT",
            "url": "https://example.com/a?b=$HOME",
            "headers": [["X-One", NASTY], ["X-One", "two"], ["Content-Length", "5"]],
            "body": NASTY,
        }
    )
    assert words(command) == [
        *("curl", "-g", "-X", "PUT", "https://example.com/a?b=$HOME"),
        *("-H", f"X-One: {NASTY}", "-H", "X-One: two", "--data-raw", NASTY),
    ]


def test_a_body_that_is_no_text_is_decoded_by_the_command() -> None:
    command = curl.request_command({"url": "http://x/", "body": "AAE=", "encoding": "base64"})
    assert words(command)[:5] == ["echo", "AAE=", "|", "base64", "-d"]
    assert words(command)[-2:] == ["--data-binary", "@-"]


def test_a_trigger_names_the_key_only_where_one_is_needed() -> None:
    free = curl.trigger_command("http://h/p", "a", {"text": NASTY}, with_key=False)
    assert words(free)[3] == "http://h/p/api/v1/jobs/a/trigger"
    assert "Authorization" not in free
    assert "MAINSPRING_API_KEY" in curl.trigger_command("http://h", "a", None, with_key=True)
    assert words(curl.trigger_command("http://h", "a", None, with_key=True))[-1] == "{}"


def test_a_large_payload_is_read_from_a_file() -> None:
    command = curl.trigger_command("http://h", "a", "x" * 100_000, with_key=False)
    assert len(command) < 1000
    assert words(command)[-1] == "@payload.json"
