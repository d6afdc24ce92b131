"""Serve Produce: check a frame's batches, hand them to their bundles, answer in order.

Admission follows the order of the frames of a stream. A refused batch gets its error in the answer
and does not affect other batches. Every batch is decoded and validated once, here, because its
bytes are stored as they came. An unreadable batch would stop the consumers of its partition and
park it, so its producer gets an error instead. The index takes its timestamps from the records.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa

from ledger.blocking import RunBlocking
from ledger.log.producers import ProducerSession
from ledger.log.segment import Batch
from ledger.topics.catalog import Topic
from ledgermq.errors import (
    CorruptFrame,
    InvalidRecord,
    InvalidRequest,
    LedgerMQError,
    MessageTooLarge,
    NotOwner,
    PublishNotAccepted,
)
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.batch_header import BatchInfo, check_crc, walk_batch
from ledgermq.protocol.frames import ProduceFrame
from ledgermq.protocol.limits import BATCHES_PER_FRAME_MAX, FRAME_PAYLOAD_BYTES_MAX
from ledgermq.protocol.records import (
    SCHEMA_VERSION,
    data_bytes_at_most,
    decode_batch,
    largest_record_bytes,
    timestamps_of,
)
from stateless_broker.bundle.owner import BundleOwner
from stateless_broker.logs import get_logger, logs_debug
from stateless_broker.metadata import Lookup, Metadata
from stateless_broker.ownership import Ownership

PRODUCER_ID_BYTES = 16
DECODED_BYTES_MAX = 2 * FRAME_PAYLOAD_BYTES_MAX
"""Largest decoded size of one batch, because ten kilobytes may claim to decode to any size.

