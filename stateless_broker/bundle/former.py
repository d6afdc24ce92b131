"""Read what a partition had before it moved to this bundle: offsets below its open are in the ledger that
it came from (design Y7).

That ledger belongs to another broker, so it is followed from the store alone. Nothing of a partition
follows its seal, and nothing of it is deleted between the seal and the hand-over of its files, so
what was read once is not asked for again.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

from ledger.format import ledgermq_format_pb2 as fmt
from ledger.keys import PartitionId
from ledger.view.followed_ledger import FollowedLedger
from ledger.view.reader import LedgerReader
from stateless_broker.bundle.context import BundleContext


class FormerReaders:
    """A reader of the former ledger for each partition that came and was asked for its older records.

    They share the limits and caches of the broker.
    """

    def __init__(self, bundle: int, context: BundleContext) -> None:
        self._bundle = bundle
        self._context = context
        self._readers: dict[PartitionId, tuple[int, LedgerReader]] = {}
        self._turn = asyncio.Lock()

    async def reader(self, key: PartitionId, opened: fmt.PartitionOpen) -> LedgerReader:
        """Return the reader of the ledger that a partition came from by its newest move.

        Raises DataDamaged, FormatNotSupported, Unavailable, the store's errors.
        """
        move, found = self._readers.get(key, (0, None))
        if found is not None and move == opened.move:
            return found
        async with self._turn:
            move, found = self._readers.get(key, (0, None))
            if found is None or move != opened.move:
                found = await self._opened(key, opened)
                self._readers[key] = opened.move, found
            return found

    def forget(self, key: PartitionId) -> None:
        """Drop what is known of a partition in the ledger that it came from: all of it is here by now."""
        self._readers.pop(key, None)

    async def _opened(self, key: PartitionId, opened: fmt.PartitionOpen) -> LedgerReader:
        context = self._context
        ledger = replace(context.ledger(opened.source), known=None)  # it belongs to another broker
        followed = FollowedLedger(ledger, wanted=key.__eq__, run_blocking=context.run_blocking)
        await followed.open()
        assert followed.durable_end(key) == opened.start, (key, opened.move)
        return LedgerReader(
            ledger,
            followed.view,
            parquet=context.parquet_cache,
            keyed=context.keyed_reader,
            pool=context.cold_reads,
            run_blocking=context.run_blocking,
            count=partial(context.metrics.fetched, self._bundle),
        )
