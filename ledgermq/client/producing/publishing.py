"""How a producer's batches reach brokers: the call that carries them, its header, what its answers
say, and the source of sequences.

A producer's own batches are *produced* (`Producing`), those of records with a due time are *delayed*
(`Delaying`), those of a transaction are *staged* (`ledgermq.client.transactions.sending.staging`): the
batches, their queues, streams and retries are the same.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from ledgermq.buffers import Buffer
from ledgermq.client.messages.broker_clock import BrokerClock
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.producing.partition.batch import Batch
from ledgermq.client.producing.partition.phases import Numbering
from ledgermq.client.producing.partition.sessions import BatchNumbers, Session
from ledgermq.client.producing.runs import DuplicateOf
from ledgermq.client.settings.producers import ProducerSettings
from ledgermq.errors import InvalidRecord, LedgerMQError, MessageTooLarge
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import Connection
from ledgermq.protocol.frames import Frame
from ledgermq.protocol.limits import FRAME_PAYLOAD_BYTES_MAX

Response = pb.ProduceResponse | pb.StageResponse
Result = pb.ProduceResult | pb.StageResult


class Publishing(Protocol):
    @property
    def numbering(self) -> Numbering:
        """The source of sequences, for every partition."""
        ...

    @property
    def session_kind(self) -> type[Session]:
        """The class of new sessions, which counts their sequences."""
        return Session

    @property
    def needs_time(self) -> bool:
        """Whether the brokers' time is kept up to date."""
        return False

    def delaying(self, clock: BrokerClock) -> Publishing:
        """Return how records with a due time reach brokers. Raises the error that says why they may
        not be sent.
        """
        ...

    @property
    def takes_conditions(self) -> bool:
        """Whether records may expect where their partition ends."""
        return False

    @property
    def deduplicates(self) -> bool:
        """Whether records may count on being recognized by their ids."""
        return False

    def duplicates(self, result: Any) -> Mapping[int, DuplicateOf]:
        """Return the records of a refused batch whose ids are stored already, by row; empty: that is not why it
        was refused.
        """
        return {}

    def prepare(self, batch: Batch) -> None:
        """Complete a batch before it is encoded; may be called again afterwards."""
        return

    def session(self, at: TopicPartition) -> Session | None:
        """Return the only session of a partition, with Numbering.GIVEN; called once for each queue."""
        ...

    def entry(self, batch: Batch, session: Session | None) -> Any:
        """Return the header's entry for a batch that is encoded and numbered."""
        ...

    def frame(self, entries: Sequence[Any], payload: Sequence[Buffer]) -> Frame[Any]: ...

    def call(self, connection: Connection, requests: AsyncIterator[Frame[Any]]) -> AsyncIterator[Response]:
        """Open a stream: it receives frames, and yields answers in the same order."""
        ...

    def stored(self, batch: Batch, result: Any) -> int | None:
        """Apply the acknowledgement of a batch that is not settled yet.

        Return its base offset: -1 if the broker has not named it, None if it has none.
        """
        ...


class Producing(Publishing):
    """`sessions`: those of a resumed producer; each partition takes its session from it, once."""

    def __init__(self, settings: ProducerSettings, sessions: Mapping[TopicPartition, Session] | None = None) -> None:
        self._acks_received = settings.acks == "received"
        self._sessions = None if sessions is None else dict(sessions)
        if not settings.idempotent or settings.acks != "durable":
            self._numbering = Numbering.NONE
        else:
            self._numbering = Numbering.NEW if sessions is None else Numbering.GIVEN

    @property
    def numbering(self) -> Numbering:
        return self._numbering

    def delaying(self, clock: BrokerClock) -> Publishing:
        return Delaying(clock)

    @property
    def takes_conditions(self) -> bool:
        return self._numbering is Numbering.NEW

    @property
    def deduplicates(self) -> bool:
        return not self._acks_received and self._sessions is None

    def duplicates(self, result: pb.ProduceResult) -> Mapping[int, DuplicateOf]:
        return {
            each.row: DuplicateOf(each.offset) if each.HasField("offset") else DuplicateOf(None, each.same_as)
            for each in result.duplicates
        }

    def session(self, at: TopicPartition) -> Session | None:
        given = self._sessions.pop(at, None) if self._sessions is not None else None
        return None if given is None else replace(given)

    def entry(self, batch: Batch, session: Session | None) -> pb.ProduceBatch:
        return batch.entry(session)

    def frame(self, entries: Sequence[pb.ProduceBatch], payload: Sequence[Buffer]) -> Frame[Any]:
        return Frame(
            pb.ProduceHeader(acks=pb.RECEIVED if self._acks_received else pb.DURABLE, batches=entries), payload
        )

    def call(self, connection: Connection, requests: AsyncIterator[Frame[Any]]) -> AsyncIterator[Response]:
        return connection.produce(requests)

    def stored(self, batch: Batch, result: pb.ProduceResult) -> int | None:
        batch.append_us = result.append_us
        return -1 if self._acks_received else result.base_offset


class Delaying(Publishing):
    """Records with a due time, which is their timestamp. They are always stored durably, and once.

    Their batch is one record of an internal partition, so sequences count batches.
    """

    numbering = Numbering.NEW
    session_kind = BatchNumbers
    needs_time = True

    def __init__(self, clock: BrokerClock) -> None:
        self._clock = clock

    def delaying(self, clock: BrokerClock) -> Publishing:
        return self

    def prepare(self, batch: Batch) -> None:
        """Turn delays that were added to this machine's clock into due times by the brokers' clock."""
        batch.correct_delays(self._clock.correction_us())

    def session(self, at: TopicPartition) -> None:
        raise AssertionError("sessions are opened when they are needed")

    def entry(self, batch: Batch, session: Session | None) -> pb.ProduceBatch:
        return batch.entry(session)

    def frame(self, entries: Sequence[pb.ProduceBatch], payload: Sequence[Buffer]) -> Frame[Any]:
        return Frame(pb.ProduceHeader(acks=pb.DURABLE, batches=entries), payload)

    def call(self, connection: Connection, requests: AsyncIterator[Frame[Any]]) -> AsyncIterator[Response]:
        return connection.produce_delayed(requests)

    def stored(self, batch: Batch, result: pb.ProduceResult) -> None:
        """Note the batch's place in the intake. Its records have no offsets before they are due."""
        batch.intake_offset = result.base_offset


def encoding_error(batch: Batch) -> LedgerMQError | None:
    """Encode the batch's message. Return why it cannot be sent; None: it can.

    A batch that cannot be sent fails alone, whatever the reason, because its producer serves many others.
    """
    try:
        size = len(batch.encode())
    except LedgerMQError as error:
        return error
    except Exception as error:
        return InvalidRecord(f"records for {batch.at} cannot be encoded: {error}")
    if size > FRAME_PAYLOAD_BYTES_MAX:
        return MessageTooLarge(f"the batch has {size} bytes; a request holds at most {FRAME_PAYLOAD_BYTES_MAX}")
    return None