Clients of this project make no batch that decodes to more than a frame holds.
"""
INLINE_BYTES_MAX = 256 * 1024
"""Largest size that is decompressed on the event loop, which takes a third of a millisecond; more
goes to a thread, where it delays no other call.
"""

log = get_logger(__name__)


@dataclass(slots=True)
class _Entry:
    """One batch on its way to an answer: refused with `error`, or `done` returns its base offset."""

    bundle: int | None = None
    batch: Batch | None = None
    error: LedgerMQError | None = None
    done: asyncio.Future[int] | None = None


@dataclass(slots=True)
class Admitted:
    """A frame whose batches are with their bundles.

    `durable`: answer only when they are in the store.
    """

    durable: bool
    entries: list[_Entry] = field(default_factory=list)


WINDOW_REQUESTS = 64
"""Requests of one stream that may wait for their answers."""


class ProducePath:
    def __init__(self, metadata: Metadata, ownership: Ownership, run_blocking: RunBlocking) -> None:
        self._metadata = metadata
        self._ownership = ownership
        self._run_blocking = run_blocking

    async def produce(self, requests: AsyncIterator[ProduceFrame]) -> AsyncIterator[pb.ProduceResponse]:
        """Yield answers in the order of the requests; at most `WINDOW_REQUESTS` requests wait for
        theirs.
        """
        waiting: asyncio.Queue[Admitted | Exception | None] = asyncio.Queue(WINDOW_REQUESTS)
        reader = asyncio.create_task(self._admit_all(requests, waiting), name="produce stream")
        try:
            while (admitted := await waiting.get()) is not None:
                if isinstance(admitted, Exception):
                    raise admitted
                yield await self.answer(admitted)
            await reader
        finally:
            reader.cancel()

    async def produce_once(self, request: ProduceFrame) -> pb.ProduceResponse:
        return await self.answer(await self.admit(request))

    async def _admit_all(
        self, requests: AsyncIterator[ProduceFrame], waiting: asyncio.Queue[Admitted | Exception | None]
    ) -> None:
        end: Exception | None = None
        try:
            async for frame in requests:
                await waiting.put(await self.admit(frame))
        except Exception as error:  # raised where the answers are read, after the answers before it
            end = error
        await waiting.put(end)

    async def admit(self, frame: ProduceFrame) -> Admitted:
        """Admit a frame. Raises CorruptFrame if the frame's parts do not fit together; any other
        error belongs to one batch.
        """
        durable = frame.header.acks == pb.DURABLE
        entries = []
        lookup = self._metadata.lookup()
        for header, data in _batches(frame):
            try:
                entries.append(await self._checked(lookup, header, data, durable))
            except LedgerMQError as error:
                entries.append(_Entry(error=error))
        _let_go_of_frame(entries)
        owners = await self._owners({entry.bundle for entry in entries if entry.bundle is not None})
        by_bundle: dict[int, list[_Entry]] = {}
        for entry in entries:
            if entry.bundle is not None:
                by_bundle.setdefault(entry.bundle, []).append(entry)
        for bundle, group in by_bundle.items():
            _hand_over(group, owners[bundle], durable)
        return Admitted(durable, entries)

    async def answer(self, admitted: Admitted) -> pb.ProduceResponse:
        return pb.ProduceResponse(results=[await self._result(entry, admitted.durable) for entry in admitted.entries])

    async def _result(self, entry: _Entry, durable: bool) -> pb.ProduceResult:
        topic_id = entry.batch.topic_id if entry.batch is not None else 0
        error = entry.error
        if entry.done is not None:
            try:
                base_offset = await entry.done
                if logs_debug(__name__):
                    _log_answer(entry, base_offset, durable)
                return pb.ProduceResult(base_offset=base_offset if durable else 0, topic_id=topic_id)
            except NotOwner as failed:
                error = failed if failed.owner or entry.bundle is None else await self._ownership.redirect(entry.bundle)
            except LedgerMQError as failed:
                error = failed
        assert error is not None
        return pb.ProduceResult(topic_id=topic_id, error=self._ownership.error(error, entry.bundle))

    async def _owners(self, bundles: set[int]) -> dict[int, BundleOwner | LedgerMQError]:
        """Return the owners; bundles that are still being opened here are awaited concurrently."""

        async def find(bundle: int) -> BundleOwner | LedgerMQError:
            try:
                return await self._ownership.owner(bundle)
            except LedgerMQError as error:
                return error

        if len(bundles) == 1:
            [bundle] = bundles
            return {bundle: await find(bundle)}
        return dict(zip(bundles, await asyncio.gather(*(find(bundle) for bundle in bundles)), strict=True))

    async def _checked(self, lookup: Lookup, header: pb.ProduceBatch, data: memoryview, durable: bool) -> _Entry:
        topic, bundle = await lookup.partition(header.topic, header.partition, header.topic_id)
        if topic.internal:
            raise PublishNotAccepted(f"topic {topic.name!r} belongs to the system")
        if not topic.settings.accept_publish:
            raise PublishNotAccepted(
                f"topic {topic.name!r} does not accept producing at present (accept.publish = false)"
            )
        if header.schema not in (0, SCHEMA_VERSION):
            raise CorruptFrame(f"record schema {header.schema} is not supported, only {SCHEMA_VERSION} is")
        check_crc(data, header.crc)
        walked = walk_batch(data, decoded_bytes_max=DECODED_BYTES_MAX)
        records = await self._decode(data, walked)
        if records.num_rows != header.record_count:
            raise CorruptFrame(f"the batch has {records.num_rows} records, the frame says {header.record_count}")
        if header.timestamp_min_us > header.timestamp_max_us:
            raise CorruptFrame(f"the frame says timestamps from {header.timestamp_min_us} to {header.timestamp_max_us}")
        _check_keys(topic, records)
        if walked.decoded_bytes > topic.settings.max_message_bytes:  # otherwise no record can be larger
            _check_largest_record(topic, records)
        timestamp_min_us, timestamp_max_us = timestamps_of(records) or (
            header.timestamp_min_us,
            header.timestamp_max_us,
        )
        batch = Batch(
            topic_id=topic.id,
            partition=header.partition,
            record_count=header.record_count,
            crc=header.crc,
            timestamp_min_us=timestamp_min_us,
            timestamp_max_us=timestamp_max_us,
            data=data,
            producer=_session(header, durable),
        )
        return _Entry(bundle=bundle, batch=batch)

    async def _decode(self, data: memoryview, walked: BatchInfo) -> pa.RecordBatch:
        """Decode a batch. Raises CorruptFrame."""
        if walked.codec == "none" or walked.decoded_bytes <= INLINE_BYTES_MAX:
            return decode_batch(data, walked=walked)
        return await self._run_blocking(partial(decode_batch, data, walked=walked))


def _log_answer(entry: _Entry, base_offset: int, durable: bool) -> None:
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


def _batches(frame: ProduceFrame) -> list[tuple[pb.ProduceBatch, memoryview]]:
    """Return each batch's header with its part of the payload. Raises CorruptFrame."""
    headers: Sequence[pb.ProduceBatch] = frame.header.batches
    if not 0 < len(headers) <= BATCHES_PER_FRAME_MAX:
        raise CorruptFrame(f"a frame has 1 to {BATCHES_PER_FRAME_MAX} batches, not {len(headers)}")
    if sum(header.length for header in headers) != frame.payload_bytes:
        raise CorruptFrame(
            f"the frame names {sum(header.length for header in headers)} bytes of batches, its payload has"
            f" {frame.payload_bytes}"
        )
    if len(frame.payload) == len(headers) and all(
        len(p) == h.length for p, h in zip(frame.payload, headers, strict=True)
    ):
        return [(header, memoryview(piece)) for header, piece in zip(headers, frame.payload, strict=True)]
    payload = memoryview(frame.payload[0] if len(frame.payload) == 1 else b"".join(frame.payload))
    found, at = [], 0
    for header in headers:
        found.append((header, payload[at : at + header.length]))
        at += header.length
    return found


