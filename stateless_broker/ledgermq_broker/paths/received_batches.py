"""Check batches that came from a producer: every batch is decoded and validated once, here, because
its bytes are stored as they came.

An unreadable batch would stop the consumers of its partition and park it, so its producer gets an
error instead. The index takes its timestamps from the records. Must not know: whether a batch
becomes visible at once or with its transaction.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from ledgermq.errors import CorruptFrame, InvalidRecord, InvalidRequest, MessageTooLarge, PublishNotAccepted
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.batches.batch_header import BatchInfo, check_crc, walk_batch
from ledgermq.protocol.batches.record_rules import TimestampBounds, check_records
from ledgermq.protocol.batches.records import (
    CONDITIONAL_SCHEMA_VERSION,
    SCHEMA_VERSION,
    check_decoded,
    data_bytes_at_most,
    decode_batch,
    largest_record_bytes,
)
from ledgermq.protocol.frames import Frame, H
from ledgermq.protocol.limits import BATCHES_PER_FRAME_MAX, FRAME_PAYLOAD_BYTES_MAX
from ledgermq.protocol.naming.message_ids import ids_of
from ledgermq_broker.metadata.followed import Lookup
from ledgermq_broker.paths.append_spans import AppendSpans
from ledgermq_ledger.blocking import RunBlocking
from ledgermq_ledger.log.partitions.producers import ProducerSession
from ledgermq_ledger.log.segments.segment import Batch
from ledgermq_ledger.log.segments.tag_summary import summary_of
from ledgermq_ledger.topics.settings import UNCHECKED
from ledgermq_ledger.topics.topic import Topic

DECODED_BYTES_MAX = 2 * FRAME_PAYLOAD_BYTES_MAX
"""Largest decoded size of one batch, because ten kilobytes may claim to decode to any size.

