"""Write and read the hidden partitions of one bundle: the intake, and those that ranges have.

Blocks are appended through the bundle's log, apart from those of the intake, which producers' sessions
order (`ledgermq_broker.timed.taking_in.intake`). Only this object appends to a range's partition, so it counts
the offsets there, and has them before a block is durable.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from ledgermq.errors import CorruptFrame, DataDamaged, LedgerMQError, MessageTooLarge
from ledgermq.protocol.batches.batch_header import check_crc
from ledgermq.protocol.batches.records import decode_batch
from ledgermq.sources import Sources
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.internal.bundle_log import batch_of
from ledgermq_broker.timed.state.blocks import Block, Source, decode_block
from ledgermq_broker.timed.state.memory.cut import Moved
from ledgermq_broker.timed.state.places import RangeId
from ledgermq_ledger import keys
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.log_record import LogRecord
from ledgermq_ledger.log.partitions.producers import ProducerSession
from ledgermq_ledger.log.segments.segment import Batch
from ledgermq_ledger.log.segments.stored_batch import StoredBatch
from ledgermq_ledger.topics.topic import Topic


class HiddenLogs:
    """`near`, `far`: the topics `__delayed` and `__delayed_far`. Make it when no append of the bundle's
    former log is under way.
    """

    def __init__(self, owner: BundleOwner, near: Topic, far: Topic, sources: Sources) -> None:
        self.owner = owner
        self.intake = PartitionId(near.id, keys.near_partition(owner.bundle, 0))
        self._near = near
        self._far = far
        self._sources = sources
        self._next: dict[RangeId, int] = {}
        """The next offset of each partition that was asked for."""

    def place_of(self, range_id: RangeId | None) -> PartitionId:
        """Return the hidden partition of a place; None: the intake."""
        if range_id is None:
            return self.intake
        if range_id.far:
            return PartitionId(self._far.id, keys.far_partition(self.owner.bundle, range_id.place))
        return PartitionId(self._near.id, keys.near_partition(self.owner.bundle, range_id.place))

    def durable_end(self, range_id: RangeId | None) -> int:
        return self.owner.durable_end(self._topic_of(range_id), self.place_of(range_id).partition)

    def next_offset(self, range_id: RangeId) -> int:
        """Return the offset of the next block that is appended to a range's partition."""
        if range_id not in self._next:
            self._next[range_id] = self.durable_end(range_id)
        return self._next[range_id]

    def issue(self, moved: Mapping[RangeId, Moved]) -> list[Batch]:
        """Return the batches that hold these blocks, one for each range, and reserve their offsets."""
        batches = []
        for range_id, what in moved.items():
            if what.blocks:
                self._next[range_id] = self.next_offset(range_id) + len(what.blocks)
                batches.append(self.batch_of(self.place_of(range_id), what.blocks))
        return batches

    def batch_of(
        self, place: PartitionId, blocks: Sequence[LogRecord], producer: ProducerSession | None = None
    ) -> Batch:
        """Return one batch with these blocks as its records."""
        # a block of the intake has the producer's own compression
        return batch_of(place, blocks, self._sources.now_us(), producer, compresses=place != self.intake)

    async def read(
        self, range_id: RangeId | None, offset: int, end: int, bytes_max: int, only: Container[int] | None = None
    ) -> list[tuple[Source, Block]]:
        """Return the blocks from `offset` on, below `end`, which is durable: about `bytes_max`, at least one.

        `only`: the offsets of those that are wanted, `offset` among them; no other block is decoded.

        Raises DataDamaged and FormatNotSupported, which name the object or the record; NotOwner,
        Unavailable, the store's errors.
        """
        topic, place = self._topic_of(range_id), self.place_of(range_id)
        read = await self.owner.fetch(topic, place.partition, offset, bytes_max)
        found: list[tuple[Source, Block]] = []
        for batch in read.batches:
            name = f"{topic.name}/{place.partition}"
            for at, (key, value) in enumerate(_records_of(batch, name), batch.base_offset):
                if offset <= at < end and (only is None or at in only):
                    found.append((Source(range_id, at), _decoded(key, value, f"{name}, offset {at}")))
        if not found or found[0][0].offset != offset:
            raise DataDamaged(
                f"{topic.name}/{place.partition} should have a block of timed messages at offset {offset}, but has none"
                " there; run `ledgermq fsck`, and restore the bundle's ledger"
            )
        return found

    def _topic_of(self, range_id: RangeId | None) -> Topic:
        return self._far if range_id is not None and range_id.far else self._near


def _records_of(batch: StoredBatch, name: str) -> list[tuple[bytes, bytes | None]]:
    try:
        check_crc(batch.data, batch.crc)
        records = decode_batch(batch.data)
    except (CorruptFrame, MessageTooLarge) as error:
        raise DataDamaged(f"{name}: the batch at offset {batch.base_offset}: {error}") from error
    return list(zip(records.column("key").to_pylist(), records.column("value").to_pylist(), strict=True))


def _decoded(key: bytes | None, value: bytes | None, where: str) -> Block:
    try:
        return decode_block(key or b"", value)
    except LedgerMQError as error:
        raise type(error)(f"{where}: {error.message}", object_key=error.object_key) from error
