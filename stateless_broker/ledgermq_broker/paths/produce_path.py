"""Serve Produce: check a frame's batches, hand them to their bundles, answer in order.

Admission follows the order of the frames of a stream. A refused batch gets its error in the answer
and does not affect other batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace

from ledgermq.errors import DuplicateMessage, InvalidRequest, LedgerMQError, NotOwner, ResourceExhausted
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import ProduceFrame
from ledgermq.protocol.limits import PRODUCER_ID_BYTES
from ledgermq.protocol.status import error_to_proto
from ledgermq_broker.access.state.rules import hash_of
from ledgermq_broker.admission.fair_window import FairWindow
from ledgermq_broker.admission.request_window import answered_in_order
from ledgermq_broker.bundle.context import BundleMetrics
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.cluster.ownership import Ownership
from ledgermq_broker.logs import get_logger, logs_debug
from ledgermq_broker.metadata.followed import Metadata
from ledgermq_broker.paths.received_batches import BatchChecks, let_go_of_frame, side_by_side, split_payload
from ledgermq_ledger.log.producers import ProducerSession
from ledgermq_ledger.log.segment import Batch

log = get_logger(__name__)


@dataclass(slots=True)
class Entry:
    """One batch on its way to an answer: refused with `error`, or `done` returns its base offset. `owner`: of the
    bundle to whose partition it is appended; None: it goes elsewhere.
    """

    bundle: int | None = None
    batch: Batch | None = None
    error: LedgerMQError | None = None
    done: asyncio.Future[int] | None = None
    owner: BundleOwner | None = None


@dataclass(slots=True)
class Admitted:
    """A frame whose batches are with their bundles.

    `durable`: answer only when they are in the store.
    """

    durable: bool
    entries: list[Entry] = field(default_factory=list)


class ProducePath:
    """`window`: where frames of several principals wait for their turns."""

    def __init__(
        self,
        metadata: Metadata,
        ownership: Ownership,
        checks: BatchChecks,
        metrics: BundleMetrics,
        window: FairWindow,
    ) -> None:
        self._metadata = metadata
        self._metrics = metrics
        self._ownership = ownership
        self._checks = checks
        self._window = window

    def produce(self, requests: AsyncIterator[ProduceFrame]) -> AsyncIterator[pb.ProduceResponse]:
        """Yield answers in the order of the requests."""
        return answered_in_order(requests, self.admit, self.answer, "produce stream")

    async def produce_once(self, request: ProduceFrame) -> pb.ProduceResponse:
        return await self.answer(await self.admit(request))

    async def admit(self, frame: ProduceFrame) -> Admitted:
        """Admit a frame. Raises CorruptFrame if the frame's parts do not fit together; any other
        error belongs to one batch.
        """
        if not frame.sender:
            return await self._admit(frame)
        try:
            await self._window.enter(frame.sender, frame.payload_bytes)
        except ResourceExhausted as error:
            return Admitted(frame.header.acks == pb.DURABLE, [Entry(error=error) for _ in frame.header.batches])
        served: list[asyncio.Future[int]] = []
        try:
            admitted = await self._admit(frame)
            served = [entry.done for entry in admitted.entries if entry.done is not None]
            return admitted
        finally:
            self._window.left(frame.sender, frame.payload_bytes, served)

    async def _admit(self, frame: ProduceFrame) -> Admitted:
        """See `admit`."""
        durable = frame.header.acks == pb.DURABLE
        entries: list[Entry] = []
        lookup, principal = self._metadata.lookup(), hash_of(frame.sender)
        for header, data in zip(frame.header.batches, split_payload(frame.header.batches, frame), strict=True):
            try:
                bundle, batch = await self._checks.checked(lookup, header, data, session_of(header, durable, principal))
                if batch.ids and principal:
                    batch = replace(batch, ids_principal=principal)
                entries.append(Entry(bundle, batch))
            except LedgerMQError as error:
                entries.append(Entry(error=error))
        let_go_of_frame(entries)
        bundles = {entry.bundle for entry in entries if entry.bundle is not None}
        owners = await side_by_side(bundles, self._ownership.owner)
        by_bundle: dict[int, list[Entry]] = {}
        for entry in entries:
            if entry.bundle is not None:
                by_bundle.setdefault(entry.bundle, []).append(entry)
        for bundle, group in by_bundle.items():
            _hand_over(group, owners[bundle], durable, frame.sender)
        return Admitted(durable, entries)

    async def answer(self, admitted: Admitted) -> pb.ProduceResponse:
        return pb.ProduceResponse(results=[await self._result(entry, admitted.durable) for entry in admitted.entries])

    async def _result(self, entry: Entry, durable: bool) -> pb.ProduceResult:
        topic_id = entry.batch.topic_id if entry.batch is not None else 0
        error = entry.error
        if entry.done is not None:
            try:
                base_offset = await entry.done
                if logs_debug(__name__):
                    _log_answer(entry, base_offset, durable)
                result = pb.ProduceResult(base_offset=base_offset if durable else 0, topic_id=topic_id)
                if durable and entry.owner is not None and entry.batch is not None:
                    result.append_us = await entry.owner.append_us(entry.batch, base_offset)
                return result
            except NotOwner as failed:
                error = failed if failed.owner or entry.bundle is None else await self._ownership.redirect(entry.bundle)
            except DuplicateMessage as found:
                self._metrics.duplicates(topic_id, len(found.stored) + len(found.repeated))
                return _duplicates(topic_id, found)
            except LedgerMQError as failed:
                error = failed
        assert error is not None
        result = pb.ProduceResult(topic_id=topic_id, error=self._ownership.error(error, entry.bundle))
        result.error.not_stored = entry.done is None
        return result


def _duplicates(topic_id: int, found: DuplicateMessage) -> pb.ProduceResult:
    """Return which records of a batch its producer must not send again; nothing of it is stored."""
    rows = {row: pb.DuplicateRecord(row=row, offset=offset) for row, offset in found.stored}
    rows |= {row: pb.DuplicateRecord(row=row, same_as=first) for row, first in found.repeated}
    return pb.ProduceResult(
        topic_id=topic_id, error=error_to_proto(found), duplicates=[rows[row] for row in sorted(rows)]
    )


def _log_answer(entry: Entry, base_offset: int, durable: bool) -> None:
    batch = entry.batch
    assert batch is not None
    log.debug(
        "batch answered",
        bundle=entry.bundle,
        topic_id=batch.topic_id,
        partition=batch.partition,
        base_offset=base_offset if durable else None,
        records=batch.record_count,
        producer=batch.producer.id.hex() if batch.producer else None,
        sequence=batch.producer.sequence if batch.producer else None,
    )


def session_of(header: pb.ProduceBatch, durable: bool, principal: int = 0) -> ProducerSession | None:
    """Return the producer session of a batch; None if it has none. `principal`: `hash_of` its sender. Raises
    InvalidRequest.
    """
    if not header.HasField("producer"):
        return None
    if not durable:
        raise InvalidRequest("batches that are acknowledged on receipt carry no producer session")
    session = header.producer
    if len(session.id) != PRODUCER_ID_BYTES:
        raise InvalidRequest(f"a producer id has {PRODUCER_ID_BYTES} bytes, not {len(session.id)}")
    return ProducerSession(session.id, session.epoch, session.sequence, session.opened_slot, principal)


def _hand_over(group: Sequence[Entry], owner: BundleOwner | LedgerMQError, durable: bool, sender: str) -> None:
    """Hand all of a frame's batches of one bundle over at once: accepted together or refused
    together.
    """
    error = owner if isinstance(owner, LedgerMQError) else None
    if isinstance(owner, BundleOwner):
        try:
            owner.check_admission()
            group = [entry for entry in group if _has_arrived(entry, owner)]
            batches = [entry.batch for entry in group if entry.batch is not None]
            futures = owner.produce(batches, durable=durable, sender=sender)
            for entry, done in zip(group, futures, strict=True):
                entry.done, entry.owner = done, owner
            return
        except LedgerMQError as refused:
            error = refused
    for entry in group:
        entry.error = error or NotOwner("the bundle is not served here")


def _has_arrived(entry: Entry, owner: BundleOwner) -> bool:
    """Return False, with the error in the entry, for a batch of a partition that still moves to the owner's
    bundle: other batches of the frame need not wait for it.
    """
    assert entry.batch is not None
    try:
        owner.check_arrived(entry.batch)
    except LedgerMQError as error:
        entry.error = error
    return entry.error is None
