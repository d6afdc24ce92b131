"""Idempotent producers of one connection: what has to be asked before a batch, and which answer its client gets.

Before the first batch of a producer, an epoch and a partition, the owner is asked for the slot at which
the session opens, and for the sequence that it expects. A new owner is asked again. What a batch means
by its sequence, and what a refusal means to those behind it, is decided in `wire.sequences`.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from ledgermq.errors import LedgerMQError, NotOwner
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq.protocol.naming.producer_ids import producer_bytes
from ledgermq.protocol.status import error_from_proto
from ledgermq_broker.kafka.wire.batches.head import BatchHead
from ledgermq_broker.kafka.wire.sequences import RefusedBatches, session_of

SESSIONS_MAX = 10_000
"""Of one connection; the one that was not used for longest is asked for again."""

Place = tuple[str, int]
_Key = tuple[bytes, int, Place]
"""Producer, epoch, partition."""


@dataclass(slots=True)
class _Opened:
    """`expected`: the sequence behind the batches that were sent."""

    slot: int
    expected: int


class Sessions:
    def __init__(self) -> None:
        self._opened: OrderedDict[_Key, _Opened] = OrderedDict()
        self._refused = RefusedBatches()

    async def session(self, api: BrokerApi, place: Place, head: BatchHead) -> pb.ProducerSession | None:
        """Return the session of a batch; None if its producer is not idempotent. Raises the broker's errors."""
        if head.producer_id < 0:
            return None
        key = (producer_bytes(head.producer_id), head.producer_epoch, place)
        opened = self._opened.get(key)
        if opened is None:
            opened = await self._open(api, key)
        self._opened.move_to_end(key)
        session = session_of(head, opened.expected, opened.slot)
        assert session is not None
        opened.expected = max(opened.expected, session.sequence + head.record_count)
        return session

    async def _open(self, api: BrokerApi, key: _Key) -> _Opened:
        producer, _, (topic, partition) = key
        answer = await api.open_producer(
            pb.OpenProducerRequest(
                partitions=[pb.TopicPartition(topic=topic, partition=partition)], producer_id=producer
            )
        )
        [found] = answer.partitions
        if found.HasField("error"):
            raise error_from_proto(found.error)
        opened = self._opened[key] = _Opened(found.opened_slot, found.next_sequence)
        if len(self._opened) > SESSIONS_MAX:
            self._opened.popitem(last=False)
        return opened

    def answered(self, place: Place, session: pb.ProducerSession, error: LedgerMQError | None) -> LedgerMQError | None:
        """Return the error that the client of a batch gets; None: it is stored. To be called in the order of the
        batches. `error`: what the broker answered.
        """
        if isinstance(error, NotOwner):
            self._opened.pop((session.id, session.epoch, place), None)  # the new owner has other slots
        return self._refused.answered((session.id, *place), session, error)


def stated(head: BatchHead) -> pb.ProducerSession | None:
    """Return what a batch says about its producer, before its partition was asked; None if that is not idempotent."""
    return session_of(head, head.base_sequence, 0)
