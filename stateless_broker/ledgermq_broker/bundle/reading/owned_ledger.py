"""Read the ledger of an owned bundle: a view that the writer feeds, and the calls that wait for new
records.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ledgermq.errors import NotOwner
from ledgermq_broker.bundle.shared.context import BundleContext
from ledgermq_broker.bundle.shared.waiters import Waiters
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint
from ledgermq_ledger.log.history import History, read_history
from ledgermq_ledger.log.partitions.moves import key_of
from ledgermq_ledger.log.recovery import Recovered
from ledgermq_ledger.log.writing.shared_run import SharedRun
from ledgermq_ledger.log.writing.writer import LedgerWriter
from ledgermq_ledger.object_store.contract import Buffer
from ledgermq_ledger.view.find import Finder
from ledgermq_ledger.view.reader import LedgerReader
from ledgermq_ledger.view.view import LedgerView


@dataclass(frozen=True, slots=True)
class TermStatus:
    """Report the state of a term of ownership, for metrics and status.

    `untrimmed_slots`: segments that are not in Parquet yet, or that a parked partition keeps.

    `compaction_age_ms`, `compaction_bytes`: age and size of the records of user topics that are not
    in Parquet, as far as the fetch index reaches.

    `message_ids`: ids of messages that are remembered for deduplication.
    """

    epoch: int
    slot: int
    puts_in_flight: int
    untrimmed_slots: int
    parked: int
    compaction_age_ms: int
    compaction_bytes: int
    message_ids: int


class OwnedLedger:
    """`view`, `reader` and `finder` are for reading, `waiters` for calls that wait.

    This class does not check whether the term is over: `BundleOwner` discards what was read while
    the term ended.
    """

    def __init__(self, context: BundleContext, writer: LedgerWriter, recovered: Recovered) -> None:
        self.bundle = writer.bundle
        self.context = context
        self.view = LedgerView(
            self.bundle,
            self,
            index_batches_max=context.limits.index_batches_max,
            far_batches_max=context.limits.far_batches_max,
            held=context.tail_cache.of(self.bundle),
        )
        self.view.begin(recovered.checkpoint, recovered.checkpoint.state.slot + 1, recovered.tail)
        self.reader = LedgerReader(
            context.ledger(self.bundle),
            self.view,
            parquet=context.parquet_cache,
            keyed=context.keyed_reader,
            pool=context.cold_reads,
            run_blocking=context.run_blocking,
            count=partial(context.metrics.fetched, self.bundle),
        )
        self.finder = Finder(
            self.reader,
            context.store,
            context.parquet_cache,
            context.keyed_reader,
            context.cold_reads,
            context.run_blocking,
        )
        self.waiters = RecordWaiters(self._news_end)
        self._writer = writer
        self._looking = SharedRun(self._look)

    def on_durable(self, index: fmt.SegmentIndex, data: Sequence[Buffer], keys: Sequence[PartitionId]) -> None:
        self.view.index.add(index, keys)
        self.context.tail_cache.add(index, data)
        self.waiters.wake({*keys} | {key_of(seal) for seal in index.seals})

    def _news_end(self, key: PartitionId) -> int:
        """Return the offset below which a reader has something to learn: that a partition has left is news
        to all.
        """
        return sys.maxsize if self._writer.durable.moves.seal_of(key) else self.view.readable_end(key)

    def close(self) -> None:
        """Drop the state of the term, and wake all waiting callers."""
        self.view.drop()
        self.context.tail_cache.drop_bundle(self.bundle)
        self.context.segment_indexes.leave(self.bundle)
        self.waiters.close()

    async def stop(self) -> None:
        """Cancel and await all tasks."""
        await self._looking.close()

    def status(self) -> TermStatus:
        """Return the status for metrics; costs no request."""
        writer, view, catalog = self._writer, self.view, self.context.catalog()
        now_ms = self.context.sources.now_ms()
        parked = {(part.topic_id, part.partition) for part in view.parked}
        forgotten = {key for key, part in view.counters.items() if part.forgotten}
        oldest_ms, backlog_bytes = now_ms, 0
        for key in view.index.partitions:
            topic = catalog.topics_by_id.get(key.topic_id)
            backlog = view.index.backlog(key, view.parquet_end(key))
            if backlog is None or topic is None or topic.removed or key in parked or key in forgotten:
                continue
            if topic.internal and not topic.hidden:
                continue
            backlog_bytes += backlog[0]
            may_wait_ms = topic.settings.parquet_lag_ms(backlog[0]) - topic.settings.parquet_max_lag_ms
            oldest_ms = min(oldest_ms, backlog[1] + may_wait_ms)
        return TermStatus(
            epoch=writer.epoch,
            slot=writer.durable.slot,
            puts_in_flight=writer.puts_in_flight,
            untrimmed_slots=max(0, writer.durable.slot + 1 - view.checkpoint.trim_slot),
            parked=len(parked),
            compaction_age_ms=now_ms - oldest_ms,
            compaction_bytes=backlog_bytes,
            message_ids=writer.durable.ids.count,
        )

    # The methods of a source for the view.

    def durable_end(self, key: PartitionId) -> int:
        return self._writer.durable.end(*key)

    async def check_end(self) -> None:
        await self._writer.check_fence()

    async def look(self, known: int) -> None:
        """Look into the store; callers that need a look at the same time share one."""
        await self._looking.run()

    async def history(self, *, unplanned: bool = False) -> History:
        """`unplanned`: only segments that no finished plan covers."""
        history = await read_history(self.context.ledger(self.bundle), unplanned=unplanned)
        self._see(history.checkpoint)
        return history

    async def _look(self) -> None:
        self._see(await newest_checkpoint(self.context.store, self.bundle, self.view.checkpoint))

    def _see(self, checkpoint: fmt.Checkpoint) -> None:
        """Apply a checkpoint. A checkpoint of a later epoch ends the term."""
        if self.view.see(checkpoint) and checkpoint.state.epoch > self._writer.epoch:
            self._writer.end(
                NotOwner(f"bundle {self.bundle}: checkpoint {checkpoint.number} is of epoch {checkpoint.state.epoch}")
            )


class RecordWaiters(Waiters[PartitionId]):
    """Long polls and streams that wait for records. `end_of` returns the offset below which a partition has something
    for its readers.
    """

    def __init__(self, end_of: Callable[[PartitionId], int]) -> None:
        super().__init__()
        self._end_of = end_of

    def has_news(self, key: PartitionId, offset: int) -> bool:
        """Return whether a partition has something for a reader at this offset, or the term is over."""
        return self.closed or self._end_of(key) > offset

    async def until_grown(self, positions: Mapping[PartitionId, int]) -> None:
        """Wait until a partition can be read beyond its offset, or when `close` was called; at
        once if that is already so.
        """
        while not (self.closed or any(self.has_news(key, offset) for key, offset in positions.items())):
            await self.wait(positions.keys())
