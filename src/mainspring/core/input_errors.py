"""Collects the errors of several arguments, so that one call reports them all."""

from __future__ import annotations

from mainspring.errors import HandlerNotFound, InvalidInput


class InputErrors:
    """The errors found so far.

    errors = InputErrors()
    with errors:
        url = read_url(given)
    errors.check()
    """

    def __init__(self) -> None:
        self._found: list[InvalidInput] = []
        self._missing: HandlerNotFound | None = None

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if isinstance(error, InvalidInput):
            self.add(error)
            return True
        if isinstance(error, HandlerNotFound):
            self._missing = error
            return True
        return False

    def add(self, error: InvalidInput) -> None:
        self._found += error.each()

    def check(self) -> None:
        """Raise the first error, if there is one; `others` has the rest, and a traceback shows
        them. A handler that is not registered raises `HandlerNotFound` if it is the only error."""
        if not self._found:
            if self._missing is not None:
                raise self._missing
            return
        first, *others = self._found
        if self._missing is not None:
            missing = self._missing
            others.append(InvalidInput(str(missing), field="handler", given=missing.handler))
        first.others = tuple(others)
        first.__notes__ = [f"Also: {one}" for one in others]
        raise first
