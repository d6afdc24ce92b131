"""Read the partitions of a bundle for the time of one term.

What a partition had before it moved here is read in the ledger that it came from, until its files are listed here.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeVar

from ledgermq.errors import LedgerMQError
from ledgermq_broker.bundle.moving import Moving
from ledgermq_broker.bundle.reading.former import FormerReaders
from ledgermq_broker.bundle.reading.internal_state import LatestRecords, read_internal_state
from ledgermq_broker.bundle.shared.context import BundleContext
from ledgermq_broker.bundle.term import Term
from ledgermq_broker.logs import get_logger
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.recovery import Recovered
from ledgermq_ledger.log.segments.segment import Batch
from ledgermq_ledger.log.writing.writer import LedgerWriter
from ledgermq_ledger.object_store.wrappers.payers import Payer, caller, paid_by
from ledgermq_ledger.topics.topic import Topic
from ledgermq_ledger.view.backlog import Backlog, backlog_from
from ledgermq_ledger.view.find import Finder, read_row
from ledgermq_ledger.view.partition_index import NOTHING_LEFT_OUT, LeftOut, Masks
from ledgermq_ledger.view.reader import LedgerReader, PartitionRead

T = TypeVar("T")

log = get_logger(__name__)


class Reads(Term):
    """The calls that read. Each also lets the background work know that the bundle is in use."""

    def __init__(self, context: BundleContext, writer: LedgerWriter, recovered: Recovered, moving: Moving) -> None:
        super().__init__(context, writer, recovered, moving)
        self._reader = self._ledger.reader
        self._former = FormerReaders(self.bundle, context)

    async def fetch(
        self,
        topic: Topic,
        partition: int,
        offset: int,
        bytes_max: int,
        *,
        direct: bool = False,
        masks: Masks = None,
    ) -> PartitionRead:
        """Return batches from `offset` on: `bytes_max` in total, but at least one batch. `masks`: those of the tags
        that are wanted; batches that have none of them may be left out.

        Raises OffsetOutOfRange, UnknownPartition, NotOwner, DataDamaged, Unavailable, the store's
        errors.
        """
        self._check_term()
        self._check_partition(topic, partition)
        key = PartitionId(topic.id, partition)
        self._writer.durable.moves.check_here(key)
        self._upkeep.on_read()
        with paid_by({Payer(topic.id, caller()): 1}):
            read = await self._of_former(
                key, offset, lambda reader: reader.fetch(key, offset, bytes_max, topic, direct=direct, masks=masks)
            )
            if read is not None:
                read = replace(read, high_watermark=self._reader.end(key))
            else:
                here = self._reader.fetch(key, offset, bytes_max, topic, direct=direct, masks=masks)
                read = await self._in_term(here)
        if read.batches or read.located:
            self.traffic.fetched(key, sum(len(batch.data) for batch in read.batches))
        return read

    async def _of_former(
        self, key: PartitionId, offset: int, read: Callable[[LedgerReader], Coroutine[None, None, T]]
    ) -> T | None:
        """Return what is read in the ledger that a partition came from, if that has the offset; None if it is here.

        That ledger forgets the partition once the files are listed here, so this one is looked at after an error.
        """
        opened = self._opened_above(key, offset)
        if opened is None:
            self._former.forget(key)
            return None
        try:
            return await self._in_term(read(await self._in_term(self._former.reader(key, opened))))
        except LedgerMQError:
            await self._in_term(self._ledger.view.look())
            if self._opened_above(key, offset) is not None:
                raise
            return None

    def left_out(self, topic: Topic, partition: int, offset: int, read: PartitionRead) -> LeftOut:
        """Return how much an answer to a reader at `offset` left out because of its tags."""
        key, total = PartitionId(topic.id, partition), NOTHING_LEFT_OUT
        index = self._ledger.view.index.partitions.get(key)
        if index is None or self._opened_above(key, offset) is not None:
            return total
        sent = [(batch.base_offset, batch.end) for batch in read.batches]
        sent += [(located.batch.base_offset, located.batch.end) for located in read.located]
        for base_offset, end in sent:
            total = total.and_(index.size_between(offset, base_offset))
            offset = end
        return total if sent else index.size_between(offset, read.next_offset)

    async def append_us(self, batch: Batch, base_offset: int) -> int:
        """Return the timestamp in microseconds that this or an earlier term gave a stored batch; 0: it has its
        producer's, was cleaned, or cannot be read. A repeated batch may be too old for the index, or in the ledger that
        its partition came from: then it is read.
        """
        topic = self._context.catalog().topics_by_id.get(batch.topic_id)
        if topic is None or not topic.settings.append_time:
            return 0
        key = batch.key
        index = self._ledger.view.index.partitions.get(key)
        place = None if index is None else index.at(base_offset)
        if index is not None and place is not None:
            return index[place].timestamp_max_us
        try:
            run_blocking = self._context.run_blocking
            row = await self._of_former(
                key, base_offset, lambda reader: read_row(reader, run_blocking, key, base_offset, topic)
            )
            if row is None:
                stored = await self._in_term(self._ledger.finder.record(key, base_offset, topic))
                row = None if stored is None else stored.row
            return 0 if row is None else row.column("timestamp")[0].value or 0
        except LedgerMQError as error:  # the batch is stored: that has to be answered
            log.warning("no time of a repeated batch", bundle=self.bundle, offset=base_offset, error=str(error))
            return 0

    async def look_up(self, topic: Topic, partition: int, look: Callable[[Finder], Coroutine[None, None, T]]) -> T:
        """Return what `look` finds in the ledger. Raises UnknownPartition, NotOwner, what it raises, and Unavailable
        while some of the partition is in another ledger.
        """
        self._check_term()
        self._check_partition(topic, partition)
        self._upkeep.on_read()
        self._check_whole(topic, partition, 0)
        return await self._in_term(look(self._ledger.finder))

    async def wait_for_data(self, positions: Mapping[PartitionId, int]) -> None:
        """Wait until a partition reaches beyond its offset, or the term has ended."""
        await self._ledger.waiters.until_grown(positions)

    def has_news(self, key: PartitionId, offset: int) -> bool:
        """Return whether `wait_for_data` would return at once for this position."""
        return self._ledger.waiters.has_news(key, offset)

    async def internal_state(self, wanted: Sequence[tuple[Topic, Sequence[int]]]) -> dict[PartitionId, LatestRecords]:
        """Return the latest records of partitions of internal topics; the snapshot is read once for
        all of them.

        Raises NotOwner, Unavailable, the store's errors; damage is in the results.
        """
        self._check_term()
        return await self._in_term(read_internal_state(self._ledger, wanted))

    def durable_end(self, topic: Topic, partition: int) -> int:
        """Return an end that is durable, although a later owner may know a higher one. It costs no
        request, and proves nothing about records beyond it.
        """
        self._check_term()
        self._check_partition(topic, partition)
        return self._ledger.view.durable_end(PartitionId(topic.id, partition))

    def offset_behind(self, topic: Topic, partition: int, slots: int) -> int:
        """Return the offset of a partition below which its records lie more than `slots` slots behind
        the end of the ledger, as far as the fetch index knows. It costs no request.
        """
        self._check_term()
        self._check_partition(topic, partition)
        key = PartitionId(topic.id, partition)
        found = self._ledger.view.index.partitions.get(key)
        place = found.place_of_slot(self._writer.durable.slot - slots) if found is not None else 0
        if found is None or place == len(found):
            return self._ledger.view.durable_end(key)
        return found[place].base_offset

    async def list_offset(
        self, topic: Topic, partition: int, at: Literal["earliest", "latest", "durable"] | int
    ) -> int:
        """Return the offset of `at`. A time is in microseconds since the epoch, and gives the first
        offset of that time or later, or the high watermark if there is none.
        """
        if at == "durable":
            return self.durable_end(topic, partition)
        self._check_term()
        self._check_partition(topic, partition)
        self._upkeep.on_read()
        key = PartitionId(topic.id, partition)
        self._writer.durable.moves.check_here(key)
        end = self._reader.end(key)
        if at == "earliest":
            return await self._log_start(topic, key)
        if at != "latest":
            offset = await self._of_former(key, 0, lambda reader: reader.offset_at(key, at, topic))
            if offset is not None:
                return offset
            opened = self._opened_above(key, 0)
            begin = 0 if opened is None else opened.start
            offset = await self._in_term(self._reader.offset_at(key, at, topic, begin=begin))
            if offset is not None:
                return offset
        await self._writer.check_fence()  # a zombie must not report an old end as the latest
        return end

    async def _log_start(self, topic: Topic, key: PartitionId) -> int:
        async def start(reader: LedgerReader) -> int:
            return reader.view.log_start(key, topic)

        found = await self._of_former(key, 0, start)
        if found is not None:
            await self._in_term(self._ledger.view.look())  # the other ledger may have forgotten it before the answer
        if found is not None and self._opened_above(key, 0) is not None:
            return found
        return self._ledger.view.log_start(key, topic)

    async def backlog(self, topic: Topic, partition: int, offset: int) -> Backlog:
        """Return what lies between an offset and the end of a partition. See `backlog_from`. Raises also
        Unavailable while some of that is in another ledger.
        """
        self._check_term()
        self._check_partition(topic, partition)
        self._upkeep.on_read()
        self._check_whole(topic, partition, offset)
        return await self._in_term(backlog_from(self._reader, PartitionId(topic.id, partition), offset))
