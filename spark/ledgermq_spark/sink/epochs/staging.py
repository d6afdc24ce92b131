"""Stage rows: put what a task has prepared for topics into the store, where no reader looks for it.

An object of staged rows has the layout of a segment (`ledgermq_ledger.log.segments.segment`): batches as producers
would send them, an index that says for which topic id and partition each is, a trailer. Bundle,
slot and kind are 0: it belongs to no ledger, and no fold would accept it. Invariant: an object is
named by the put id that is drawn for it, put once, and never changed; it counts only if a decision
names it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from crc32c import crc32c

from ledgermq.client.producing.partition.sessions import EncodedBatch
from ledgermq.errors import LedgerMQError, MessageTooLarge, Unavailable
from ledgermq.protocol.batches.records import Compression, encode_batch, timestamps_of
from ledgermq.protocol.limits import FRAME_PAYLOAD_BYTES_MAX
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.segments.segment import encode_segment, first_batch_position
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.settle import PutOutcome, settle_put
from ledgermq_ledger.sinks import staged_index
from ledgermq_spark.sink.rows.rows import Routed

OBJECT_BYTES = 16 * 1024 * 1024
"""A task puts an object once it has this size: a driver holds one such object, and the next, while
it publishes.
"""


@dataclass(frozen=True, slots=True)
class StagedBatch:
    topic_id: int
    partition: int
    batch: EncodedBatch


class StagedWriter:
    """Writer of one task. One put is on its way while the next object is collected.

    `compression`: used unless the topic names one.
    """

    def __init__(self, store: ObjectStore, sources: Sources, write: str, epoch: int, compression: Compression) -> None:
        self._store = store
        self._sources = sources
        self._write = write
        self._epoch = epoch
        self._compression = compression
        self._entries: list[fmt.BatchEntry] = []
        self._data: list[bytes] = []
        self._bytes = 0
        self._putting: asyncio.Task[None] | None = None
        self.objects: list[str] = []
        """Keys, in the order of the rows; all are durable after `finish`."""

    async def add(self, routed: Routed) -> None:
        data = _encoded(routed, routed.topic.compression or self._compression)
        low_high = timestamps_of(routed.rows)
        assert low_high is not None, "conformed rows have timestamps"
        last = self._entries[-1] if self._entries else None
        self._entries.append(
            fmt.BatchEntry(
                topic_id=routed.topic.topic_id,
                partition=routed.partition,
                record_count=routed.rows.num_rows,
                position=last.position + last.length if last else first_batch_position(),
                length=len(data),
                crc=crc32c(data),
                timestamp_min_us=low_high[0],
                timestamp_max_us=low_high[1],
            )
        )
        self._data.append(data)
        self._bytes += len(data)
        if self._bytes >= OBJECT_BYTES:
            await self._put()

    async def _put(self) -> None:
        put_id = self._sources.new_id()
        index = fmt.SegmentIndex(put_id=put_id, created_ms=self._sources.now_ms(), batches=self._entries)
        key = keys.sink_staged_rows(self._write, self._epoch, put_id)
        buffers = encode_segment(index, self._data)
        self._entries, self._data, self._bytes = [], [], 0
        await self._wait()
        self.objects.append(key)
        self._putting = asyncio.create_task(self._settle(key, buffers), name=f"stage {key}")

    async def _settle(self, key: str, buffers: list[bytes | bytearray | memoryview]) -> None:
        if await settle_put(self._store, key, buffers, sources=self._sources, is_data=True) is not PutOutcome.WON:
            raise Unavailable(f"{key}: outcome of the put is unknown; run the task again")

    async def _wait(self) -> None:
        if self._putting is not None:
            await self._putting
            self._putting = None

    async def finish(self) -> None:
        """Wait until everything that was added is durable. Raises Unavailable, the store's errors."""
        if self._entries:
            await self._put()
        await self._wait()

    async def abort(self) -> None:
        """Abort because the task fails: the driver gets no message about these objects, so no
        decision names them.

        Objects that cannot be deleted now are left to garbage collection.
        """
        if self._putting is not None:
            self._putting.cancel()
            await asyncio.gather(self._putting, return_exceptions=True)
        with suppress(LedgerMQError):
            await self._store.delete(self.objects)


def _encoded(routed: Routed, compression: Compression) -> bytes:
    """Encode a batch. Raises MessageTooLarge, because brokers must be able to accept every decided
    epoch.
    """
    data = encode_batch(routed.rows, compression)
    if len(data) > FRAME_PAYLOAD_BYTES_MAX and compression != "none":
        data = encode_batch(routed.rows)  # incompressible data grows a little
    if len(data) > FRAME_PAYLOAD_BYTES_MAX:
        place = f"{routed.topic.name}/{routed.partition}"
        raise MessageTooLarge(
            f"a row for {place} makes a batch of {len(data)} bytes; a request holds {FRAME_PAYLOAD_BYTES_MAX}"
        )
    return data


async def read_staged(store: ObjectStore, key: str) -> list[StagedBatch]:
    """Raises ObjectMissing, DataDamaged, FormatNotSupported, naming the object."""
    return batches_of(await store.get(key), key)


def batches_of(data: bytes, key: str) -> list[StagedBatch]:
    """Return the batches of an object of staged rows. Raises DataDamaged, FormatNotSupported,
    naming it.
    """
    return list(_batches(data, staged_index(data, key)))


def _batches(data: bytes, index: fmt.SegmentIndex) -> Iterator[StagedBatch]:
    for entry in index.batches:
        content = data[entry.position : entry.position + entry.length]
        yield StagedBatch(
            entry.topic_id,
            entry.partition,
            EncodedBatch(content, entry.crc, entry.record_count, entry.timestamp_min_us, entry.timestamp_max_us),
        )
