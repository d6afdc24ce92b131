"""What members hold on one connection, and what they say about it: Kafka's offsets become our leases.

A client names offsets only. Our owner of a partition names each lease by an epoch and a number, so these are noted
here with the offsets that an answer has leased. Pure.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple, Protocol

from ledgermq.errors import InvalidRequest
from ledgermq.protocol import ledgermq_pb2 as pb

GAP, ACCEPT, RELEASE, REJECT = 0, 1, 2, 3
WORDS = {GAP: pb.ACCEPT, ACCEPT: pb.ACCEPT, RELEASE: pb.RELEASE_SHARE, REJECT: pb.REJECT}
"""A gap is an offset without a record, so nothing has to be done about it."""


class Place(NamedTuple):
    """A partition, by the id of its topic as these clients know it."""

    topic_id: bytes
    partition: int


class Run(NamedTuple):
    """Offsets from `first` to `last`, inclusive, about which one thing is said."""

    first: int
    last: int
    word: pb.ShareWord


class Batch(Protocol):
    """An AcknowledgementBatch, of either API: one type for all of its offsets, or one for each."""

    first_offset: int
    last_offset: int
    acknowledge_types: list[int]


@dataclass(frozen=True, slots=True)
class Held:
    """Offsets from `first` to `last`, inclusive, leased under (`epoch`, `lease`) until about `until_s` (monotonic).
    `deliveries`: of each, with this one.
    """

    first: int
    last: int
    epoch: int
    lease: int
    until_s: float
    deliveries: int = 1


def runs_of(batches: Sequence[Batch]) -> list[Run]:
    """Return what the batches of one partition say, ascending. Raises InvalidRequest."""
    found: list[Run] = []
    end = 0
    for batch in batches:
        first, last, types = batch.first_offset, batch.last_offset, batch.acknowledge_types
        if first < end or last < first:
            raise InvalidRequest(f"acknowledged batches have to ascend and not to overlap: {first} to {last}")
        if len(types) not in (1, last - first + 1):
            raise InvalidRequest(f"{len(types)} acknowledge types for offsets {first} to {last}")
        end = last + 1
        found += _runs(first, last, types)
    return found


def _runs(first: int, last: int, types: Sequence[int]) -> Iterator[Run]:
    for kind in types:
        if kind not in WORDS:
            raise InvalidRequest(f"there is no acknowledge type {kind}")
    at = 0
    for number in range(1, len(types) + 1):
        if number == len(types) or WORDS[types[number]] != WORDS[types[at]]:
            until = last if number == len(types) else first + number - 1
            yield Run(first + at, until, WORDS[types[at]])
            at = number


def parted(span: pb.SharedSpan, chosen: Collection[int]) -> Iterator[tuple[bool, pb.SharedSpan]]:
    """Yield the parts of a span that are among the chosen offsets, and those that are not."""
    for is_chosen, offsets in groupby(range(span.first, span.last + 1), chosen.__contains__):
        found = list(offsets)
        one = pb.SharedSpan(first=found[0], last=found[-1], epoch=span.epoch, lease=span.lease, word=span.word)
        yield is_chosen, one


class Leases:
    """Of one member. What another lease takes over, or a word has ended, is forgotten."""

    def __init__(self) -> None:
        self._held: dict[Place, list[Held]] = {}
        """Ascending, and apart from each other."""

    def __bool__(self) -> bool:
        return bool(self._held)

    def note(self, place: Place, leased: Iterable[Held], now_s: float) -> None:
        """Note what was leased, and forget what has ended by its time."""
        held = [each for each in self._held.get(place, ()) if each.until_s > now_s]
        for new in leased:
            held = [part for old in held for part in _without(old, new.first, new.last)]
            held.append(new)
        self._set(place, sorted(held, key=lambda each: each.first))

    def spans(self, place: Place, runs: Iterable[Run]) -> tuple[list[pb.SharedSpan], bool]:
        """Return what the owner is to be asked, and whether each of the offsets is held."""
        held = self._held.get(place, [])
        found: list[pb.SharedSpan] = []
        are_held = True
        for run in runs:
            at = run.first
            for each in held[bisect_left(held, run.first, key=lambda one: one.last) :]:
                if each.first > run.last:
                    break
                first, last = max(each.first, run.first), min(each.last, run.last)
                are_held = are_held and first == at
                at = last + 1
                found.append(pb.SharedSpan(first=first, last=last, epoch=each.epoch, lease=each.lease, word=run.word))
            are_held = are_held and at == run.last + 1
        return found, are_held

    def deliveries(self, place: Place, offset: int) -> int:
        """Return how often a message was delivered; 0 if it is not held."""
        return next((each.deliveries for each in self._held.get(place, ()) if each.first <= offset <= each.last), 0)

    def ended(self, place: Place, spans: Iterable[pb.SharedSpan]) -> None:
        """Forget what the owner has answered about; one that it did not answer may be said again."""
        held = self._held.get(place, [])
        for span in spans:
            begin = bisect_left(held, span.first, key=lambda one: one.last)
            end = bisect_right(held, span.last, key=lambda one: one.first)
            held[begin:end] = [part for old in held[begin:end] for part in _without(old, span.first, span.last)]
        self._set(place, held)

    def everything(self, word: pb.ShareWord) -> Iterator[tuple[Place, list[pb.SharedSpan]]]:
        """Yield all that is held, with one word about it."""
        for place, held in self._held.items():
            yield (
                place,
                [
                    pb.SharedSpan(first=each.first, last=each.last, epoch=each.epoch, lease=each.lease, word=word)
                    for each in held
                ],
            )

    def _set(self, place: Place, held: list[Held]) -> None:
        if held:
            self._held[place] = held
        else:
            self._held.pop(place, None)


def _without(old: Held, first: int, last: int) -> Iterator[Held]:
    """Yield what is left of a lease without the offsets from `first` to `last`."""
    if old.first < first:
        yield replace(old, last=min(old.last, first - 1))
    if old.last > last:
        yield replace(old, first=max(old.first, last + 1))
