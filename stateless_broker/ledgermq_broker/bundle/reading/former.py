"""Read what a partition had before it moved to this bundle: offsets below its open are in the ledger that
it came from (design Y7).

That ledger belongs to another broker, so it is followed from the store alone. Nothing of a partition
follows its seal, so the log is read once. Records may be deleted there until a checkpoint has the seal,
and no longer until the files are handed over: up to that checkpoint the newest one is looked at before
each read.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import partial

from ledgermq.errors import NotOwner
from ledgermq_broker.bundle.moving import RETRY_AFTER_MS
from ledgermq_broker.bundle.shared.context import BundleContext
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import is_in_charge
from ledgermq_ledger.view.following.followed_ledger import FollowedLedger
from ledgermq_ledger.view.reader import LedgerReader


@dataclass(frozen=True, slots=True)
class _Former:
    """What is known of a partition in the ledger that it came from. `move`: that brought it."""

    move: int
    followed: FollowedLedger
    reader: LedgerReader


class FormerReaders:
    """A reader of the former ledger for each partition that came and was asked for its older records.

    They share the limits and caches of the broker.
    """

    def __init__(self, bundle: int, context: BundleContext) -> None:
        self._bundle = bundle
        self._context = context
        self._formers: dict[PartitionId, _Former] = {}
        self._turn = asyncio.Lock()

    async def reader(self, key: PartitionId, opened: fmt.PartitionOpen) -> LedgerReader:
        """Return the reader of the ledger that a partition came from by its newest move.

        Raises DataDamaged, FormatNotSupported, Unavailable, the store's errors, and NotOwner if the partition has
        gone back there.
        """
        found = self._formers.get(key)
        if found is None or found.move != opened.move:
            async with self._turn:
                found = self._formers.get(key)
                if found is None or found.move != opened.move:
                    found = self._formers[key] = await self._opened(key, opened)
        newest = found.followed.view.checkpoint
        if is_in_charge(newest, *key):
            await found.followed.look(newest.number)
        return found.reader

    def forget(self, key: PartitionId) -> None:
        """Drop what is known of a partition in the ledger that it came from: all of it is here by now."""
        self._formers.pop(key, None)

    async def _opened(self, key: PartitionId, opened: fmt.PartitionOpen) -> _Former:
        context = self._context
        ledger = replace(context.ledger(opened.source), known=None)  # it belongs to another broker
        followed = FollowedLedger(ledger, wanted=key.__eq__, run_blocking=context.run_blocking)
        await followed.open()
        end = followed.durable_end(key)
        assert end >= opened.start, (key, opened.move)
        if end > opened.start:  # it has gone back since: another one owns this bundle
            raise NotOwner(f"partition {key} is in bundle {opened.source} again", retry_after_ms=RETRY_AFTER_MS)
        reader = LedgerReader(
            ledger,
            followed.view,
            parquet=context.parquet_cache,
            keyed=context.keyed_reader,
            pool=context.cold_reads,
            run_blocking=context.run_blocking,
            count=partial(context.metrics.fetched, self._bundle),
        )
        return _Former(opened.move, followed, reader)
