"""What a `with` block starts and stops."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Startable:
    """`start` begins the block and `stop` ends it, even if `start` fails."""

    def start(self) -> Self:
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