Clients of this project make no batch that decodes to more than a frame holds.
"""
INLINE_BYTES_MAX = 256 * 1024
"""Largest size that is decompressed on the event loop, which takes a third of a millisecond; more
goes to a thread, where it delays no other call.
"""

CheckValues = Callable[[Topic, pa.RecordBatch], Awaitable[None]]


@dataclass(slots=True)
class Received:
    """A batch as it came. `records`: its content, if what hands it over within this process has it decoded; None: it
    is decoded here. `sequence`: of a staged batch.
    """

    header: pb.ProduceBatch
    data: memoryview
    records: pa.RecordBatch | None = None
    sequence: int = 0


class BatchChecks:
    """`run_blocking` decompresses large batches. `check_backlog` raises an error if a partition takes no batch
    because of its backlog quota. `now_us`: the time by which timestamps are of the future. `check_values` raises
    InvalidRecord for a value that its topic does not take (`value.validate`). `spans`: of traced batches, for
    all that lets batches in.
    """

    def __init__(
        self,
        run_blocking: RunBlocking,
        check_backlog: Callable[[Topic, int], None],
        now_us: Callable[[], int],
        check_values: CheckValues,
        spans: AppendSpans | None = None,
    ) -> None:
        self.spans = spans
        self._run_blocking = run_blocking
        self._check_values = check_values
        self._check_backlog = check_backlog
        self._now_us = now_us

    async def checked(
        self, lookup: Lookup, received: Received, producer: ProducerSession | None = None
    ) -> tuple[int, Batch]:
        """Return a valid batch and the bundle of its partition; in a topic with `dedup.window.ms`, with the
        ids of its records.

        Raises UnknownTopic, UnknownPartition, PublishNotAccepted, BacklogQuotaExceeded, ResourceExhausted,
        CorruptFrame, InvalidRecord, MessageTooLarge, Unavailable.
        """
        if received.header.HasField("expect_end") and producer is None:
            raise InvalidRequest(
                "a batch with expect_end needs a producer session: without a sequence, a repetition would be refused"
                " though the batch is stored"
            )
        topic, bundle, batch, records = await self._checked(lookup, received, producer)
        self._check_times(topic, batch)
        if received.header.HasField("expect_end"):
            batch = replace(batch, expect_end=received.header.expect_end)
        if topic.settings.dedup_window_ms and (ids := ids_of(records)):
            batch = replace(batch, ids=ids)
        return bundle, batch

    async def decoded(
        self, lookup: Lookup, received: Received, producer: ProducerSession | None = None, *, delayed: bool
    ) -> tuple[int, Batch, pa.RecordBatch]:
        """As `checked`, with the records, whose buffers may be views of the frame, and without ids.

        `delayed`: timestamps are due times, which may be of the future.
        """
        if received.header.HasField("expect_end"):
            raise InvalidRequest("expect_end is for records that are appended at once: not delayed, nor staged")
        topic, bundle, batch, records = await self._checked(lookup, received, producer)
        if not delayed:
            self._check_times(topic, batch)
        return bundle, batch, records

    def _check_times(self, topic: Topic, batch: Batch) -> None:
        """Refuse records whose timestamps are further from the present than the topic allows."""
        if topic.settings.append_time:
            return
        bounds = TimestampBounds(
            topic.settings.message_timestamp_after_max_ms, topic.settings.message_timestamp_before_max_ms
        )
        times = batch.timestamp_min_us, batch.timestamp_max_us
        problem = bounds.problem(*times, self._now_us(), "the broker's time", repr(topic.name))
        if problem is not None:
            raise InvalidRecord(
                f"a timestamp is {problem}. None of the batch is stored: check the unit of the"
                " timestamps, and the clock of the producer's machine"
            )

    async def _checked(
        self, lookup: Lookup, received: Received, producer: ProducerSession | None
    ) -> tuple[Topic, int, Batch, pa.RecordBatch]:
        header = received.header
        topic, bundle = await lookup.partition(header.topic, header.partition, header.topic_id)
        if topic.internal:
            raise PublishNotAccepted(f"topic {topic.name!r} belongs to the system")
        if not topic.settings.accept_publish:
            raise PublishNotAccepted(
                f"topic {topic.name!r} does not accept producing at present (accept.publish = false)"
            )
        self._check_backlog(topic, header.partition)
        schema = CONDITIONAL_SCHEMA_VERSION if header.HasField("expect_end") else SCHEMA_VERSION
        if header.schema != schema:
            raise CorruptFrame(f"record schema {header.schema} is not supported here, only {schema} is")
        data, records = received.data, received.records
        if records is None:
            check_crc(data, header.crc)
            walked = walk_batch(data, decoded_bytes_max=DECODED_BYTES_MAX)
            records, decoded_bytes = await self._decode(data, walked), walked.decoded_bytes
        else:
            records, decoded_bytes = check_decoded(records, DECODED_BYTES_MAX), records.nbytes
        if records.num_rows != header.record_count:
            raise CorruptFrame(f"the batch has {records.num_rows} records, the frame says {header.record_count}")
        if header.timestamp_min_us > header.timestamp_max_us:
            raise CorruptFrame(f"the frame says timestamps from {header.timestamp_min_us} to {header.timestamp_max_us}")
        _check_keys(topic, records)
        if decoded_bytes > topic.settings.max_message_bytes:  # otherwise no record can be larger
            _check_largest_record(topic, records)
        timestamp_min_us, timestamp_max_us = check_records(records) or (
            header.timestamp_min_us,
            header.timestamp_max_us,
        )
        if topic.settings.value_validate != UNCHECKED:
            await self._check_values(topic, records)
        batch = Batch(
            topic_id=topic.id,
            partition=header.partition,
            record_count=header.record_count,
            crc=header.crc,
            timestamp_min_us=timestamp_min_us,
            timestamp_max_us=timestamp_max_us,
            data=data,
            producer=producer,
            sent_crc=header.crc,
            tag_summary=summary_of(records.column("tag")),
        )
        return topic, bundle, batch, records

    async def _decode(self, data: memoryview, walked: BatchInfo) -> pa.RecordBatch:
        """Decode a batch. Raises CorruptFrame."""
        if walked.codec == "none" or walked.decoded_bytes <= INLINE_BYTES_MAX:
            return decode_batch(data, walked=walked)
        return await self._run_blocking(partial(decode_batch, data, walked=walked))


def received_batches(frame: Frame[Any]) -> list[Received]:
    """Return the batches of a frame. Raises CorruptFrame if its parts do not fit together."""
    headers = produced(frame.header)
    pieces = split_payload(headers, frame)
    if frame.records and len(frame.records) != len(headers):
        raise CorruptFrame(f"a frame of {len(headers)} batches, and the records of {len(frame.records)}")
    received = [Received(header, data) for header, data in zip(headers, pieces, strict=True)]
    for at, records in enumerate(frame.records):
        received[at].records = records
    if isinstance(frame.header, pb.StageHeader):
        for at, batch in enumerate(frame.header.batches):
            received[at].sequence = batch.sequence
    return received


def produced(header: pb.ProduceHeader | pb.StageHeader) -> Sequence[pb.ProduceBatch]:
    """Return what a frame says of each batch, staged or not."""
    return [each.batch for each in header.batches] if isinstance(header, pb.StageHeader) else header.batches


def split_payload(headers: Sequence[pb.ProduceBatch], frame: Frame[H]) -> list[memoryview]:
    """Return each batch's part of the frame's payload. Raises CorruptFrame."""
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
        return [memoryview(piece) for piece in frame.payload]
    payload = memoryview(frame.payload[0] if len(frame.payload) == 1 else b"".join(frame.payload))
    found, at = [], 0
    for header in headers:
        found.append(payload[at : at + header.length])
        at += header.length
    return found


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
