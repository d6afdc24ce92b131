"""Serve ProduceDelayed: check a frame's batches, pass them to the intakes of their bundles, answer in order.

This works as Produce does, and the answers have the same form. A batch is acknowledged when it is durable,
never on receipt.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from ledgermq.errors import InvalidRequest, LedgerMQError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import ProduceFrame
from ledgermq.protocol.records import decode_batch
from ledgermq_broker.access.state.rules import hash_of
from ledgermq_broker.admission.request_window import answered_in_order
from ledgermq_broker.metadata.followed import Metadata
from ledgermq_broker.paths.produce_path import Admitted, Entry, ProducePath, session_of
from ledgermq_broker.paths.received_batches import BatchChecks, let_go_of_frame, side_by_side, split_payload
from ledgermq_broker.timed.intake import Sent
from ledgermq_broker.timed.partition import TimerPartition
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.root.store_clock import StoreClock
from ledgermq_ledger.topics.catalog import Topic

CheckDue = Callable[[Sent, int], None]


@dataclass(slots=True)
class _Entry(Entry):
    records: pa.RecordBatch | None = None

    @property
    def sent(self) -> Sent | None:
        if self.batch is None or self.records is None:
            return None
        return Sent(self.batch, self.records)


class SendPath:
    """`topic()` finds or creates `__timers`. `partition(topic, bundle)` returns the timed messages of a
    bundle. `answers` makes the answers: they are as those of Produce. `check_due` checks the due times of a
    batch at the store's time.
    """

    def __init__(
        self,
        metadata: Metadata,
        checks: BatchChecks,
        answers: ProducePath,
        clock: StoreClock,
        topic: Callable[[], Awaitable[Topic]],
        partition: Callable[[Topic, int], Awaitable[TimerPartition]],
        check_due: CheckDue,
    ) -> None:
        self._metadata = metadata
        self._checks = checks
        self._answers = answers
        self._clock = clock
        self._topic = topic
        self._partition = partition
        self._check_due = check_due

    def produce_delayed(self, requests: AsyncIterator[ProduceFrame]) -> AsyncIterator[pb.ProduceResponse]:
        """Yield answers in the order of the requests."""
        return answered_in_order(requests, self.admit, self._answers.answer, "stream of timed messages")

    async def produce_delayed_once(self, request: ProduceFrame) -> pb.ProduceResponse:
        return await self._answers.answer(await self.admit(request))

    async def admit(self, frame: ProduceFrame) -> Admitted:
        """Admit a frame. Raises CorruptFrame if the frame's parts do not fit together. Any other error
        goes into the answer: for one batch, or for all if the cluster can take no timed messages.
        """
        pieces = split_payload(frame.header.batches, frame)
        try:
            if frame.header.acks != pb.DURABLE:
                raise InvalidRequest("timed messages are acknowledged when they are durable; produce with acks=durable")
            topic, now_us = await self._topic(), await self._clock.read()
        except LedgerMQError as error:
            return Admitted(True, [_Entry(error=error) for _ in pieces])
        lookup = self._metadata.lookup()
        entries: list[_Entry] = []
        for header, data in zip(frame.header.batches, pieces, strict=True):
            try:
                session = session_of(header, True, hash_of(frame.sender))
                bundle, batch, records = await self._checks.decoded(lookup, header, data, session, delayed=True)
                entries.append(_Entry(bundle, batch, records=records))
            except LedgerMQError as error:
                entries.append(_Entry(error=error))
        _let_go_of_frame(entries)
        by_bundle: dict[int, list[_Entry]] = {}
        for entry in entries:
            if entry.bundle is not None:
                by_bundle.setdefault(entry.bundle, []).append(entry)
        partitions = await side_by_side(set(by_bundle), lambda bundle: self._partition(topic, bundle))
        for bundle, group in by_bundle.items():
            _hand_over(group, partitions[bundle], now_us, self._check_due)
        return Admitted(True, list(entries))


def _let_go_of_frame(entries: Sequence[_Entry]) -> None:
    """As `let_go_of_frame`, also for decoded records, which are views of the frame."""
    before = [entry.batch.data if entry.batch is not None else None for entry in entries]
    let_go_of_frame(entries)
    for entry, data in zip(entries, before, strict=True):
        if entry.batch is not None and entry.batch.data is not data:
            entry.records = decode_batch(entry.batch.data)


def _hand_over(
    group: Sequence[_Entry], partition: TimerPartition | LedgerMQError, now_us: int, check_due: CheckDue
) -> None:
    """Hand all of a frame's batches of one bundle over at once: accepted together or refused together, apart
    from those whose due times are refused, and those of topics that may have no more messages wait.
    """
    taken: list[tuple[_Entry, Sent]] = []
    try:
        if isinstance(partition, LedgerMQError):
            raise partition
        for entry in group:
            sent = entry.sent
            assert sent is not None
            try:
                key = PartitionId(sent.batch.topic_id, sent.batch.partition)
                partition.owner.check_in_charge(key)
                partition.owner.exclusive.check(key, b"")
                check_due(sent, now_us)
                taken.append((entry, sent))
            except LedgerMQError as refused:
                entry.error = refused
        full = partition.full({sent.batch.topic_id for _, sent in taken})
        for entry, sent in taken:
            entry.error = full.get(sent.batch.topic_id)
        taken = [(entry, sent) for entry, sent in taken if entry.error is None]
        if taken:
            for (entry, _), done in zip(taken, partition.send([sent for _, sent in taken]), strict=True):
                entry.done = done
    except LedgerMQError as refused:
        for entry in group:
            entry.error = entry.error or refused
