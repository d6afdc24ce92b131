"""Serve Stage: check a frame's batches, stage them in their bundles, answer in order.

This works as Produce does, but stored batches are invisible, and have no offsets, until their
transaction is committed. The answer has the error of each refused batch; batches in other bundles
are not affected. StageDelayed does the same for timed messages, and checks their due times.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from ledgermq.errors import InvalidRequest, LedgerMQError, NotOwner
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import StageFrame
from ledgermq_broker.access.state.rules import hash_of
from ledgermq_broker.admission.request_window import answered_in_order
from ledgermq_broker.cluster.ownership import Ownership
from ledgermq_broker.metadata.followed import Metadata
from ledgermq_broker.paths.received_batches import BatchChecks, let_go_of_frame, side_by_side, split_payload
from ledgermq_broker.timed.intake import Sent
from ledgermq_broker.timed.timers import Timers
from ledgermq_broker.transactions.from_wire import staged_branch_of
from ledgermq_broker.transactions.partition import Stored, TransactionPartition
from ledgermq_broker.transactions.state.types import Transaction
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.segment import Batch

SEQUENCE_MAX = 1 << 48


@dataclass(slots=True)
class _Entry:
    """One batch on its way to an answer."""

    bundle: int | None = None
    batch: Batch | None = None
    sequence: int = 0
    error: LedgerMQError | None = None


@dataclass(slots=True)
class Admitted:
    """A frame whose batches were passed to their bundles. `staged`: batches that each bundle stores."""

    entries: list[_Entry]
    staged: list[tuple[list[_Entry], Stored]] = field(default_factory=list)


class StagePath:
    """`transaction_of(ref)` checks what the frame names; `partition(bundle)` returns the participant
    of a bundle.
    """

    def __init__(
        self,
        metadata: Metadata,
        ownership: Ownership,
        checks: BatchChecks,
        transaction_of: Callable[[pb.TransactionRef], Awaitable[Transaction]],
        partition: Callable[[int], Awaitable[TransactionPartition]],
        timers: Timers,
    ) -> None:
        self._metadata = metadata
        self._ownership = ownership
        self._checks = checks
        self._transaction_of = transaction_of
        self._partition = partition
        self._timers = timers

    def stage(self, requests: AsyncIterator[StageFrame]) -> AsyncIterator[pb.StageResponse]:
        """Yield answers in the order of the requests."""
        return answered_in_order(requests, partial(self.admit, delayed=False), self.answer, "stage stream")

    def stage_delayed(self, requests: AsyncIterator[StageFrame]) -> AsyncIterator[pb.StageResponse]:
        """As `stage`, for records whose timestamps are due times."""
        return answered_in_order(requests, partial(self.admit, delayed=True), self.answer, "stream of delayed batches")

    async def admit(self, frame: StageFrame, *, delayed: bool) -> Admitted:
        """Admit a frame. Raises CorruptFrame if the frame's parts do not fit together. Any other error
        goes into the answer: for one batch, or for all if the transaction itself is refused.
        """
        header = frame.header
        pieces = split_payload([entry.batch for entry in header.batches], frame)
        try:
            branch = staged_branch_of(header.branch, delayed=delayed)
            transaction = await self._transaction_of(header.transaction)
            now_us = await self._timers.begin_send() if delayed else None
        except LedgerMQError as error:
            return Admitted([_Entry(error=error) for _ in pieces])
        lookup = self._metadata.lookup()
        entries = []
        for wanted, data in zip(header.batches, pieces, strict=True):
            try:
                _check_wish(wanted)
                bundle, batch, records = await self._checks.decoded(lookup, wanted.batch, data, delayed=delayed)
                if now_us is not None:
                    self._timers.check_due(Sent(batch, records), now_us)
                entries.append(_Entry(bundle, batch, wanted.sequence))
            except LedgerMQError as error:
                entries.append(_Entry(error=error))
        let_go_of_frame(entries)
        by_bundle: dict[int, list[_Entry]] = {}
        for entry in entries:
            if entry.bundle is not None:
                by_bundle.setdefault(entry.bundle, []).append(entry)
        partitions = await side_by_side(set(by_bundle), self._partition)
        admitted = Admitted(entries)
        for bundle, group in by_bundle.items():
            staged = _stage(group, partitions[bundle], transaction, branch, hash_of(frame.sender))
            if staged is not None:
                admitted.staged.append((group, staged))
        return admitted

    async def answer(self, admitted: Admitted) -> pb.StageResponse:
        await asyncio.gather(*(self._store(group, staged) for group, staged in admitted.staged))
        return pb.StageResponse(results=[self._result(entry) for entry in admitted.entries])

    async def _store(self, group: list[_Entry], stored: Stored) -> None:
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

    def _result(self, entry: _Entry) -> pb.StageResult:
        result = pb.StageResult(
            topic_id=entry.batch.topic_id if entry.batch is not None else 0, bundle=entry.bundle or 0
        )
        if entry.error is not None:
            result.error.CopyFrom(self._ownership.error(entry.error, entry.bundle))
        return result


def _stage(
    group: list[_Entry],
    partition: TransactionPartition | LedgerMQError,
    transaction: Transaction,
    branch: bytes,
    principal: int,
) -> Stored | None:
    """Stage all of a frame's batches of one bundle, in one decision."""
    try:
        if isinstance(partition, LedgerMQError):
            raise partition
        batches = [(entry.sequence, entry.batch) for entry in group if entry.batch is not None]
        for _, batch in batches:
            key = PartitionId(batch.topic_id, batch.partition)
            partition.owner.check_in_charge(key)
            partition.owner.exclusive.check(key, b"")
        return partition.stage(transaction, branch, batches, principal)
    except LedgerMQError as error:
        for entry in group:
            entry.error = error
        return None


def _check_wish(wanted: pb.StageBatch) -> None:
    if wanted.batch.HasField("producer"):
        raise InvalidRequest("a batch that is staged carries no producer session; its sequence is the transaction's")
    if wanted.sequence > SEQUENCE_MAX:
        raise InvalidRequest(f"sequences of a transaction end at {SEQUENCE_MAX}")
