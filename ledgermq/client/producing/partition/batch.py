"""A batch on its way to one partition: rows while it is open, one Arrow IPC message from its first
attempt on.

The message is made once. A retry sends the same bytes with the same sequence, so that brokers
recognize it (design P1).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat

import pyarrow as pa
from crc32c import crc32c

from ledgermq.client.messages.columns import RecordColumns
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.messages.due import AfterDelay
from ledgermq.client.messages.handles import handle_of
from ledgermq.client.messages.record import ROW_OVERHEAD_BYTES, Row
from ledgermq.client.producing.delivery import (
    BatchResult,
    Delivery,
    Duplicate,
    Outcome,
    SendResult,
    Spilled,
    SpilledBatch,
)
from ledgermq.client.producing.partition.compressor import Compressor
from ledgermq.client.producing.partition.sessions import EncodedBatch, Session
from ledgermq.client.producing.runs import DuplicateOf, Run
from ledgermq.errors import LedgerMQError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.batches.records import (
    CONDITIONAL_SCHEMA_VERSION,
    SCHEMA_VERSION,
    decode_batch,
    timestamps_of,
)

_new = object.__new__

SHARED_OF_TIME = 0.1
"""Records with a separate timeout travel together if none fails earlier by more than this part of its time."""
LINGERED_OF_TIME = 0.5
"""A batch whose records have a timeout is sent after this part of it at the latest, whatever the linger is."""


class Batch:
    """`born_s`: loop time of its first record. `plain_bytes_max`: up to this size any plain value
    may be added without another check; -1: none. `row_bytes_max`: likewise for rows that have been checked, and
    have the present time and no id. `decided_sequence`: the only sequence under which
    it may be sent, if one was decided before this producer was made. `in_file`: its id in the producer's
    spill, if it was loaded from there. `is_spilled`: its outcome is that it was written there.
    `quiet`: see `Place`. `intake_offset`: where it waits until its records are due; None: they are not delayed.
    `has_ids`: its records have ids, and its topic recognizes duplicates by them; such a batch has no other records.
    `deadline_s`: loop time at which its records fail; None: they have the producer's delivery timeout. `is_overdue`:
    they have failed so, and its queue keeps the batch, because it was sent.
    `is_alone`: brokers may refuse a key or a timestamp of it, so no rows of other calls join it.
    `append_us`: the timestamp that the broker gave its records; 0: they have their own. `expect_end`: where its
    partition has to end for it to be stored; such a batch has one record.
    """

    __slots__ = (
        "_arrow",
        "_columns",
        "_compressor",
        "_held_bytes",
        "_left",
        "_originals",
        "_timestamps",
        "append_us",
        "at",
        "base_offset",
        "born_s",
        "crc",
        "data",
        "data_bytes",
        "deadline_s",
        "decided_sequence",
        "expect_end",
        "has_ids",
        "in_doubt",
        "in_file",
        "intake_offset",
        "is_alone",
        "is_overdue",
        "is_spilled",
        "outcome",
        "plain_bytes_max",
        "quiet",
        "record_count",
        "row_bytes_max",
        "sequence",
        "timestamp_max_us",
        "timestamp_min_us",
        "topic_id",
    )

    def __init__(
        self,
        at: TopicPartition,
        topic_id: int,
        born_s: float,
        compressor: Compressor,
        plain_bytes_max: int = -1,
        row_bytes_max: int = -1,
        *,
        quiet: bool = False,
        has_ids: bool = False,
    ) -> None:
        self.at = at
        self.has_ids = has_ids
        self.topic_id = topic_id
        self.born_s = born_s
        self._compressor = compressor
        self.outcome = Outcome()
        self.plain_bytes_max = plain_bytes_max
        self.row_bytes_max = row_bytes_max
        self.quiet = quiet
        self.record_count = 0
        self.data_bytes = 0
        self.base_offset: int | None = -1
        self.sequence: int | None = None
        self.decided_sequence: int | None = None
        self.expect_end: int | None = None
        self.deadline_s: float | None = None
        self.is_alone = self.is_overdue = False
        self.in_doubt = False
        self.in_file: int | None = None
        self.is_spilled = False
        self.intake_offset: int | None = None
        self.append_us = 0
        self.data: bytes | None = None
        self.crc = self.timestamp_min_us = self.timestamp_max_us = 0
        self._columns = RecordColumns()
        self._arrow: list[pa.RecordBatch] = []
        self._held_bytes: int | None = None
        self._timestamps: pa.Array | None = None
        self._left: Sequence[int] | None = None
        """The rows that are not duplicates; None: no duplicates were found."""
        self._originals: dict[int, DuplicateOf] = {}

    @property
    def buffer_bytes(self) -> int:
        """Return the bytes that it occupies in the producer's buffer until it is settled."""
        held_bytes = self._held_bytes
        return self.data_bytes + self.record_count * ROW_OVERHEAD_BYTES if held_bytes is None else held_bytes

    @property
    def is_done(self) -> bool:
        """Return whether no queue has it any longer: its outcome is known, and no answer is awaited."""
        return self.outcome.settled and not self.is_overdue

    def end_by(self, deadline_s: float) -> None:
        """Give its records a separate deadline. It takes no values that are not checked one by one."""
        self.deadline_s = deadline_s
        self.close()

    def shares(self, deadline_s: float | None, now_s: float) -> bool:
        """Return whether a record with this deadline may travel in it: none fails much before its time, or after."""
        if self.deadline_s is None or deadline_s is None:
            return self.deadline_s is deadline_s
        return 0 <= deadline_s - self.deadline_s <= SHARED_OF_TIME * (deadline_s - now_s)

    def ripe_s(self, linger_s: float) -> float:
        """Return when it is closed at the latest, if records wait so long for others."""
        lingers_s = linger_s if self.deadline_s is None else LINGERED_OF_TIME * (self.deadline_s - self.born_s)
        return self.born_s + min(linger_s, lingers_s)

    def settle(self, error: LedgerMQError | None = None) -> None:
        """Settle its outcome, unless its records have failed before, at their own time."""
        if self.is_overdue:
            self.is_overdue = False
        else:
            self.outcome.settle(error)

    @property
    def sent_count(self) -> int:
        """Return the number of records that are sent, without duplicates."""
        return self.record_count if self._left is None else len(self._left)

    def leave_out(self, duplicates: Mapping[int, DuplicateOf]) -> None:
        """Leave out records whose ids are stored already; the rows are those of the message that was sent. If
        records are left, the message is made again.
        """
        assert self.data is not None, "only a message that was sent has duplicates"
        before = range(self.record_count) if self._left is None else self._left
        for row, original in duplicates.items():
            found = DuplicateOf(original.offset, None if original.row is None else before[original.row])
            self._originals[before[row]] = found
        kept = [row for row in range(len(before)) if row not in duplicates]
        self._left = [before[row] for row in kept]
        if kept:
            arrow = decode_batch(self.data).take(pa.array(kept, pa.int64()))
            self.timestamp_min_us, self.timestamp_max_us = timestamps_of(arrow) or (0, 0)
            self.data = self._compressor.encode(arrow)
            self.crc = crc32c(self.data)

    def add(self, row: Row, size: int) -> int:
        """Add a row. `size`: its `row_bytes`. Return its place in the batch."""
        self.join(row, size)
        if self.row_bytes_max < 0:
            key, value, headers, _, tag = row
            if value is None or key is not None or headers is not None or tag is not None:
                self.close()
        return self.record_count - 1

    def join(self, row: Row, size: int) -> None:
        """Add a row that needs no further check."""
        self._columns.add(*row)
        self.data_bytes += size
        self.record_count += 1

    def last(self) -> Delivery:
        """Return the delivery of the record that has joined last."""
        delivery = _new(Delivery)
        delivery.place = self
        delivery.row = self.record_count - 1
        return delivery

    def deliver_plain(self, value: bytes, size: int, timestamp_us: int) -> Delivery:
        """Add a record that has only a value. Most records take this path, so it avoids every call that
        it can.

        `size`: its length.
        """
        columns = self._columns
        columns.values.append(value)
        columns.timestamps_us.append(timestamp_us)
        self.data_bytes += size
        delivery = _new(Delivery)
        delivery.place = self
        delivery.row = place = self.record_count
        self.record_count = place + 1
        return delivery

    def add_plain_values(self, values: Sequence[bytes], size: int, timestamp_us: int) -> int:
        """Add several records like `deliver_plain`; `size`: their total. Return the place of the
        first.
        """
        self._columns.values += values
        self._columns.timestamps_us += repeat(timestamp_us, len(values))
        self.data_bytes += size
        place = self.record_count
        self.record_count = place + len(values)
        return place

    def close(self) -> None:
        """From now on, check each record before it is added."""
        self.plain_bytes_max = self.row_bytes_max = -1

    def headers_with(self, name: str) -> Iterator[Sequence[tuple[str, bytes | None]]]:
        """Yield the headers of each record that has a header of this name; none once its message is made."""
        return self._columns.headers_with(name)

    def add_arrow(self, rows: pa.RecordBatch, held_bytes: int) -> Run:
        """Add many rows at once to a batch that has only such rows, and return them.

        `rows` has the record schema and at least one row; `held_bytes`: what it occupies in the buffer.
        """
        added = Run(self, self.record_count, rows.num_rows)
        self._arrow.append(rows)
        self._held_bytes = (self._held_bytes or 0) + held_bytes
        self.record_count += rows.num_rows
        self.data_bytes += rows.nbytes
        return added

    @property
    def takes_arrow(self) -> bool:
        """Return whether more rows can be added by `add_arrow`: it has such rows, and its message is not made."""
        return bool(self._arrow) and self.data is None

    def drop(self) -> None:
        """Drop its records, because it failed."""
        self.close()
        self.data = None
        self._columns, self._arrow = RecordColumns(), []

    def take_encoded(self, encoded: EncodedBatch, sequence: int) -> None:
        """Set a message that was encoded before, perhaps by another process, with the sequence
        that was decided for it.
        """
        self.decided_sequence = sequence
        self._take(encoded)
        self._held_bytes = len(encoded.data)

    def take_spilled(self, encoded: EncodedBatch, in_file: int) -> None:
        """Set a message that was read from the producer's spill. It is not counted in the buffer."""
        self.in_file = in_file
        self._take(encoded)
        self._held_bytes = 0

    def _take(self, encoded: EncodedBatch) -> None:
        self.data, self.crc, self.record_count = encoded.data, encoded.crc, encoded.record_count
        self.timestamp_min_us, self.timestamp_max_us = encoded.timestamp_min_us, encoded.timestamp_max_us
        self.data_bytes = len(encoded.data)

    def encoded(self) -> EncodedBatch:
        """Return its message, with the fields of its header."""
        data = self.encode()
        return EncodedBatch(data, self.crc, self.record_count, self.timestamp_min_us, self.timestamp_max_us)

    def correct_delays(self, correction_us: int) -> None:
        """Add the correction to the due times of records with a delay, once, before the batch is encoded."""
        times_us = self._columns.timestamps_us
        if AfterDelay in set(map(type, times_us)):
            self._columns.timestamps_us = [
                int(at_us) + correction_us if isinstance(at_us, AfterDelay) else at_us for at_us in times_us
            ]

    def encode(self) -> bytes:
        """Return the Arrow message; made at the first call, when the batch is complete."""
        if self.data is None:
            arrow = self._to_arrow()
            self._timestamps = arrow.column("timestamp")
            low_high = timestamps_of(arrow)
            assert low_high is not None, "every record has a timestamp"
            self.timestamp_min_us, self.timestamp_max_us = low_high
            self.data = self._compressor.encode(arrow)
            self.crc = crc32c(self.data)
            self._columns, self._arrow = RecordColumns(), []
        return self.data

    def _to_arrow(self) -> pa.RecordBatch:
        if not self._arrow:
            return self._columns.to_arrow()
        return self._arrow[0] if len(self._arrow) == 1 else pa.concat_batches(self._arrow)

    def entry(self, session: Session | None) -> pb.ProduceBatch:
        """Return the header's entry for this batch, which is encoded already."""
        assert self.data is not None, "a batch is encoded before it is announced"
        entry = pb.ProduceBatch(
            topic=self.at.topic,
            topic_id=self.topic_id,
            partition=self.at.partition,
            length=len(self.data),
            crc=self.crc,
            record_count=self.sent_count,
            timestamp_min_us=self.timestamp_min_us,
            timestamp_max_us=self.timestamp_max_us,
            schema=SCHEMA_VERSION if self.expect_end is None else CONDITIONAL_SCHEMA_VERSION,
            expect_end=self.expect_end,
        )
        if session is not None:
            assert self.sequence is not None, "a batch of a session has a sequence"
            entry.producer.id = session.id
            entry.producer.epoch = session.epoch
            entry.producer.sequence = self.sequence
            entry.producer.opened_slot = session.opened_slot
        return entry

    def stored(self, base_offset: int | None) -> None:
        self.base_offset = base_offset
        self.data = None
        self.settle()

    def spilled(self) -> None:
        """Note that it is written to the producer's spill."""
        self.is_spilled = True
        self.stored(None)

    def result(self, row: int) -> SendResult:
        assert self._timestamps is not None, "a batch with a result was encoded"
        if self.is_spilled:
            return Spilled(*self.at, None, self._timestamps[row].value)
        if self.intake_offset is not None:
            return self._delayed_result(row, self.intake_offset, self._timestamps[row].value)
        if (original := self._originals.get(row)) is not None:
            offset = original.offset if original.row is None else self.result(original.row).offset
            return Duplicate(*self.at, offset, self._timestamps[row].value)
        return SendResult(*self.at, self._offset(row), self.append_us or self._timestamps[row].value)

    def _offset(self, row: int) -> int | None:
        base = self.base_offset
        if base is None or base < 0:
            return base
        return base + (row if self._left is None else bisect_left(self._left, row))

    def _delayed_result(self, row: int, intake_offset: int, due_us: int) -> SendResult:
        message = pb.RecallDelayedRequest(
            topic=self.at.topic,
            topic_id=self.topic_id,
            partition=self.at.partition,
            offset=intake_offset,
            row=row,
            due_us=due_us,
        )
        return SendResult(*self.at, None, due_us, handle_of(message))

    def run_result(self, first: int, count: int) -> BatchResult:
        """Return where `count` rows from `first` on are stored."""
        if self.is_spilled:
            return SpilledBatch(*self.at, None, count)
        if self._left is not None:
            count = bisect_left(self._left, first + count) - bisect_left(self._left, first)
        return BatchResult(*self.at, self._offset(first), count)
