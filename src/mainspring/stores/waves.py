"""Which items of a batch a store can handle in one step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

__all__ = ["waves"]

T = TypeVar("T")


def waves(
    items: Sequence[T],
    key: Callable[[T], str],
    alone: Callable[[T], bool] = lambda item: False,
) -> Iterator[list[int]]:
    """Positions that can be handled together, in order: no key twice, and some items alone."""
    wave: dict[str, int] = {}
    for at, item in enumerate(items):
        if wave and (alone(item) or key(item) in wave):
            yield list(wave.values())
            wave = {}
        wave[key(item)] = at
        if alone(item):
            yield [at]
            wave = {}
    if wave:
        yield list(wave.values())
