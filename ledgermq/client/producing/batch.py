"""A batch on its way to one partition: rows while it is open, one Arrow IPC message from its first attempt on.

The message is made once; a retry sends the same bytes with the same sequence, which is what makes it recognizable (DESIGN section 10).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from ledgermq.client.producing.delivery import Outcome, SendResult
from ledgermq.client.record import Row, rows_to_arrow
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.records import SCHEMA_VERSION, Compression, encode_batch

if TYPE_CHECKING:
    from ledgermq.client.producing.partition_queue import Session


class Batch:
    """`buffer_bytes`: what it takes of the producer's buffer until it is settled. `born_s`: loop time of its first record."""

    __slots__ = (
        "_arrow",
        "_timestamps",
        "base_offset",
        "born_s",
        "buffer_bytes",
        "compression",
        "crc",
        "data",
        "data_bytes",
        "in_doubt",
        "outcome",
        "partition",
        "record_count",
        "rows",
        "sequence",
        "timestamp_max_us",
        "timestamp_min_us",
        "topic",
        "topic_id",
    )

    def __init__(self, topic: str, topic_id: int, partition: int, born_s: float, compression: Compression) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.born_s = born_s
        self.compression = compression
        self.outcome = Outcome()
        self.rows: list[Row] = []
        self.record_count = 0
        self.data_bytes = 0
        self.buffer_bytes = 0
        self.base_offset = -1
        self.sequence: int | None = None
        self.in_doubt = False
        self.data: bytes | None = None
        self.crc = self.timestamp_min_us = self.timestamp_max_us = 0
        self._arrow: pa.RecordBatch | None = None
        self._timestamps: pa.Array | None = None

    def fill(self, rows: pa.RecordBatch) -> None:
        """Instead of rows one by one. `rows` has the record schema and at least one row."""
        self._arrow = rows
        self.record_count = rows.num_rows
        self.data_bytes = rows.nbytes

    def encode(self) -> bytes:
        """The Arrow message; made at the first call, when the batch is complete."""
        if self.data is None:
            arrow = self._arrow if self._arrow is not None else rows_to_arrow(self.rows)
            self.record_count = arrow.num_rows
            self._timestamps = arrow.column("timestamp")
            low_high = pc.min_max(self._timestamps.cast(pa.int64())).as_py()
            self.timestamp_min_us, self.timestamp_max_us = low_high["min"], low_high["max"]
            self.data = encode_batch(arrow, self.compression)
            self.crc = crc32c(self.data)
            self.rows, self._arrow = [], None
        return self.data

    def entry(self, session: Session | None) -> pb.ProduceBatch:
        """The header's entry for this batch, which is encoded already."""
        assert self.data is not None, "a batch is encoded before it is announced"
        entry = pb.ProduceBatch(
            topic=self.topic,
            topic_id=self.topic_id,
            partition=self.partition,
            length=len(self.data),
            crc=self.crc,
            record_count=self.record_count,
            timestamp_min_us=self.timestamp_min_us,
            timestamp_max_us=self.timestamp_max_us,
            schema=SCHEMA_VERSION,
        )
        if session is not None:
            assert self.sequence is not None, "a batch of a session has a sequence"
            entry.producer.id = session.id
            entry.producer.epoch = session.epoch
            entry.producer.sequence = self.sequence
            entry.producer.opened_slot = session.opened_slot
        return entry

    def stored(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.data = None
        self.outcome.settle()

    def result(self, row: int) -> SendResult:
        assert self._timestamps is not None, "a batch with a result was encoded"
        offset = self.base_offset + row if self.base_offset >= 0 else -1
        return SendResult(self.topic, self.partition, offset, self._timestamps[row].value)
