"""The line of each key of a TOML file, for messages about it."""

from __future__ import annotations

from mainspring.scheduler.toml_lines import find_lines

TEXT = '''# [jobs.no]
name = "x" # a = 1
[jobs."a.b"]
handler = "m:f"
description = """
[jobs.fake]
key = 1
"""
tags = [
  "one = 1", # ]
  "two",
]
webhook.url = "https://example.org/#x"
[ jobs . 'c' ]
payload = { a = 1, b = [
  2 ] }
queue = 'x = "y'
'''


def test_each_key_has_the_line_that_it_begins_on() -> None:
    assert find_lines(TEXT) == {
        ("name",): 2,
        ("jobs", "a.b"): 3,
        ("jobs", "a.b", "handler"): 4,
        ("jobs", "a.b", "description"): 5,
        ("jobs", "a.b", "tags"): 9,
        ("jobs", "a.b", "webhook", "url"): 13,
        ("jobs", "c"): 14,
        ("jobs", "c", "payload"): 15,
        ("jobs", "c", "queue"): 17,
    }
