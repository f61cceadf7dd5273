"""Enqueues one run for each line of a file, in chunks, with a progress bar on a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, TextIO

from mainspring.cli.errors import BAD_INPUT, CommandError
from mainspring.cli.output import progress_bar
from mainspring.cli.payload import parse_json
from mainspring.core.plurals import plural

if TYPE_CHECKING:
    from mainspring.scheduler import Client

__all__ = ["CHUNK", "enqueue_lines"]

CHUNK = 1000
"""Runs in one commit: enough to make it cheap, few enough to show progress."""


async def enqueue_lines(
    client: Client, job_id: str, name: str, options: dict[str, Any], *, quiet: bool
) -> int:
    """Enqueue a run for each line of a file (`-` is stdin). Returns how many. Each chunk is queued
    completely or not at all.

    A file is checked first, so that an invalid line is found before anything is queued.
    """
    total = _checked(name)
    with _opened(name) as lines, progress_bar(quiet=quiet) as move:
        payloads, done = _payloads(lines, name), 0
        while True:
            try:
                chunk = [payload for _, payload in islice(payloads, CHUNK)]
                if not chunk:
                    return done
                await client.enqueue_many(job_id, chunk, **options)
            except Exception as error:
                if done:
                    error.add_note(f"enqueued before that: {plural(done, 'line')}")
                raise
            done += len(chunk)
            move(done, total)


def _checked(name: str) -> int | None:
    """The number of payloads in a file, after checking each; None for stdin."""
    if name == "-":
        return None
    from mainspring.core import codec

    count = 0
    with _opened(name) as lines:
        for number, payload in _payloads(lines, name):
            codec.encode(payload, what=f"payload of line {number}")
            count += 1
    return count


def _payloads(lines: TextIO, name: str) -> Iterator[tuple[int, Any]]:
    place = "stdin" if name == "-" else name
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield number, parse_json(line)
        except ValueError as error:
            raise CommandError(
                f"{place}, line {number} is not JSON: {error}",
                code=BAD_INPUT,
                advice="write one JSON payload on each line",
            ) from None


@contextlib.contextmanager
def _opened(name: str) -> Iterator[TextIO]:
    if name == "-":
        yield sys.stdin
        return
    try:
        file = open(name, encoding="utf-8")  # noqa: SIM115 - only errors of open() are caught
    except OSError as error:
        raise CommandError(f"{name} cannot be read: {error.strerror}", code=BAD_INPUT) from None
    with file:
        yield file
