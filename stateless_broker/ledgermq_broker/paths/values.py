"""Make frames of decoded records, for parts of this broker that produce: listeners of other protocols, and copies that
it makes itself.

Such a frame goes the way of all frames: rules, quotas, turns, metrics, `BatchChecks`. What receives it in this
process checks the records and does not decode them again; on a connection it is as any other frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from crc32c import crc32c

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.batches.records import SCHEMA_VERSION, Compression, encode_batch, timestamps_of
from ledgermq.protocol.frames import Frame, ProduceFrame, StageFrame


@dataclass(frozen=True, slots=True)
class Value:
    """Records for one partition, of the record schema. `topic_id` 0: of the topic that has the name now. `producer`:
    its session with the sequence of the first record. `sequence`: of a batch that is staged.
    """

    topic: str
    partition: int
    records: pa.RecordBatch
    topic_id: int = 0
    producer: pb.ProducerSession | None = None
    sequence: int = 0


def produce_frame(
    values: Sequence[Value], now_us: int, *, durable: bool = True, compression: Compression = "none"
) -> ProduceFrame:
    """Return a frame of 1 to 4096 batches. `now_us`: the time of records that have none. Raises InvalidRecord: no
    record, or not the record schema.
    """
    entries, payload = _encoded(values, now_us, compression)
    header = pb.ProduceHeader(acks=pb.DURABLE if durable else pb.RECEIVED, batches=entries)
    return Frame(header, payload, records=[value.records for value in values])


def stage_frame(
    transaction: pb.TransactionRef,
    values: Sequence[Value],
    now_us: int,
    *,
    branch: bytes = b"",
    compression: Compression = "none",
) -> StageFrame:
    """As `produce_frame`, for batches of a transaction."""
    entries, payload = _encoded(values, now_us, compression)
    staged = [pb.StageBatch(batch=entry, sequence=value.sequence) for entry, value in zip(entries, values, strict=True)]
    header = pb.StageHeader(transaction=transaction, branch=branch, batches=staged)
    return Frame(header, payload, records=[value.records for value in values])


def _encoded(
    values: Sequence[Value], now_us: int, compression: Compression
) -> tuple[list[pb.ProduceBatch], list[bytes]]:
    payload = [encode_batch(value.records, compression) for value in values]
    return [_entry(value, data, now_us) for value, data in zip(values, payload, strict=True)], payload


def _entry(value: Value, data: bytes, now_us: int) -> pb.ProduceBatch:
    first_us, last_us = timestamps_of(value.records) or (now_us, now_us)
    return pb.ProduceBatch(
        topic=value.topic,
        topic_id=value.topic_id,
        partition=value.partition,
        length=len(data),
        crc=crc32c(data),
        record_count=value.records.num_rows,
        timestamp_min_us=first_us,
        timestamp_max_us=last_us,
        schema=SCHEMA_VERSION,
        producer=value.producer,
    )
