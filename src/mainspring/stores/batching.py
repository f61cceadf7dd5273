"""Which items of a batch a store can handle in one step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

__all__ = ["turns", "waves"]

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


def turns(items: Sequence[T], key: Callable[[T], str]) -> list[list[int]]:
    """Positions that can be handled together where only items of one key are in order: the first
    item of each key, then the second of each, and so on."""
    groups: list[list[int]] = []
    earlier: Counter[str] = Counter()
    for at, item in enumerate(items):
        turn = earlier[key(item)]
        earlier[key(item)] += 1
        if turn == len(groups):
            groups.append([])
        groups[turn].append(at)
    return groups
