"""The options of `mainspring worker`, and the command line that starts a process with them."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from datetime import timedelta

__all__ = ["WorkerCommand"]


@dataclass(frozen=True, slots=True)
class WorkerCommand:
    """The options that were given. `process_number` counts the processes of a supervisor from 1."""

    app: str | None
    queues: tuple[str, ...] | None
    workers: int | None
    leader_election: bool | None
    memory_limit: str | None
    drain_timeout: timedelta
    verbose: bool
    quiet: bool
    as_json: bool
    file: str | None = None
    store: str | None = None
    prune_every: timedelta | None = None
    supervisor: int | None = None
    process_number: int = 1

    def line(self) -> list[str]:
        """The command line that starts another process with the same options."""
        given = len(sys.argv) - 1
        before = sys.orig_argv[1 : len(sys.orig_argv) - given]
        words = [sys.executable, *before, "worker"]
        if self.queues is not None:
            words += ["--queues", ",".join(self.queues)]
        if self.workers is not None:
            words += ["--workers", str(self.workers)]
        if self.leader_election is not None:
            words += ["--leader-election" if self.leader_election else "--no-leader-election"]
        if self.memory_limit is not None:
            words += ["--memory-limit", self.memory_limit]
        if self.prune_every is not None:
            words += ["--prune-every", str(self.prune_every.total_seconds())]
        words += ["--drain-timeout", str(self.drain_timeout.total_seconds())]
        flags = {"--verbose": self.verbose, "--quiet": self.quiet, "--json": self.as_json}
        words += [flag for flag, on in flags.items() if on]
        if self.supervisor is not None:
            words += [
                "--supervisor",
                str(self.supervisor),
                "--process-number",
                str(self.process_number),
            ]
        for option, value in (("--file", self.file), ("--store", self.store)):
            if value is not None:
                words += [option, value]
        return words if self.app is None else [*words, "--", self.app]

    def under(self, supervisor: int, process_number: int) -> WorkerCommand:
        """The same command for a child of a supervisor."""
        return replace(self, supervisor=supervisor, process_number=process_number)
