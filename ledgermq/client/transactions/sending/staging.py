"""Stage the batches of a transaction, and count them for its decision.

Batching, routing, flow control and retries are those of the producer, which gets `Staging` in the
place of `Producing`. In a transaction no batch is ever numbered again; so each queue has one given
session, and no other session follows it.

Sequences count the batches of a transaction in a partition, from 0. Counts contain acknowledged
batches only; a transaction commits when all of its batches are acknowledged.

Records with a due time are staged in a separate branch, by another call, so that no broker can take
them for others. One decision counts both.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from ledgermq.buffers import Buffer
from ledgermq.client.messages.broker_clock import BrokerClock
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.producing.partition.batch import Batch
from ledgermq.client.producing.partition.phases import Numbering
from ledgermq.client.producing.partition.sessions import BatchNumbers, Session
from ledgermq.client.producing.publishing import Publishing, Response
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import Connection
from ledgermq.protocol.frames import Frame
from ledgermq.protocol.limits import DELAYED_BRANCH


class Staging(Publishing):
    """See `ledgermq.client.producing.publishing.Publishing`. Use `begin` before each transaction."""

    def __init__(self) -> None:
        self._reference = pb.TransactionRef()
        self._branch = b""
        self._groups: set[tuple[int, str]] = set()
        self._counts: dict[int, dict[tuple[bytes, int, int], int]] = {}
        """Bundle -> (branch, topic id, partition) -> number of batches."""
        self.used = False
        """Whether a batch or an offset of this transaction may have reached a broker, or the program has
        read its name.
        """

    def begin(self, reference: pb.TransactionRef, branch: bytes = b"") -> None:
        """Begin a transaction, or a branch of it. All batches of the one before must be settled."""
        self._reference = reference
        self._branch = branch
        self._counts = {}
        self._groups = set()
        self.used = False

    @property
    def reference(self) -> pb.TransactionRef:
        """Return the name of the transaction."""
        return self._reference

    def note_groups(self, groups: Iterable[tuple[int, str]]) -> None:
        """Note (bundle, name) of groups whose offsets are staged without a member."""
        self._groups.update(groups)

    def parts(self, groups: Iterable[tuple[int, str]]) -> list[pb.TransactionPart]:
        """Return the counts of what is staged, by bundle. `groups`: (bundle, name) of each group with
        staged offsets.
        """
        parts = {bundle: pb.TransactionPart(bundle=bundle) for bundle in self._counts}
        for bundle, counts in self._counts.items():
            for (branch, topic_id, partition), batches in counts.items():
                parts[bundle].counts.add(branch=branch, topic_id=topic_id, partition=partition, batches=batches)
        for bundle, group in sorted({*groups, *self._groups}):
            parts.setdefault(bundle, pb.TransactionPart(bundle=bundle)).groups.append(group)
        return [parts[bundle] for bundle in sorted(parts)]

    @property
    def numbering(self) -> Numbering:
        return Numbering.GIVEN

    @property
    def delayed_branch(self) -> bytes:
        """Return the branch of the records with a due time."""
        return self._branch + DELAYED_BRANCH

    def delaying(self, clock: BrokerClock) -> Publishing:
        return DelayedStaging(self, clock)

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
        self.count(self._branch, batch, result)

    def count(self, branch: bytes, batch: Batch, result: pb.StageResult) -> None:
        """Count a batch that is staged in a branch."""
        counts = self._counts.setdefault(result.bundle, {})
        at = (branch, batch.topic_id, batch.at.partition)
        counts[at] = counts.get(at, 0) + 1


class DelayedStaging(Publishing):
    """Records of a transaction that have a due time, which is their timestamp. `staging`: the one of its
    other records.
    """

    numbering = Numbering.GIVEN
    needs_time = True

    def __init__(self, staging: Staging, clock: BrokerClock) -> None:
        self._staging = staging
        self._clock = clock

    def delaying(self, clock: BrokerClock) -> Publishing:
        return self

    def prepare(self, batch: Batch) -> None:
        """Turn delays that were added to this machine's clock into due times by the brokers' clock."""
        batch.correct_delays(self._clock.correction_us())

    def session(self, at: TopicPartition) -> Session:
        return self._staging.session(at)

    def entry(self, batch: Batch, session: Session | None) -> pb.StageBatch:
        return self._staging.entry(batch, session)

    def frame(self, entries: Sequence[pb.StageBatch], payload: Sequence[Buffer]) -> Frame[Any]:
        frame = self._staging.frame(entries, payload)
        frame.header.branch = self._staging.delayed_branch
        return frame

    def call(self, connection: Connection, requests: AsyncIterator[Frame[Any]]) -> AsyncIterator[Response]:
        return connection.stage_delayed(requests)

    def stored(self, batch: Batch, result: pb.StageResult) -> None:
        """Count a batch. Its records have no place in the intake before the transaction is committed."""
        self._staging.count(self._staging.delayed_branch, batch, result)
