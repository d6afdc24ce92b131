"""Let aiokafka's compiled codec read and write the records of a batch.

It trusts its input: it may read some bytes behind the end, takes every negative length for null, and leaves
offsets to its caller. So its input ends in a margin, and callers have to check what it has read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from aiokafka.record.default_records import DefaultRecord, DefaultRecordBatch, DefaultRecordBatchBuilder

from ledgermq.buffers import Buffer
from ledgermq_broker.kafka.wire.batches.head import HEAD, MAGIC, NONE
from ledgermq_broker.kafka.wire.batches.strict import Pairs

_MARGIN = bytes(64)
"""Behind the records that are read: aiokafka checks that a number begins inside of them, not that it ends there."""
_ANY_SIZE = 2**62


def check_compiled() -> None:
    """Raise RuntimeError unless aiokafka's compiled codec is installed: the other one is twenty times slower, and has
    never been tested here.
    """
    if not DefaultRecordBatch.__module__.startswith("aiokafka.record._crecords"):
        raise RuntimeError(
            "the Kafka listener needs the compiled codec of aiokafka, which is not in this installation: install a"
            " wheel of aiokafka for this platform, and do not set AIOKAFKA_NO_EXTENSIONS"
        )


def unchecked_records(body: Buffer, count: int, base_timestamp_ms: int) -> Iterator[DefaultRecord]:
    """Yield what aiokafka takes for records; at most `count` may be taken. Any exception may come."""
    # One record more is announced, because after the last one aiokafka looks for the end.
    head = HEAD.pack(0, 0, 0, MAGIC, 0, 0, 0, base_timestamp_ms, 0, NONE, NONE, NONE, count + 1)
    return (record for record in DefaultRecordBatch(b"".join((head, body, _MARGIN))))


def encode_rows(
    offset_deltas: Iterable[int],
    timestamp_deltas_ms: Sequence[int],
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    headers: Sequence[Pairs],
) -> bytes:
    """Return the records of a batch, encoded. The first timestamp delta is 0."""
    builder = DefaultRecordBatchBuilder(MAGIC, 0, False, NONE, NONE, NONE, _ANY_SIZE)
    for row in zip(offset_deltas, timestamp_deltas_ms, keys, values, headers, strict=True):
        builder.append(*row)
    return bytes(memoryview(builder.build())[HEAD.size :])
