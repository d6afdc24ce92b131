"""Runs of messages: leased, known, or said something about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ledgermq_broker.queues.state.records import Fate


class Grant(NamedTuple):
    """Messages that are leased. `last`: inclusive. `deliveries`: of each of them, this one included."""

    first: int
    last: int
    deliveries: int


class Span(NamedTuple):
    """Offsets from `first` to `last`, inclusive."""

    first: int
    last: int


class Known(NamedTuple):
    """Messages of which the same is known. `last`: inclusive."""

    first: int
    last: int
    fate: Fate
    deliveries: int


def grants(offsets: Sequence[int], deliveries: Sequence[int]) -> Iterator[Grant]:
    begin = 0
    for at in range(1, len(offsets) + 1):
        if at == len(offsets) or offsets[at] != offsets[at - 1] + 1 or deliveries[at] != deliveries[begin]:
            yield Grant(offsets[begin], offsets[at - 1], deliveries[begin])
            begin = at


def spans(offsets: Sequence[int]) -> Iterator[Span]:
    for grant in grants(offsets, [0] * len(offsets)):
        yield Span(grant.first, grant.last)


def gaps(span: Span, runs: Iterable[Span]) -> Iterator[Span]:
    """Yield what of a span is in none of the runs, which are ascending."""
    begin = span.first
    for run in runs:
        if begin > span.last:
            return
        if begin < run.first:
            yield Span(begin, min(run.first - 1, span.last))
        begin = max(begin, run.last + 1)
    if begin <= span.last:
        yield Span(begin, span.last)
