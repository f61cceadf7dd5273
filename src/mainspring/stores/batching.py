"""Splits a batch into parts that a store can write in one statement each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def split_in_order(
    items: Sequence[T],
    key: Callable[[T], str],
    alone: Callable[[T], bool] = lambda item: False,
) -> Iterator[list[int]]:
    """Yield positions that one statement can write, in order. No part has a key twice, and an item
    for which `alone` is true is a part by itself. All items stay in order."""
    part: dict[str, int] = {}
    for at, item in enumerate(items):
        if part and (alone(item) or key(item) in part):
            yield list(part.values())
            part = {}
        part[key(item)] = at
        if alone(item):
            yield [at]
            part = {}
    if part:
        yield list(part.values())


def split_by_key(items: Sequence[T], key: Callable[[T], str]) -> list[list[int]]:
    """Positions that one statement can write, where only items of the same key must stay in order:
    the first item of each key, then the second item of each, and so on."""
    groups: list[list[int]] = []
    earlier: Counter[str] = Counter()
    for at, item in enumerate(items):
        number = earlier[key(item)]
        earlier[key(item)] += 1
        if number == len(groups):
            groups.append([])
        groups[number].append(at)
    return groups
