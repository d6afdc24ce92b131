"""A batch on its way to one partition: rows while it is open, one Arrow IPC message from its first
attempt on.

The message is made once; a retry sends the same bytes with the same sequence, which is what makes
it recognizable (design P1).

Plain values, with no key, headers or tag, are kept as two columns from the beginning, which costs a
third of what rows cost; the first other record makes rows of them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING

import pyarrow as pa
from crc32c import crc32c

from ledgermq.client.producing.compressor import Compressor
from ledgermq.client.producing.delivery import Delivery, Outcome, SendResult
from ledgermq.client.record import ROW_OVERHEAD_BYTES, Row, rows_to_arrow, values_to_arrow
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.records import SCHEMA_VERSION, timestamps_of

if TYPE_CHECKING:
    from ledgermq.client.producing.given_sessions import EncodedBatch
    from ledgermq.client.producing.partition_queue import Session

_new = object.__new__


class Batch:
    """`born_s`: loop time of its first record. `plain_bytes_max`: up to this size any plain value
    may be added without a look at anything else; -1: none. `decided_sequence`: where somebody
    decided it before this producer was; under no other it may be sent."""

    __slots__ = (
        "_arrow",
        "_compressor",
        "_held_bytes",
        "_plain_timestamps",
        "_plain_values",
        "_rows",
        "_timestamps",
        "base_offset",
        "born_s",
        "crc",
        "data",
        "data_bytes",
        "decided_sequence",
        "in_doubt",
        "outcome",
        "partition",
        "plain_bytes_max",
        "record_count",
        "sequence",
        "timestamp_max_us",
        "timestamp_min_us",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        topic: str,
        topic_id: int,
        partition: int,
        born_s: float,
        compressor: Compressor,
        plain_bytes_max: int = -1,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.born_s = born_s
        self._compressor = compressor
        self.outcome = Outcome()
        self.plain_bytes_max = plain_bytes_max
        self.record_count = 0
        self.data_bytes = 0
        self.base_offset = -1
        self.sequence: int | None = None
        self.decided_sequence: int | None = None
        self.in_doubt = False
        self.data: bytes | None = None
        self.crc = self.timestamp_min_us = self.timestamp_max_us = 0
        self._plain_values: list[bytes] = []
        self._plain_timestamps: list[int] = []
        self._rows: list[Row] = []
        self._arrow: pa.RecordBatch | None = None
        self._held_bytes: int | None = None
        self._timestamps: pa.Array | None = None

    @property
    def buffer_bytes(self) -> int:
        """What it takes of the producer's buffer until it is settled."""
        return (
            self.data_bytes + self.record_count * ROW_OVERHEAD_BYTES if self._held_bytes is None else self._held_bytes
        )

    def add(self, row: Row, size: int) -> int:
        """`size`: its `row_bytes`. Returns its place in the batch."""
        if not self._rows:
            key, value, headers, timestamp_us, tag = row
            if value is not None and key is None and headers is None and tag is None:
                return self.add_plain(value, timestamp_us)
            self._make_rows()
        self._rows.append(row)
        self.data_bytes += size
        self.record_count += 1
        return self.record_count - 1

    def _make_rows(self) -> None:
        """Of the plain values: from now on the batch keeps rows."""
        plain = zip(self._plain_values, self._plain_timestamps, strict=True)
        self._rows = [(None, value, None, timestamp_us, None) for value, timestamp_us in plain]
        self._plain_values, self._plain_timestamps = [], []
        self.close()

    def add_plain(self, value: bytes, timestamp_us: int) -> int:
        """A record that is nothing but a value. Returns its place in the batch."""
        return self.deliver_plain(value, len(value), timestamp_us).row

    def deliver_plain(self, value: bytes, size: int, timestamp_us: int) -> Delivery:
        """As `add_plain`, for most records of all: no call that can be done without.

        `size`: its length.
        """
        self._plain_values.append(value)
        self._plain_timestamps.append(timestamp_us)
        self.data_bytes += size
        delivery = _new(Delivery)
        delivery.place = self
        delivery.row = place = self.record_count
        self.record_count = place + 1
        return delivery

    def add_plain_values(self, values: Sequence[bytes], size: int, timestamp_us: int) -> int:
        """As `add_plain`, of many; `size`: of all together. Returns the place of the first."""
        self._plain_values += values
        self._plain_timestamps += repeat(timestamp_us, len(values))
        self.data_bytes += size
        place = self.record_count
        self.record_count = place + len(values)
        return place

    def close(self) -> None:
        """No plain value is added any more without a look."""
        self.plain_bytes_max = -1

    def fill(self, rows: pa.RecordBatch, held_bytes: int) -> None:
        """Instead of rows one by one.

        `rows` has the record schema and at least one row; `held_bytes`: its `buffer_bytes`.
        """
        self._arrow = rows
        self._held_bytes = held_bytes
        self.record_count = rows.num_rows
        self.data_bytes = rows.nbytes

    def drop(self) -> None:
        """It is given up: let go of its records."""
        self.close()
        self.data = self._arrow = None
        self._plain_values, self._plain_timestamps, self._rows = [], [], []

    def take_encoded(self, encoded: EncodedBatch, sequence: int) -> None:
        """Instead of rows: what was encoded before, perhaps by another process, with the sequence
        that was decided for it.
        """
        self.decided_sequence = sequence
        self.data, self.crc, self.record_count = encoded.data, encoded.crc, encoded.record_count
        self.timestamp_min_us, self.timestamp_max_us = encoded.timestamp_min_us, encoded.timestamp_max_us
        self.data_bytes = self._held_bytes = len(encoded.data)

    def encode(self) -> bytes:
        """The Arrow message; made at the first call, when the batch is complete."""
        if self.data is None:
            arrow = self._to_arrow()
            self._timestamps = arrow.column("timestamp")
            low_high = timestamps_of(arrow)
            assert low_high is not None, "every record has a timestamp"
            self.timestamp_min_us, self.timestamp_max_us = low_high
            self.data = self._compressor.encode(arrow)
            self.crc = crc32c(self.data)
            self._plain_values, self._plain_timestamps, self._rows, self._arrow = [], [], [], None
        return self.data

    def _to_arrow(self) -> pa.RecordBatch:
        if self._arrow is not None:
            return self._arrow
        return rows_to_arrow(self._rows) if self._rows else values_to_arrow(self._plain_values, self._plain_timestamps)

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
