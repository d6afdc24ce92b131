"""Turn batches and answers of `BrokerApi` into those of the Kafka protocol, and back.

    Kafka                              here
    records of one partition           one ProduceBatch, one run of offsets
    PartitionProduceResponse           ProduceResult
    PartitionData                      FetchedPartition and the bytes of its batches

Pure: it takes values and returns values. Large batches take milliseconds of the processor, so callers pass them
to a thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from ledgermq.buffers import KIB, Buffer
from ledgermq.errors import DataDamaged, DuplicateMessage, LedgerMQError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.batches.batch_header import check_crc
from ledgermq.protocol.batches.records import SCHEMA_VERSION, decode_batch, encode_batch, timestamps_of
from ledgermq.protocol.limits import FRAME_PAYLOAD_BYTES_MAX
from ledgermq.protocol.status import error_from_proto
from ledgermq_broker.kafka.wire.batches.decoding import ProducedBatch
from ledgermq_broker.kafka.wire.batches.encoding import BATCH_BYTES_MAX, empty_batch, encode_records
from ledgermq_broker.kafka.wire.batches.refusals import BatchTooLarge, RecordsRefused
from ledgermq_broker.kafka.wire.errors import Area, code_of
from ledgermq_broker.kafka.wire.generated.fetch_response import PartitionData
from ledgermq_broker.kafka.wire.generated.produce_response import BatchIndexAndErrorMessage, PartitionProduceResponse

_NONE = -1
_MEMORY_FACTOR = 5
_BATCH_BYTES_LEAST = 16 * KIB
"""Smallest size at which batches are cut, however little a client asks for: each has 61 bytes besides its records."""


def memory_bytes(request_bytes: int) -> int:
    """Return how much memory a Produce request takes while its batches are decoded, one after the other."""
    return _MEMORY_FACTOR * request_bytes


def produce_batch(
    topic: str, topic_id: int, partition: int, batch: ProducedBatch, producer: pb.ProducerSession | None
) -> tuple[pb.ProduceBatch, bytes]:
    """Return the entry of a produce frame, and its payload. The same batch always gives the same bytes, by which the
    broker knows a repeated one.

    `topic_id`: 0 = the topic that has the name now. Raises BatchTooLarge.
    """
    data = encode_batch(batch.records, batch.compression)
    if len(data) > FRAME_PAYLOAD_BYTES_MAX:
        raise BatchTooLarge(
            f"a batch of {batch.records.num_rows} records takes {len(data)} bytes when it is stored, at most"
            f" {FRAME_PAYLOAD_BYTES_MAX} are allowed; send smaller batches"
        )
    first_us, last_us = timestamps_of(batch.records) or (0, 0)
    header = pb.ProduceBatch(
        topic=topic,
        topic_id=topic_id,
        partition=partition,
        length=len(data),
        crc=crc32c(data),
        record_count=batch.records.num_rows,
        timestamp_min_us=first_us,
        timestamp_max_us=last_us,
        schema=SCHEMA_VERSION,
        producer=producer,
    )
    return header, data


def check_keys(records: pa.RecordBatch) -> None:
    """Check a batch for a keyed topic. Raises RecordsRefused, naming the records without a key: only a Kafka client
    that gets their numbers can send the others again.
    """
    keys = records.column("key")
    if keys.null_count:
        rows = pc.indices_nonzero(keys.is_null()).to_pylist()
        raise RecordsRefused("records of this topic need a key (cleanup.policy=compact)", tuple(rows))


def produced(result: pb.ProduceResult, partition: int, record_count: int) -> PartitionProduceResponse:
    """Return the answer for one batch of `record_count` records."""
    if not result.HasField("error"):
        return PartitionProduceResponse(
            index=partition,
            base_offset=result.base_offset,
            log_append_time_ms=result.append_us // 1000 if result.append_us else _NONE,
        )
    error = error_from_proto(result.error)
    if not isinstance(error, DuplicateMessage):
        return refused(error, partition)
    if len(result.duplicates) == record_count:  # all is stored, so the first row has an original
        return PartitionProduceResponse(index=partition, base_offset=result.duplicates[0].offset)
    return refused(error, partition, [(duplicate.row, _duplicate(duplicate)) for duplicate in result.duplicates])


def refused(
    error: LedgerMQError, partition: int, rows: Sequence[tuple[int, str]] | None = None
) -> PartitionProduceResponse:
    """Return the answer for a batch that was not stored. `rows`: wrong records of the batch, with what is wrong."""
    if rows is None:
        rows = [(row, error.message) for row in error.rows] if isinstance(error, RecordsRefused) else []
    return PartitionProduceResponse(
        index=partition,
        error_code=code_of(error, Area.PRODUCE),
        base_offset=_NONE,
        error_message=error.message,
        record_errors=[BatchIndexAndErrorMessage(row, text) for row, text in rows],
    )


def _duplicate(duplicate: pb.DuplicateRecord) -> str:
    if duplicate.WhichOneof("original") == "offset":
        return f"a record with this id is stored at offset {duplicate.offset} (dedup.window.ms)"
    return f"record {duplicate.same_as} of the batch has the same id (dedup.window.ms)"


def fetched(
    part: pb.FetchedPartition, payload: Sequence[Buffer], *, fetch_offset: int, bytes_max: int, first: bool
) -> PartitionData:
    """Return what a client gets of one partition.

    `payload`: the bytes of each batch. `fetch_offset`: records below it are left out. `bytes_max`: bound of the
    encoded records. `first`: a batch that is larger by itself is sent nevertheless, because an answer without any
    record would leave the client where it is; of one answer, that is allowed for one partition.
    """
    if part.HasField("error"):
        return not_fetched(error_from_proto(part.error), part.partition)
    pieces: list[Buffer] = []
    size = 0
    try:
        for batch in _batches(part, payload, fetch_offset, bytes_max):
            if size + len(batch) > bytes_max and not (first and not pieces):
                break
            pieces.append(batch)
            size += len(batch)
    except DataDamaged as error:
        if not pieces:  # otherwise the client gets what is good, and the error when it comes again
            return not_fetched(error, part.partition)
    return PartitionData(
        partition_index=part.partition,
        high_watermark=part.high_watermark,
        last_stable_offset=part.high_watermark,
        log_start_offset=part.log_start,
        records=pieces,
    )


def not_fetched(error: LedgerMQError, partition: int) -> PartitionData:
    """Return the answer for a partition that cannot be read. `last_stable_offset` and `log_start_offset` are -1."""
    return PartitionData(
        partition_index=partition, error_code=code_of(error, Area.FETCH), high_watermark=_NONE, records=b""
    )


def _batches(
    part: pb.FetchedPartition, payload: Sequence[Buffer], fetch_offset: int, bytes_max: int
) -> Iterator[bytes]:
    """Yield batches that fit into the bound: a partition has a turn although another one came first."""
    empty = True
    size_max = min(BATCH_BYTES_MAX, max(_BATCH_BYTES_LEAST, bytes_max))
    runs = _runs(part, payload, fetch_offset)
    for batch in encode_records(runs, batch_bytes_max=size_max, covered_to=part.next_offset):
        empty = False
        yield batch
    if empty and part.next_offset > fetch_offset:
        yield empty_batch(fetch_offset, part.next_offset)


def _runs(
    part: pb.FetchedPartition, payload: Sequence[Buffer], fetch_offset: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    for batch, data in zip(part.batches, payload, strict=True):
        below = max(0, fetch_offset - batch.base_offset)
        if below < batch.record_count:
            yield batch.base_offset + below, decoded(part, batch, data).slice(below)


def decoded(part: pb.FetchedPartition | pb.LeasedPartition, batch: pb.FetchedBatch, data: Buffer) -> pa.RecordBatch:
    try:
        check_crc(data, batch.crc)
        records = decode_batch(data)
        if records.num_rows != batch.record_count:
            raise DataDamaged(f"it has {records.num_rows} records, its header says {batch.record_count}")
    except LedgerMQError as error:
        raise DataDamaged(
            f"the batch at offset {batch.base_offset} of {part.topic}/{part.partition} cannot be read: {error.message}"
        ) from error
    return records
