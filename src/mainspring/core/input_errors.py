"""Collects the errors of several arguments, so that one call reports them all."""

from __future__ import annotations

from mainspring.errors import InvalidInput

__all__ = ["InputErrors"]


class InputErrors:
    """The errors found so far.

    errors = InputErrors()
    with errors:
        url = read_url(given)
    errors.check()
    """

    def __init__(self) -> None:
        self._found: list[InvalidInput] = []

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if isinstance(error, InvalidInput):
            self.add(error)
            return True
        return False

    def add(self, error: InvalidInput) -> None:
        self._found += error.each()

    def check(self) -> None:
        """Raise the first error, if there is one; `others` has the rest."""
        if self._found:
            first, *others = self._found
            first.others = tuple(others)
            raise first
