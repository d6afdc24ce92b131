"""Stage the batches of a transaction, and count them for its decision.

Batching, routing, flow control and retries are those of the producer, which gets `Staging` in the
place of `Producing`. In a transaction no batch is ever numbered again; so each queue has one given
session, and no other session follows it.

Sequences count the batches of a transaction in a partition, from 0. Counts contain acknowledged
batches only; a transaction commits when all of its batches are acknowledged.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from ledgermq.buffers import Buffer
from ledgermq.client.broker_clock import BrokerClock
from ledgermq.client.descriptions import TopicPartition
from ledgermq.client.producing.batch import Batch
from ledgermq.client.producing.partition_queue import Numbering
from ledgermq.client.producing.publishing import Publishing, Response
from ledgermq.client.producing.sessions import BatchNumbers, Session
from ledgermq.errors import TransactionError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import Connection
from ledgermq.protocol.frames import Frame


class Staging(Publishing):
    """See `ledgermq.client.producing.publishing.Publishing`. Use `begin` before each transaction."""

    def __init__(self) -> None:
        self._reference = pb.TransactionRef()
        self._branch = b""
        self._counts: dict[int, dict[tuple[int, int], int]] = {}
        self.used = False
        """Whether a batch or an offset of this transaction may have reached a broker, or the program has
        read its name.
        """

    def begin(self, reference: pb.TransactionRef, branch: bytes = b"") -> None:
        """Begin a transaction, or a branch of it. All batches of the one before must be settled."""
        self._reference = reference
        self._branch = branch
        self._counts = {}
        self.used = False

    def parts(self, groups: Iterable[tuple[int, str]]) -> list[pb.TransactionPart]:
        """Return the counts of what is staged, by bundle. `groups`: (bundle, name) of each group with
        staged offsets.
        """
        parts = {bundle: pb.TransactionPart(bundle=bundle) for bundle in self._counts}
        for bundle, counts in self._counts.items():
            for (topic_id, partition), batches in counts.items():
                parts[bundle].counts.add(branch=self._branch, topic_id=topic_id, partition=partition, batches=batches)
        for bundle, group in groups:
            parts.setdefault(bundle, pb.TransactionPart(bundle=bundle)).groups.append(group)
        return [parts[bundle] for bundle in sorted(parts)]

    @property
    def numbering(self) -> Numbering:
        return Numbering.GIVEN

    def delaying(self, clock: BrokerClock) -> Publishing:
        raise TransactionError(
            "a delay in a transaction is not supported yet: send the record without delay, deliver_at and delay_level,"
            " or send it with a producer outside of the transaction"
        )

    def session(self, at: TopicPartition) -> Session:
        return BatchNumbers(self._reference.producer_id, 0, self._reference.epoch)

    def entry(self, batch: Batch, session: Session | None) -> pb.StageBatch:
        assert batch.sequence is not None, "a batch is numbered before it is sent"
        self.used = True
        return pb.StageBatch(batch=batch.entry(None), sequence=batch.sequence)

    def frame(self, entries: Sequence[pb.StageBatch], payload: Sequence[Buffer]) -> Frame[Any]:
        return Frame(pb.StageHeader(transaction=self._reference, branch=self._branch, batches=entries), payload)

    def call(self, connection: Connection, requests: AsyncIterator[Frame[Any]]) -> AsyncIterator[Response]:
        return connection.stage(requests)

    def stored(self, batch: Batch, result: pb.StageResult) -> None:
        """Count a batch. Its records have no offsets before the transaction is committed."""
        counts = self._counts.setdefault(result.bundle, {})
        at = (batch.topic_id, batch.at.partition)
        counts[at] = counts.get(at, 0) + 1
