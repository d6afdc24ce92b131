"""The controller removes topics from bundles of other brokers: it keeps no indexes of these, as they
would take the room of its own for good.
"""

from __future__ import annotations

from ledgermq.sources import Sources
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.garbage.topics.removed import remove
from ledgermq_ledger.log.history import read_history
from ledgermq_ledger.log.segments.indexes import SegmentIndexes
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from tests.stores.backends import memory_store
from tests.worlds.roots import Root

ROOM_BYTES = 3_000
"""Room for the indexes of one bundle of this test, not for two."""


async def test_a_removal_in_another_broker_s_bundle_takes_no_room_for_indexes(sources: Sources) -> None:
    async with memory_store(sources) as store:
        root = await Root.open(store, sources, bundles=3)
        for topic, bundle in (("mine", 1), ("removed", 2), ("busy", 2)):
            await root.create_topic(topic, bundle=bundle)
        for i in range(20):
            await root.produce("mine", (0, [b"a%d" % i]))
            await root.produce("busy", (0, [b"b%d" % i]))
        await root.remove_topic("removed")
        compaction = Compaction(
            store, root.cluster, sources, LocalEngine(sources, run_inline), SegmentIndexes(bytes_max=ROOM_BYTES)
        )
        await remove(compaction, await root.catalog())
        assert list(compaction.known.held(2)) == []
        read = await read_history(compaction.ledger(1))
        assert len(list(compaction.known.held(1))) == len(read.segments) > 15
