"""Map the idempotent producers of the Kafka protocol to ours, and judge refusals of what one connection pipelines.

A client has up to five batches of a partition under way. If the first one is refused, those behind it cannot be
stored either: they would leave a gap. What clients do with the answers differs by code. OUT_OF_ORDER_SEQUENCE_NUMBER
is right for a real gap only: librdkafka takes it as fatal for the oldest batch, and after a new epoch it would
store again what is in doubt. So batches behind a refused one get the code of that one, until it has been sent again.
"""

from __future__ import annotations

from dataclasses import dataclass

from ledgermq.errors import (
    LedgerMQError,
    OutOfOrderSequence,
    ProducerEpochFenced,
    SequencePassed,
    UnknownProducer,
)
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.naming.producer_ids import ahead_of, producer_bytes, unwrapped
from ledgermq_broker.kafka.wire.batches.head import BatchHead
from ledgermq_broker.kafka.wire.errors import Area, Code, code_of

_RETRIED = {
    Code.CORRUPT_MESSAGE,
    Code.UNKNOWN_TOPIC_OR_PARTITION,
    Code.LEADER_NOT_AVAILABLE,
    Code.NOT_LEADER_OR_FOLLOWER,
    Code.REQUEST_TIMED_OUT,
    Code.COORDINATOR_LOAD_IN_PROGRESS,
    Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_COORDINATOR,
    Code.NOT_ENOUGH_REPLICAS,
    Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    Code.CONCURRENT_TRANSACTIONS,
    Code.KAFKA_STORAGE_ERROR,
}
"""Codes on which producers send a batch again, under the same sequence (librdkafka 2.14, Java 4.1)."""
LANES_MAX = 10_000
"""Lanes of one connection that wait for a batch to be sent again; beyond it the oldest is forgotten."""


def session_of(head: BatchHead, near: int, opened_slot: int) -> pb.ProducerSession | None:
    """Return the session of a batch; None: its producer is not idempotent. `near`: see `unwrapped`."""
    if head.producer_id < 0:
        return None
    return pb.ProducerSession(
        id=producer_bytes(head.producer_id),
        epoch=head.producer_epoch,
        sequence=unwrapped(head.base_sequence, near),
        opened_slot=opened_slot,
    )


Lane = tuple[bytes, str, int]
"""Producer, topic, partition."""


@dataclass(frozen=True, slots=True)
class _Refused:
    epoch: int
    sequence: int
    error: LedgerMQError


class RefusedBatches:
    """The oldest refused batch of each producer and partition of one connection.

    Invariant: a batch that is behind a refused one is never answered by a gap or an unknown producer.
    """

    def __init__(self, lanes_max: int = LANES_MAX) -> None:
        self._lanes_max = lanes_max
        self._refused: dict[Lane, _Refused] = {}

    def __len__(self) -> int:
        return len(self._refused)

    def answered(self, lane: Lane, session: pb.ProducerSession, error: LedgerMQError | None) -> LedgerMQError | None:
        """Return the error with which to answer a batch; None: it is stored. To be called for each batch, in the order
        of the requests. `error`: what the broker has answered.
        """
        first = self._refused.get(lane)
        if first is not None and (first.epoch < session.epoch or _is_past(first, session, error)):
            del self._refused[lane]
            first = None
        if error is None:
            return None
        if first is not None and first.epoch == session.epoch and ahead_of(session.sequence, first.sequence) > 0:
            return first.error if _says_gap(error) else error
        if _comes_again(error):
            self._refused.pop(lane, None)
            self._refused[lane] = _Refused(session.epoch, session.sequence, error)
            if len(self._refused) > self._lanes_max:
                del self._refused[next(iter(self._refused))]
        return error


def _is_past(first: _Refused, session: pb.ProducerSession, error: LedgerMQError | None) -> bool:
    """Return whether the refused batch is stored now, or has been refused for good: then nothing waits for it."""
    if first.epoch != session.epoch:
        return False
    if error is None:
        return ahead_of(session.sequence, first.sequence) >= 0
    return session.sequence == first.sequence and not _comes_again(error)


def _says_gap(error: LedgerMQError) -> bool:
    gap = isinstance(error, OutOfOrderSequence | UnknownProducer)
    return gap and not isinstance(error, ProducerEpochFenced | SequencePassed)


def _comes_again(error: LedgerMQError) -> bool:
    """Return whether a client sends the batch again: by the code that it gets."""
    return code_of(error, Area.PRODUCE) in _RETRIED