def _let_go_of_frame(entries: Sequence[_Entry]) -> None:
    """Copy the batches taken from a frame if they are a small part of it.

    A batch is a view of its frame and lives in memory for as long as it is cached. Bounds count
    only the batch, so it must not keep refused batches, or a header of a megabyte.
    """
    taken: dict[int, int] = {}
    for entry in entries:
        if entry.batch is not None and isinstance(entry.batch.data, memoryview):
            frame = id(entry.batch.data.obj)
            taken[frame] = taken.get(frame, 0) + len(entry.batch.data)
    for entry in entries:
        if entry.batch is not None and isinstance(entry.batch.data, memoryview):
            whole = entry.batch.data.obj
            if 2 * taken[id(whole)] < memoryview(whole).nbytes:
                entry.batch = replace(entry.batch, data=bytes(entry.batch.data))


def _session(header: pb.ProduceBatch, durable: bool) -> ProducerSession | None:
    if not header.HasField("producer"):
        return None
    if not durable:
        raise InvalidRequest("batches that are acknowledged on receipt carry no producer session")
    session = header.producer
    if len(session.id) != PRODUCER_ID_BYTES:
        raise InvalidRequest(f"a producer id has {PRODUCER_ID_BYTES} bytes, not {len(session.id)}")
    return ProducerSession(session.id, session.epoch, session.sequence, session.opened_slot)


def _check_keys(topic: Topic, records: pa.RecordBatch) -> None:
    if topic.settings.keyed and (without := records.column("key").null_count):
        raise InvalidRecord(
            f"{without} records without a key; topic {topic.name!r} is keyed (cleanup.policy) and takes none"
        )


def _check_largest_record(topic: Topic, records: pa.RecordBatch) -> None:
    if data_bytes_at_most(records) <= topic.settings.max_message_bytes:
        return  # only a batch that takes more than the limit can hold a record above it
    largest = largest_record_bytes(records)
    if largest > topic.settings.max_message_bytes:
        raise MessageTooLarge(
            f"a record of {largest} bytes; topic {topic.name!r} takes at most {topic.settings.max_message_bytes}"
            " (max.message.bytes)"
        )


def _hand_over(group: Sequence[_Entry], owner: BundleOwner | LedgerMQError, durable: bool) -> None:
    """Hand all of a frame's batches of one bundle over at once: accepted together or refused
    together.
    """
    error = owner if isinstance(owner, LedgerMQError) else None
    if isinstance(owner, BundleOwner):
        try:
            futures = owner.produce([entry.batch for entry in group if entry.batch is not None], durable=durable)
            for entry, done in zip(group, futures, strict=True):
                entry.done = done
            return
        except LedgerMQError as refused:
            error = refused
    for entry in group:
        entry.error = error or NotOwner("the bundle is not served here")
