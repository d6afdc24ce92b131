"""Internal topics are read from segments and snapshots only; they never have Parquet files."""

from __future__ import annotations

import pytest

from ledgermq.errors import OffsetOutOfRange
from ledgermq.sources import Sources
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.runner import compact_bundle
from ledgermq_ledger.topics.topic import METADATA
from tests.worlds.bundles import bundle_context, opened, produce
from tests.worlds.ledgers import batch, ledger_of


async def test_a_snapshot_that_moves_under_a_fetch_is_an_offset_error(sources: Sources) -> None:
    """The fetch takes the new checkpoint in while it looks for segments before its own, and must
    not go on to Parquet.
    """
    store = MemoryStore("internal", sources)
    context = bundle_context(store, sources)
    async with opened(context, METADATA.bundles[0]) as owner:
        await produce(owner, batch(b"a", topic_id=METADATA.id), batch(b"b", topic_id=METADATA.id))
    await advance_checkpoint(ledger_of(store, 0, sources=sources))
    async with opened(context, METADATA.bundles[0]) as owner:
        engine = LocalEngine(sources, run_inline)
        report = await compact_bundle(
            Compaction(store, context.cluster, sources, engine), 0, context.catalog(), everything=True
        )
        assert report is not None
        with pytest.raises(OffsetOutOfRange):
            await owner.fetch(METADATA, 0, 0, 1 << 20)
        assert await owner.list_offset(METADATA, 0, "earliest") == 2
