"""Serve ProduceDelayed: batches go to the intakes of their bundles. The answers are as those of Produce, but a batch
is acknowledged when it is durable, never on receipt.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from ledgermq.errors import InvalidRequest, LedgerMQError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import ProduceFrame
from ledgermq_broker.access.state.rules import hash_of
from ledgermq_broker.metadata.followed import Lookup, Metadata
from ledgermq_broker.paths.admission import Admission, Admitted, Entry
from ledgermq_broker.paths.produce_path import ProducePath, session_of
from ledgermq_broker.paths.received_batches import BatchChecks, Received
from ledgermq_broker.timed.partition import TimerPartition
from ledgermq_broker.timed.taking_in.intake import Sent
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.root.store_clock import StoreClock
from ledgermq_ledger.topics.topic import Topic

CheckDue = Callable[[Sent, int], None]


@dataclass(slots=True)
class Sending:
    """What holds for a frame. `topic`: `__timers`. `now_us`: the store's time."""

    topic: Topic
    now_us: int
    principal: int
    lookup: Lookup


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
        self._clock = clock
        self._topic = topic
        self._check_due = check_due
        self._answers = answers
        self._admission = Admission(
            begin=self._begin,
            check=self._check,
            find=lambda sending, bundle: partition(sending.topic, bundle),
            hand_over=self._hand_over,
            answer=self._answer,
            spans=checks.spans,
        )

    def produce_delayed(self, requests: AsyncIterator[ProduceFrame]) -> AsyncIterator[pb.ProduceResponse]:
        """Yield answers as `Admission.stream` does."""
        return self._admission.stream(requests, "stream of timed messages")

    async def produce_delayed_once(self, request: ProduceFrame) -> pb.ProduceResponse:
        return await self._admission.once(request)

    async def _begin(self, frame: ProduceFrame) -> Sending:
        if frame.header.acks != pb.DURABLE:
            raise InvalidRequest("timed messages are acknowledged when they are durable; produce with acks=durable")
        topic, now_us = await self._topic(), await self._clock.read()
        return Sending(topic, now_us, hash_of(frame.sender), self._metadata.lookup())

    async def _check(self, sending: Sending, received: Received) -> Entry:
        session = session_of(received.header, True, sending.principal)
        bundle, batch, records = await self._checks.decoded(sending.lookup, received, session, delayed=True)
        return Entry(bundle, batch, records=records)

    async def _answer(self, admitted: Admitted[Sending]) -> pb.ProduceResponse:
        return await self._answers.answers(admitted.entries, durable=True)

    def _hand_over(self, sending: Sending, group: Sequence[Entry], partition: TimerPartition) -> None:
        """Accepted together or refused together, apart from those whose due times are refused, and those of topics
        that may have no more messages wait.
        """
        taken: list[tuple[Entry, Sent]] = []
        for entry in group:
            assert entry.batch is not None
            sent = Sent(entry.batch, entry.records)
            try:
                key = PartitionId(sent.batch.topic_id, sent.batch.partition)
                partition.owner.check_in_charge(key)
                partition.owner.exclusive.check(key, b"")
                self._check_due(sent, sending.now_us)
                taken.append((entry, sent))
            except LedgerMQError as refused:
                entry.error = refused
        full = partition.full({sent.batch.topic_id for _, sent in taken})
        for entry, sent in taken:
            entry.error = full.get(sent.batch.topic_id)
        taken = [(entry, sent) for entry, sent in taken if entry.error is None]
        if taken:
            done = partition.send([sent for _, sent in taken], sending.principal)
            for (entry, _), append in zip(taken, done, strict=True):
                entry.done = append
