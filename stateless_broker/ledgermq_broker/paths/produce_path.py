"""Serve Produce: batches are appended to the ledgers of their bundles, in order."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from ledgermq.errors import DuplicateMessage, InvalidRequest, LedgerMQError, NotOwner
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq.protocol.frames import ProduceFrame
from ledgermq.protocol.limits import PRODUCER_ID_BYTES
from ledgermq.protocol.status import error_from_proto, error_to_proto
from ledgermq_broker.access.state.rules import hash_of
from ledgermq_broker.admission.fair_window import FairWindow
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.bundle.shared.context import BundleMetrics
from ledgermq_broker.cluster.ownership import Ownership
from ledgermq_broker.logs import get_logger, logs_debug
from ledgermq_broker.metadata.followed import Lookup, Metadata
from ledgermq_broker.paths.admission import Admission, Admitted, Entry
from ledgermq_broker.paths.received_batches import BatchChecks, Received
from ledgermq_ledger.log.partitions.producers import ProducerSession

log = get_logger(__name__)

AtOwner = Callable[[int, Callable[[BrokerApi], Awaitable[pb.ProduceResponse]]], Awaitable[pb.ProduceResponse]]


@dataclass(slots=True)
class Producing:
    """What holds for a frame. `durable`: answer only when its batches are in the store."""

    durable: bool
    sender: str
    principal: int
    lookup: Lookup


class ProducePath:
    """`window`: where frames of several principals wait for their turns. `at_owner(bundle, call)`: makes a call at the
    broker that owns a bundle.
    """

    def __init__(
        self,
        metadata: Metadata,
        ownership: Ownership,
        checks: BatchChecks,
        metrics: BundleMetrics,
        window: FairWindow,
        at_owner: AtOwner,
    ) -> None:
        self._metadata = metadata
        self._call_owner = at_owner
        self._metrics = metrics
        self._ownership = ownership
        self._checks = checks
        self._admission = Admission(
            begin=self._begin,
            check=self._check,
            find=lambda producing, bundle: ownership.owner(bundle),
            hand_over=_hand_over,
            answer=self._answer,
            window=window,
            spans=checks.spans,
        )

    def produce(self, requests: AsyncIterator[ProduceFrame]) -> AsyncIterator[pb.ProduceResponse]:
        """Yield answers as `Admission.stream` does."""
        return self._admission.stream(requests, "produce stream")

    async def produce_once(self, request: ProduceFrame) -> pb.ProduceResponse:
        if request.at_owner:
            return await self._at_owner(request)
        return await self._admission.once(request)

    async def _at_owner(self, request: ProduceFrame) -> pb.ProduceResponse:
        """Let the owner of its partition store the one batch of a frame. Raises InvalidRequest."""
        batches, passed = request.header.batches, replace(request, at_owner=False)
        if len(batches) != 1 or batches[0].HasField("producer"):
            raise InvalidRequest("a broker hands on one batch in a call, and none with a session")
        [batch] = batches
        try:
            _, bundle = await self._metadata.lookup().partition(batch.topic, batch.partition, batch.topic_id)
            return await self._call_owner(bundle, lambda broker: _produced_by(broker, passed))
        except LedgerMQError as error:
            return pb.ProduceResponse(results=[pb.ProduceResult(error=self._ownership.error(error, None))])

    async def answers(self, entries: Sequence[Entry], *, durable: bool) -> pb.ProduceResponse:
        """Return the answer to a frame when the outcomes of all its batches are known."""
        results = [await self._result(entry, durable) for entry in entries]
        bundles = {entry.bundle for entry in entries} if durable else ()  # else no answer waits for a put
        return pb.ProduceResponse(results=results, put_ms=self._ownership.put_ms(bundles))

    async def _answer(self, admitted: Admitted[Producing]) -> pb.ProduceResponse:
        return await self.answers(admitted.entries, durable=admitted.whole is not None and admitted.whole.durable)

    async def _begin(self, frame: ProduceFrame) -> Producing:
        durable = frame.header.acks == pb.DURABLE
        return Producing(durable, frame.sender, hash_of(frame.sender), self._metadata.lookup())

    async def _check(self, producing: Producing, received: Received) -> Entry:
        session = session_of(received.header, producing.durable, producing.principal)
        bundle, batch = await self._checks.checked(producing.lookup, received, session)
        if batch.ids and producing.principal:
            batch = replace(batch, ids_principal=producing.principal)
        return Entry(bundle, batch)

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


async def _produced_by(broker: BrokerApi, frame: ProduceFrame) -> pb.ProduceResponse:
    """Raises NotOwner if the broker does not own the partition: nothing is stored then."""
    answer = await broker.produce_once(frame)
    for result in answer.results:
        if isinstance(error := error_from_proto(result.error), NotOwner):
            raise error
    return answer


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


def _hand_over(producing: Producing, group: Sequence[Entry], owner: BundleOwner) -> None:
    """Accepted together or refused together."""
    owner.check_admission()
    group = [entry for entry in group if _has_arrived(entry, owner)]
    batches = [entry.batch for entry in group if entry.batch is not None]
    futures = owner.produce(batches, durable=producing.durable, sender=producing.sender)
    for entry, done in zip(group, futures, strict=True):
        entry.done, entry.owner = done, owner


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
