"""The command `mainspring`. Each command imports what it needs when it runs, so that `--help` is
quick."""

from __future__ import annotations


def main() -> None:
    """The entry point of the console script."""
    from mainspring.cli.program import main

    main()
