"""Write the log of one coordinator: its records on their way into its partition of
`__consumer_offsets`.

Decisions of one turn of the event loop share a batch, so that a thousand commits that come together
cost one; the records of one decision are always in one batch, in order, hence durable together or
not at all. These batches share segments with users' data. The state in memory is already ahead of
the store, so an append is never abandoned. If the broker has no room, the append waits, and
`check_room` refuses new decisions meanwhile. If the append fails, the coordinator ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
from crc32c import crc32c

from ledger.log.segment import Batch
from ledgermq.errors import LedgerMQError, NotOwner, ResourceExhausted
from ledgermq.protocol.records import SCHEMA, encode_batch
from ledgermq.sources import Sources
from offsets.records import LogRecord
from stateless_broker.bundle.owner import BundleOwner
from stateless_broker.logs import get_logger

BATCH_BYTES = 1024 * 1024
"""A batch takes no further decision above this size; a single decision may be larger."""
COMPRESSED_BYTES_MIN = 16 * 1024
ROOM_RETRY_S_MAX = 1.0

log = get_logger(__name__)


class AppendLog:
    """`on_failed` is called once, when an append has failed: nothing more becomes durable here."""

    def __init__(
        self,
        owner: BundleOwner,
        topic_id: int,
        partition: int,
        sources: Sources,
        on_failed: Callable[[LedgerMQError], None],
    ) -> None:
        self._owner = owner
        self._topic_id = topic_id
        self._partition = partition
        self._sources = sources
        self._on_failed = on_failed
        self._queue: list[Sequence[LogRecord]] = []
        self._queued: asyncio.Future[None] | None = None
        self._newest: asyncio.Future[None] | None = None
        self._under_way: asyncio.Future[int] | None = None
        """The last batch that was handed to the owner."""
        self._blocked: ResourceExhausted | None = None
        self._failed: LedgerMQError | None = None

    @property
    def has_room(self) -> bool:
        return self._blocked is None

    def check_room(self) -> None:
        """Raise ResourceExhausted while decisions wait for which the broker has no room."""
        if self._blocked is not None:
            raise self._blocked

    def append(self, records: Sequence[LogRecord]) -> None:
        """Append the records of one decision. Never waits and never raises: `durable` reports the
        outcome.
        """
        if not records or self._failed is not None:
            return
        self._queue.append(records)
        if self._queued is None:
            loop = asyncio.get_running_loop()
            self._queued = self._newest = loop.create_future()
            self._queued.add_done_callback(_look_at)
            loop.call_soon(self._flush)

    async def durable(self) -> None:
        """Return when everything that was appended before this call is durable.

        Raises the error that prevented it.
        """
        if self._failed is not None:
            raise self._failed
        if self._newest is not None and not self._newest.done():
            await asyncio.shield(self._newest)

    async def settled(self) -> None:
        """Return when nothing of this log is under way, whatever the outcome."""
        if self._newest is not None:
            await asyncio.wait([self._newest])

    def _flush(self) -> None:
        done, self._queued = self._queued, None
        queue, self._queue = self._queue, []
        assert done is not None
        if self._failed is not None:  # records behind a gap would give a state that never existed
            return
        if (
            self._under_way is not None and (refused := _error_of(self._under_way)) is not None
        ):  # in this turn, so no caller has an answer yet
            self._fail(done, refused)
            return
        try:
            under_way = self._owner.produce([self._batch(records) for records in packed(queue)], durable=True)
        except ResourceExhausted as full:
            self._blocked, self._queue, self._queued = full, queue, done
            wait_s = min(ROOM_RETRY_S_MAX, (full.retry_after_ms or 0) / 1000 or ROOM_RETRY_S_MAX)
            asyncio.get_running_loop().call_later(wait_s, self._flush)
            return
        except Exception as error:  # also a bug: the state is ahead of the log permanently
            self._fail(done, error)
            return
        self._blocked = None
        self._under_way = under_way[-1]  # batches of one partition become durable in order
        self._under_way.add_done_callback(lambda last: self._finish(done, last))

    def _finish(self, done: asyncio.Future[None], last: asyncio.Future[int]) -> None:
        error = _error_of(last)
        if error is not None:
            self._fail(done, error)
        elif not done.done():
            done.set_result(None)

    def _fail(self, done: asyncio.Future[None], error: BaseException) -> None:
        if not isinstance(error, LedgerMQError) or not error.retriable:
            log.error(
                "append of a coordinator failed",
                bundle=self._owner.bundle,
                partition=self._partition,
                error=repr(error),
            )
            error = NotOwner(f"the coordinator of partition {self._partition} could not write its log: {error!r}")
        is_first, self._failed = self._failed is None, self._failed or error
        for waiting in (done, self._queued):
            if waiting is not None and not waiting.done():
                waiting.set_exception(error)
        if is_first:
            self._on_failed(error)

    def _batch(self, records: Sequence[LogRecord]) -> Batch:
        now_us, rows = self._sources.now_us(), len(records)
        keys, values = [record.key for record in records], [record.value for record in records]
        columns = [keys, values, [None] * rows, [now_us] * rows, [1] * rows, [None] * rows]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
        size_bytes = sum(len(key) for key in keys) + sum(len(value or b"") for value in values)
        data = encode_batch(
            pa.RecordBatch.from_arrays(arrays, schema=SCHEMA), "lz4" if size_bytes >= COMPRESSED_BYTES_MIN else "none"
        )
        return Batch(self._topic_id, self._partition, rows, crc32c(data), now_us, now_us, data)


def packed(decisions: Sequence[Sequence[LogRecord]]) -> Iterator[list[LogRecord]]:
    """Pack whole decisions into batches of about `BATCH_BYTES`, in order."""
    batch: list[LogRecord] = []
    size_bytes = 0
    for records in decisions:
        length = sum(len(record.key) + len(record.value or b"") for record in records)
        if batch and size_bytes + length > BATCH_BYTES:
            yield batch
            batch, size_bytes = [], 0
        batch += records
        size_bytes += length
    if batch:
        yield batch


def _error_of(append: asyncio.Future[int]) -> BaseException | None:
    """Return the error of a done future; None also while it is under way."""
    if append.cancelled():
        return asyncio.CancelledError()
    return append.exception() if append.done() else None


def _look_at(done: asyncio.Future[None]) -> None:
    """Retrieve the error of a future that no caller may wait for, so that asyncio does not log it."""
    if not done.cancelled():
        done.exception()
