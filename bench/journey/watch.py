"""Note when each batch passes each stage of its way, in client and broker.

`watching` wraps the functions that every batch passes, so both have to run in this process: in virtual time, or a real
broker on a port. A batch is known by its producer, partition and sequence. Times are those of the running event loop.

    first record   sealed      in a frame   admitted     put begins   put ends   acknowledged   answered
        |--linger--|--window---|--request---|--spacing---|---put------|--order---|---answer-----|
                                                                                 |---seen--> a consumer has it
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from itertools import pairwise
from typing import Any

from ledgermq.client.producing.partition.ordered_batches import OrderedBatches
from ledgermq_broker.bundle.committing.group_commit import GroupCommit
from ledgermq_ledger.log.writing.writer import LedgerWriter

STAGES: Mapping[str, str] = {
    "linger": "the batch waits for more records, and for one of the places of its partition",
    "window": "it is complete, and waits for a place in a request",
    "request": "the request, to the broker's queue: checks included",
    "spacing": "it waits for the put of its bundle's next segment",
    "put": "the PUT of its segment",
    "order": "the segment is stored, and waits for those before it",
    "answer": "the answer, which waits for those of the requests before it",
}
MOMENTS = ("born", "sealed", "sent", "admitted", "put", "stored", "acknowledged", "answered")
SEEN = "seen"

Key = tuple[bytes, int, int, int]
"""Producer, topic id, partition, sequence."""
Place = tuple[int, int]
"""Partition, offset."""


@dataclass(slots=True)
class Journey:
    """Times of one batch, by moment. `first`: partition and offset of its first record."""

    at_s: dict[str, float] = field(default_factory=dict)
    first: Place | None = None
    records: int = 0

    @property
    def is_whole(self) -> bool:
        return all(moment in self.at_s for moment in MOMENTS)

    def stages_s(self) -> dict[str, float]:
        """Return the seconds of each stage; together they are those from the first record to the answer."""
        passed = [self.at_s[moment] for moment in MOMENTS]
        return {stage: after - before for stage, (before, after) in zip(STAGES, pairwise(passed), strict=True)}


class Watch:
    """What was noted so far."""

    def __init__(self) -> None:
        self._of_key: dict[Key, Journey] = {}
        self._sealed_s: dict[int, float] = {}
        """By `id` of a batch that was not sent yet."""
        self._seen_s: dict[Place, float] = {}

    def journeys(self) -> list[Journey]:
        """Return the batches that were answered."""
        found = [journey for journey in self._of_key.values() if journey.is_whole]
        for journey in found:
            assert journey.first is not None, "a batch that was answered has offsets"
            partition, base = journey.first
            seen_s = [
                self._seen_s[place]
                for row in range(journey.records)
                if (place := (partition, base + row)) in self._seen_s
            ]
            if seen_s:
                journey.at_s[SEEN] = min(seen_s)
        return found

    def forget(self) -> None:
        """Forget what was noted, because only now the load begins."""
        self._of_key.clear()
        self._seen_s.clear()

    def saw(self, partition: int, offset: int) -> None:
        """Note that a consumer has a record."""
        self._seen_s.setdefault((partition, offset), _now_s())

    def sealed(self, batch: Any) -> None:
        self._sealed_s[id(batch)] = _now_s()

    def sent(self, queue: OrderedBatches, batch: Any) -> None:
        if queue.session is None or batch.sequence is None:
            return
        journey = self._of_key.setdefault(_key_of(queue, batch), Journey())
        sealed_s = self._sealed_s.pop(id(batch), None)
        if sealed_s is not None:  # not sent again
            journey.at_s |= {"born": batch.born_s, "sealed": sealed_s, "sent": _now_s()}
            journey.records = batch.record_count

    def passed(self, moment: str, batches: Sequence[Any]) -> None:
        """Note that batches of a broker pass a moment."""
        for batch in batches:
            if batch.producer is not None:
                journey = self._of_key.get(
                    (batch.producer.id, batch.topic_id, batch.partition, batch.producer.sequence)
                )
                if journey is not None:
                    journey.at_s[moment] = _now_s()

    def answered(self, queue: OrderedBatches, batch: Any, base_offset: int | None) -> None:
        if queue.session is None or base_offset is None or batch.sequence is None:
            return
        journey = self._of_key.get(_key_of(queue, batch))
        if journey is not None:
            journey.at_s["answered"] = _now_s()
            journey.first = queue.at.partition, base_offset


@contextmanager
def watching() -> Iterator[Watch]:
    """Note the journeys of all batches of this process while the block runs."""
    watch = Watch()

    def of_flight(moment: str) -> Callable[..., None]:
        def note(writer: LedgerWriter, flight: Any, *_: object) -> None:
            watch.passed(moment, [waiter.batch for waiter, _ in flight.answers if hasattr(waiter, "batch")])

        return note

    def sealed_open(queue: OrderedBatches) -> None:
        if queue.open is not None:
            watch.sealed(queue.open)

    before: Sequence[tuple[type, str, Callable[..., None]]] = (
        (OrderedBatches, "seal_open", sealed_open),
        (OrderedBatches, "add_sealed", lambda queue, batch: watch.sealed(batch)),
        (OrderedBatches, "stored", watch.answered),
        (LedgerWriter, "write", lambda writer, appends: watch.passed("put", [each.batch for each in appends])),
        (LedgerWriter, "_take_outcome", of_flight("stored")),
        (LedgerWriter, "_acknowledge", of_flight("acknowledged")),
        (GroupCommit, "admit", lambda commit, batches, **_: watch.passed("admitted", batches)),
    )
    with ExitStack() as stack:
        for owner, name, note in before:
            stack.enter_context(_noting(owner, name, note, is_after=False))
        stack.enter_context(_noting(OrderedBatches, "sent", watch.sent, is_after=True))
        yield watch


@contextmanager
def _noting(owner: type, name: str, note: Callable[..., None], *, is_after: bool) -> Iterator[None]:
    """Call `note` with the arguments of each call of a method, before or after it."""
    plain = getattr(owner, name)

    @wraps(plain)
    def noted(*given: Any, **named: Any) -> Any:
        if not is_after:
            note(*given, **named)
        found = plain(*given, **named)
        if is_after:
            note(*given, **named)
        return found

    setattr(owner, name, noted)
    try:
        yield
    finally:
        setattr(owner, name, plain)


def _key_of(queue: OrderedBatches, batch: Any) -> Key:
    assert queue.session is not None
    return queue.session.id, queue.topic_id, queue.at.partition, batch.sequence


def _now_s() -> float:
    return asyncio.get_running_loop().time()
