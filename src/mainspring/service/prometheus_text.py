"""Counters, gauges and histograms in Prometheus' text format (0.0.4).

A hundred lines in place of a dependency: what is needed of it here is writing text.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

__all__ = ["CONTENT_TYPE", "Counter", "Gauge", "Histogram", "text_of"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[str, ...]


class _Metric:
    kind = "untyped"

    def __init__(self, name: str, help: str, labels: Sequence[str] = ()) -> None:
        self.name, self.help, self.labels = name, help, tuple(labels)

    def samples(self) -> Iterator[str]:
        raise NotImplementedError

    def _line(self, values: Labels, number: float, suffix: str = "", more: str = "") -> str:
        pairs = [f'{n}="{_escaped(v)}"' for n, v in zip(self.labels, values, strict=True)]
        inside = ",".join([*pairs, *([more] if more else [])])
        return f"{self.name}{suffix}{f'{{{inside}}}' if inside else ''} {_number(number)}"


class Counter(_Metric):
    kind = "counter"

    def __init__(self, name: str, help: str, labels: Sequence[str] = ()) -> None:
        super().__init__(name, help, labels)
        self._values: dict[Labels, float] = {} if labels else {(): 0}

    def add(self, *values: str, by: float = 1) -> None:
        self._values[values] = self._values.get(values, 0) + by

    def drop(self, first: str) -> None:
        """Forget what was counted with that first label."""
        for values in [one for one in self._values if one[0] == first]:
            del self._values[values]

    def samples(self) -> Iterator[str]:
        return (self._line(values, number) for values, number in self._values.items())


class Gauge(_Metric):
    """Set anew at each scrape."""

    kind = "gauge"

    def __init__(self, name: str, help: str, labels: Sequence[str] = ()) -> None:
        super().__init__(name, help, labels)
        self._values: dict[Labels, float] = {}

    def put(self, values: Iterable[tuple[Labels, float]]) -> None:
        self._values = dict(values)

    def samples(self) -> Iterator[str]:
        return (self._line(values, number) for values, number in self._values.items())


class Histogram(_Metric):
    kind = "histogram"

    def __init__(
        self, name: str, help: str, buckets: Sequence[float], labels: Sequence[str] = ()
    ) -> None:
        super().__init__(name, help, labels)
        self._bounds = tuple(buckets)
        self._counts: dict[Labels, list[int]] = {}
        self._sums: dict[Labels, float] = {}

    def observe(self, number: float, *values: str) -> None:
        if values not in self._counts:
            self._counts[values] = [0] * (len(self._bounds) + 1)
            self._sums[values] = 0.0
        self._counts[values][bisect_left(self._bounds, number)] += 1
        self._sums[values] += number

    def drop(self, first: str) -> None:
        for values in [one for one in self._counts if one[0] == first]:
            del self._counts[values], self._sums[values]

    def samples(self) -> Iterator[str]:
        for values, counts in self._counts.items():
            total = 0
            for bound, count in zip((*self._bounds, float("inf")), counts, strict=True):
                total += count
                yield self._line(values, total, "_bucket", f'le="{_number(bound)}"')
            yield self._line(values, self._sums[values], "_sum")
            yield self._line(values, total, "_count")


def text_of(metrics: Iterable[_Metric]) -> str:
    lines: list[str] = []
    for metric in metrics:
        lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
        lines += metric.samples()
    return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(number: float) -> str:
    if number == float("inf"):
        return "+Inf"
    return str(int(number)) if number == int(number) else repr(number)
