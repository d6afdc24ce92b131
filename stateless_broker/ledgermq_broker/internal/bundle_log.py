"""Write the log of one bundle's internal partitions: the records of all their decisions, and the
data that belongs to a decision.

A decision may have records for several partitions, and batches of data; all of it becomes durable
together or not at all. Decisions of one turn of the event loop share batches: a thousand commits
that arrive together cost one batch for each partition. These batches share segments with users'
data.

The state in memory is ahead of the store, so an append is never abandoned. If the broker has no
room, the append waits, and `check_room` refuses new decisions meanwhile. If an append fails, the log
ends, and so does every state that is built on it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
from crc32c import crc32c

from ledgermq.buffers import Buffer
from ledgermq.errors import LedgerMQError, NotOwner, ResourceExhausted
from ledgermq.protocol.batches.records import FEW_ROWS_MAX, SCHEMA, encode_batch, serialized_batch
from ledgermq.runtime.tasks import retrieve_error
from ledgermq.sources import Sources
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.logs import get_logger
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.log_record import LogRecord
from ledgermq_ledger.log.partitions.producers import ProducerSession
from ledgermq_ledger.log.segments.segment import Batch

GROUP_BYTES = 1024 * 1024
"""Size above which no further decision is added to a group; a single decision may be larger."""
COMPRESSED_BYTES_MIN = 16 * 1024
ROOM_RETRY_S_MAX = 1.0

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Entry:
    """What one decision appends: records by partition, and batches of data, unchanged."""

    records: Mapping[PartitionId, Sequence[LogRecord]]
    data: Sequence[Batch] = ()

    @property
    def size_bytes(self) -> int:
        return self.data_bytes + sum(
            len(record.key) + len(record.value or b"") for records in self.records.values() for record in records
        )

    @property
    def data_bytes(self) -> int:
        return sum(len(batch.data) for batch in self.data)


class BundleLog:
    """The log of one bundle for one term. `on_failed` is called once, when an append has failed: then
    nothing more becomes durable here, and `failed` is the error.
    """

    def __init__(self, owner: BundleOwner, sources: Sources, on_failed: Callable[[LedgerMQError], None]) -> None:
        self.failed: LedgerMQError | None = None
        self._owner = owner
        self._sources = sources
        self._on_failed = on_failed
        self._queue: list[Entry] = []
        self._queued_data_bytes = 0
        self._queued: asyncio.Future[None] | None = None
        self._timer: asyncio.Handle | None = None
        """Timer of the next flush, which is due at `_due_s`."""
        self._due_s = 0.0
        self._newest: asyncio.Future[None] | None = None
        self._last: asyncio.Future[int] | None = None
        """The last batch that was handed to the owner."""
        self._under_way: set[asyncio.Future[int]] = set()
        """The last batch of each group that was handed to the owner and has no outcome yet."""
        self._blocked: ResourceExhausted | None = None

    def has_data_of(self, place: PartitionId) -> bool:
        """Return whether data of a partition is queued here."""
        return any((batch.topic_id, batch.partition) == place for entry in self._queue for batch in entry.data)

    @property
    def is_durable(self) -> bool:
        """Return whether everything that was appended is durable, or has failed."""
        return self._newest is None or self._newest.done()

    @property
    def has_room(self) -> bool:
        return self._blocked is None

    def check_room(self, size_bytes: int = 0) -> None:
        """Raise ResourceExhausted while earlier decisions wait for room in the broker.

        With `size_bytes`, also raise the error that an append of so much data would meet now:
        ResourceExhausted, NotOwner, or the error of a store that takes no records. Call this before
        the state changes.
        """
        if self.failed is not None:
            raise self.failed
        if self._blocked is not None:
            raise self._blocked
        if size_bytes:
            self._owner.check_room(self._queued_data_bytes + size_bytes)

    def append(
        self, records: Mapping[PartitionId, Sequence[LogRecord]], data: Sequence[Batch] = (), *, within_s: float = 0.0
    ) -> None:
        """Append what one decision writes. It becomes durable in one piece, after all earlier appends.
        This call never waits and never raises: `durable` reports the outcome.

        The batches of `data` carry no producer sequence. The append may wait up to `within_s` for
        others to share its segment; a call of `durable` or `settled` ends that wait.
        """
        if not (data or any(records.values())) or self.failed is not None:
            return
        entry = Entry(records, data)
        self._queue.append(entry)
        self._queued_data_bytes += entry.data_bytes
        if self._queued is None:
            self._queued = self._newest = asyncio.get_running_loop().create_future()
            self._queued.add_done_callback(retrieve_error)
        self._flush_within(within_s)

    async def durable(self, *, within_s: float = 0.0) -> None:
        """Wait until everything that was appended before this call is durable; it may wait up to
        `within_s` for other appends.

        Raises the error that prevented it.
        """
        if self.failed is not None:
            raise self.failed
        self._flush_within(within_s)
        if self._newest is not None and not self._newest.done():
            await asyncio.shield(self._newest)

    def abandon(self, error: LedgerMQError) -> None:
        """End the log, because a state that builds on it is ahead of it for good. What was appended
        and not handed over yet is dropped, and all states that build on the log are loaded again.
        """
        if self.failed is None:
            self._fail(self._queued, error)

    async def settled(self) -> None:
        """Wait until every append before this call has succeeded or failed."""
        self._flush_within(0.0)
        waiting: set[asyncio.Future[int] | asyncio.Future[None]] = {*self._under_way}
        if self._newest is not None:
            waiting.add(self._newest)
        if waiting:
            await asyncio.wait(waiting)

    def _flush_within(self, wait_s: float) -> None:
        """Flush the queue within this time, unless the broker has no room."""
        if self._queued is None or self._blocked is not None:
            return
        loop = asyncio.get_running_loop()
        due_s = loop.time() + wait_s
        if self._timer is not None:
            if self._due_s <= due_s:
                return
            self._timer.cancel()
        self._due_s = due_s
        self._timer = loop.call_later(wait_s, self._flush) if wait_s else loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._timer = None
        done, self._queued = self._queued, None
        queue, self._queue, self._queued_data_bytes = self._queue, [], 0
        assert done is not None
        if self.failed is not None:  # records behind a gap would give a state that never existed
            return
        if self._last is not None and (refused := _error_of(self._last)) is not None:
            self._fail(done, refused)  # it failed in this turn, so no caller has an answer yet
            return
        groups: deque[list[Entry]] = deque()
        try:
            groups.extend(packed(queue))
            while groups:
                self._hand_over(groups[0], done, is_last=len(groups) == 1)
                groups.popleft()
        except ResourceExhausted as full:
            self._wait_for_room(full, [entry for group in groups for entry in group], done)
        except Exception as error:  # also a bug: the state is ahead of the log permanently
            self._fail(done, error)
        else:
            self._blocked = None

    def _hand_over(self, group: Sequence[Entry], done: asyncio.Future[None], *, is_last: bool) -> None:
        """Hand one group to the owner. `done` is set when the last group of a turn is durable, because
        groups become durable in order.
        """
        last = self._owner.produce(list(self._batches(group)), durable=True, together=True)[-1]
        self._last = last
        self._under_way.add(last)
        last.add_done_callback(self._under_way.discard)
        last.add_done_callback(lambda last: self._finish(done, last, is_last=is_last))

    def _wait_for_room(self, full: ResourceExhausted, entries: list[Entry], done: asyncio.Future[None]) -> None:
        self._blocked, self._queue, self._queued = full, entries, done
        self._queued_data_bytes = sum(entry.data_bytes for entry in entries)
        wait_s = min(ROOM_RETRY_S_MAX, (full.retry_after_ms or 0) / 1000 or ROOM_RETRY_S_MAX)
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._flush)

    def _finish(self, done: asyncio.Future[None], last: asyncio.Future[int], *, is_last: bool) -> None:
        error = _error_of(last)
        if error is not None:
            self._fail(done, error)
        elif is_last and not done.done():
            done.set_result(None)

    def _fail(self, done: asyncio.Future[None] | None, error: BaseException) -> None:
        if not isinstance(error, LedgerMQError) or not error.retriable:
            log.error("append of internal records failed", bundle=self._owner.bundle, error=repr(error))
            error = NotOwner(f"internal records of bundle {self._owner.bundle} could not be written: {error!r}")
        is_first, self.failed = self.failed is None, self.failed or error
        for waiting in (done, self._queued):
            if waiting is not None and not waiting.done():
                waiting.set_exception(error)
        if is_first:
            self._on_failed(error)

    def _batches(self, group: Sequence[Entry]) -> Iterator[Batch]:
        records: dict[PartitionId, list[LogRecord]] = {}
        for entry in group:
            for place, more in entry.records.items():
                records.setdefault(place, []).extend(more)
        for place, found in records.items():
            if found:
                yield batch_of(place, found, self._sources.now_us())
        for entry in group:
            yield from entry.data


def batch_of(
    place: PartitionId,
    records: Sequence[LogRecord],
    now_us: int,
    producer: ProducerSession | None = None,
    *,
    compresses: bool = True,
) -> Batch:
    """Return one batch with these records, compressed if it is large. `compresses` False: never."""
    rows = len(records)
    keys, values = [record.key for record in records], [record.value for record in records]
    headers, types, tags = _same_columns(rows) if rows <= FEW_ROWS_MAX else _own_columns(rows)
    timestamps = pa.array([now_us] * rows, pa.int64()).view(SCHEMA.field("timestamp").type)
    columns = [pa.array(keys, pa.binary()), _column_of(values), headers, timestamps, types, tags]
    is_large = sum(len(key) for key in keys) + sum(len(value or b"") for value in values) >= COMPRESSED_BYTES_MIN
    arrow = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    data = encode_batch(arrow, "lz4") if compresses and is_large else serialized_batch(arrow)
    return Batch(place.topic_id, place.partition, rows, crc32c(data), now_us, now_us, data, producer)


def _column_of(values: Sequence[Buffer | None]) -> pa.Array:
    """Return a column of bytes: a view of the value if there is only one, which may have a megabyte."""
    if len(values) > 1 or values[0] is None:
        return pa.array(values, pa.binary())
    offsets = pa.array([0, len(values[0])], pa.int32()).buffers()[1]
    return pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(values[0])])


def _own_columns(rows: int) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Return headers, types of timestamps and tags, which are the same for all records."""
    headers, tags = (pa.nulls(rows, SCHEMA.field(name).type) for name in ("headers", "tag"))
    return headers, pa.repeat(pa.scalar(1, pa.int32()), rows), tags


_same_columns = lru_cache(FEW_ROWS_MAX)(_own_columns)
"""Made once: most decisions have one or two records, and these columns took half of their time."""


def packed(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Pack whole decisions into groups of about `GROUP_BYTES`, in order."""
    group: list[Entry] = []
    size_bytes = 0
    for entry in entries:
        length = entry.size_bytes
        if group and size_bytes + length > GROUP_BYTES:
            yield group
            group, size_bytes = [], 0
        group.append(entry)
        size_bytes += length
    if group:
        yield group


def _error_of(append: asyncio.Future[int]) -> BaseException | None:
    """Return the error of an append; None if it succeeded, or is not done yet."""
    if append.cancelled():
        return asyncio.CancelledError()
    return append.exception() if append.done() else None
