"""Publishing whose batches are observed, on their way from the first attempt to their outcome: for spans, and for
metrics. Nothing of it is there in a client that has neither.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ledgermq.buffers import Buffer
from ledgermq.client.messages.broker_clock import BrokerClock
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.producing.partition.batch import Batch
from ledgermq.client.producing.partition.phases import Numbering
from ledgermq.client.producing.partition.sessions import Session
from ledgermq.client.producing.publishing import Publishing, Response
from ledgermq.client.producing.runs import DuplicateOf
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import Connection
from ledgermq.protocol.frames import Frame

if TYPE_CHECKING:
    from ledgermq.telemetry.client_metrics import ClientMetrics


class BatchObserver(Protocol):
    def prepared(self, batch: Batch) -> None:
        """Note a batch that is about to be sent; it may be called again for each attempt."""

    def attempted(self, batch: Batch, header: pb.ProduceBatch) -> None:
        """Note an attempt. `header`: what the broker gets, which may be completed."""


class Observed(Publishing):
    """`inner`: how batches reach brokers."""

    def __init__(self, inner: Publishing, observers: Sequence[BatchObserver]) -> None:
        self._inner = inner
        self._observers = observers

    @property
    def numbering(self) -> Numbering:
        return self._inner.numbering

    @property
    def session_kind(self) -> type[Session]:
        return self._inner.session_kind

    @property
    def needs_time(self) -> bool:
        return self._inner.needs_time

    @property
    def takes_conditions(self) -> bool:
        return self._inner.takes_conditions

    @property
    def deduplicates(self) -> bool:
        return self._inner.deduplicates

    def delaying(self, clock: BrokerClock) -> Publishing:
        return Observed(self._inner.delaying(clock), self._observers)

    def duplicates(self, result: Any) -> Mapping[int, DuplicateOf]:
        return self._inner.duplicates(result)

    def prepare(self, batch: Batch) -> None:
        self._inner.prepare(batch)
        for observer in self._observers:
            observer.prepared(batch)

    def session(self, at: TopicPartition) -> Session | None:
        return self._inner.session(at)

    def entry(self, batch: Batch, session: Session | None) -> Any:
        entry = self._inner.entry(batch, session)
        header = entry.batch if isinstance(entry, pb.StageBatch) else entry
        for observer in self._observers:
            observer.attempted(batch, header)
        return entry

    def frame(self, entries: Sequence[Any], payload: Sequence[Buffer]) -> Frame[Any]:
        return self._inner.frame(entries, payload)

    def call(self, connection: Connection, requests: AsyncIterator[Frame[Any]]) -> AsyncIterator[Response]:
        return self._inner.call(connection, requests)

    def stored(self, batch: Batch, result: Any) -> int | None:
        return self._inner.stored(batch, result)


class BatchMeters:
    """Counts the batches of one producer that are sent. See `BatchObserver`."""

    def __init__(self, metrics: ClientMetrics) -> None:
        self._metrics = metrics
        self._attempts: dict[Batch, int] = {}
        """Of batches that are not settled."""

    def prepared(self, batch: Batch) -> None:
        if batch not in self._attempts:
            self._attempts[batch] = 0
            batch.outcome.call_when_settled(partial(self._end, batch))

    def attempted(self, batch: Batch, header: pb.ProduceBatch) -> None:
        made = self._attempts.get(batch)
        if made is None:
            return
        self._attempts[batch] = made + 1
        if made:
            self._metrics.retried(batch.at.topic)

    def _end(self, batch: Batch) -> None:
        del self._attempts[batch]
        if batch.outcome.error is None:
            seconds = asyncio.get_running_loop().time() - batch.born_s
            self._metrics.sent(batch.at.topic, batch.record_count, seconds)
