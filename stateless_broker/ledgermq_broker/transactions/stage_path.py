"""Serve Stage: batches are stored in the logs of their bundles, invisible and without offsets until their
transaction is committed. StageDelayed does the same for timed messages, and checks their due times.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from ledgermq.errors import InvalidRequest, LedgerMQError, NotOwner
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import StageFrame
from ledgermq_broker.access.state.rules import hash_of
from ledgermq_broker.cluster.ownership import Ownership
from ledgermq_broker.metadata.followed import Lookup, Metadata
from ledgermq_broker.paths.admission import Admission, Admitted, Entry
from ledgermq_broker.paths.received_batches import BatchChecks, Received
from ledgermq_broker.timed.taking_in.intake import Sent
from ledgermq_broker.timed.timers import Timers
from ledgermq_broker.transactions.from_wire import staged_branch_of
from ledgermq_broker.transactions.partition import Stored, TransactionPartition
from ledgermq_broker.transactions.state.types import Transaction
from ledgermq_ledger.keys import PartitionId

SEQUENCE_MAX = 1 << 48


@dataclass(slots=True)
class Staging:
    """What holds for a frame. `now_us`: the store's time, for timed messages. `by_records`: of the Kafka protocol.
    `stored`: what each bundle stores.
    """

    transaction: Transaction
    branch: bytes
    principal: int
    lookup: Lookup
    now_us: int | None
    by_records: bool
    stored: list[tuple[Sequence[Entry], Stored]] = field(default_factory=list)


class Known(Protocol):
    """The transactions that this broker knows, or asks their coordinators about."""

    async def named(self, ref: pb.TransactionRef) -> Transaction:
        """Return what a frame names, checked."""

    async def open_transaction(
        self, ref: pb.TransactionRef, bundle: int, place: PartitionId, *, adds: bool, also: Sequence[pb.TopicPartition]
    ) -> Transaction:
        """Return the open one of a Kafka client to which the partition was added; `adds`: or is added, with `also`."""

    async def in_bundle(self, bundle: int) -> TransactionPartition:
        """Return the participant of a bundle."""


class StagePath:
    def __init__(
        self,
        metadata: Metadata,
        ownership: Ownership,
        checks: BatchChecks,
        transactions: Known,
        timers: Timers,
    ) -> None:
        self._metadata = metadata
        self._ownership = ownership
        self._checks = checks
        self._transactions = transactions
        self._timers = timers
        self._at_once, self._delayed = (
            Admission(
                begin=partial(self._begin, delayed=delayed),
                check=self._check,
                find=lambda staging, bundle: transactions.in_bundle(bundle),
                hand_over=_hand_over,
                answer=self._answer,
                spans=checks.spans,
            )
            for delayed in (False, True)
        )

    def stage(self, requests: AsyncIterator[StageFrame]) -> AsyncIterator[pb.StageResponse]:
        """Yield answers as `Admission.stream` does."""
        return self._at_once.stream(requests, "stage stream")

    def stage_delayed(self, requests: AsyncIterator[StageFrame]) -> AsyncIterator[pb.StageResponse]:
        """As `stage`, for records whose timestamps are due times."""
        return self._delayed.stream(requests, "stream of delayed batches")

    async def _begin(self, frame: StageFrame, *, delayed: bool) -> Staging:
        header = frame.header
        branch = staged_branch_of(header.branch, delayed=delayed)
        lookup = self._metadata.lookup()
        transaction = await self._transaction(lookup, header)
        now_us = await self._timers.begin_send() if delayed else None
        return Staging(transaction, branch, hash_of(frame.sender), lookup, now_us, header.added)

    async def _transaction(self, lookup: Lookup, header: pb.StageHeader) -> Transaction:
        if not header.added:
            return await self._transactions.named(header.transaction)
        if len(header.batches) != 1 or header.branch:
            raise InvalidRequest("a frame of a transaction of the Kafka protocol has one batch, and no branch")
        batch = header.batches[0].batch
        topic, bundle = await lookup.partition(batch.topic, batch.partition)
        place = PartitionId(topic.id, batch.partition)
        return await self._transactions.open_transaction(
            header.transaction, bundle, place, adds=header.adds, also=header.also
        )

    async def _check(self, staging: Staging, received: Received) -> Entry:
        if received.header.HasField("producer"):
            raise InvalidRequest(
                "a batch that is staged carries no producer session; its sequence is the transaction's"
            )
        if received.sequence > SEQUENCE_MAX:
            raise InvalidRequest(f"sequences of a transaction end at {SEQUENCE_MAX}")
        delayed = staging.now_us is not None
        bundle, batch, records = await self._checks.decoded(staging.lookup, received, delayed=delayed)
        if staging.now_us is not None:
            self._timers.check_due(Sent(batch, records), staging.now_us)
        return Entry(bundle, batch, sequence=received.sequence)

    async def _answer(self, admitted: Admitted[Staging]) -> pb.StageResponse:
        if admitted.whole is not None:
            await asyncio.gather(*(self._store(group, stored) for group, stored in admitted.whole.stored))
        results = [self._result(entry) for entry in admitted.entries]
        bundles = {entry.bundle for entry in admitted.entries}
        return pb.StageResponse(results=results, put_ms=self._ownership.put_ms(bundles))

    async def _store(self, group: Sequence[Entry], stored: Stored) -> None:
        """Wait until the batches of one bundle are durable."""
        try:
            results = await stored()
        except NotOwner as failed:
            bundle = group[0].bundle
            error = failed if failed.owner or bundle is None else await self._ownership.redirect(bundle)
            results = [error] * len(group)
        except LedgerMQError as failed:
            results = [failed] * len(group)
        for entry, result in zip(group, results, strict=True):
            entry.error = result

    def _result(self, entry: Entry) -> pb.StageResult:
        result = pb.StageResult(
            topic_id=entry.batch.topic_id if entry.batch is not None else 0, bundle=entry.bundle or 0
        )
        if entry.error is not None:
            result.error.CopyFrom(self._ownership.error(entry.error, entry.bundle))
            result.kafka_code = getattr(entry.error, "kafka_code", 0)
        return result


def _hand_over(staging: Staging, group: Sequence[Entry], partition: TransactionPartition) -> None:
    """Stage all in one decision."""
    batches = [(entry.sequence, entry.batch) for entry in group if entry.batch is not None]
    for _, batch in batches:
        key = PartitionId(batch.topic_id, batch.partition)
        partition.owner.check_in_charge(key)
        partition.owner.exclusive.check(key, b"")
    by_records = staging.by_records
    stored = partition.stage(staging.transaction, staging.branch, batches, staging.principal, by_records=by_records)
    staging.stored.append((group, stored))
