"""Give a topic of a root a Delta table, as the controller does; roots with rounds, retention and a registrar."""

from __future__ import annotations

from ledgermq_ledger import keys
from ledgermq_ledger.garbage.sweep import tidy_bundle
from ledgermq_ledger.garbage.topics.retention import log_start_move
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.rounds.runner import bring_facts_into_force
from ledgermq_ledger.tables.registrar import Registrar
from ledgermq_ledger.topics.catalog import Catalog
from tests.virtual_time import virtual_sources
from tests.worlds.judged_tables import lost_files
from tests.worlds.ledgers import ledger_of
from tests.worlds.roots import Root, parquet_keys

KEEP_MS = 100_000
AGED_S = 21
"""Files wait so long for late puts (`Root`)."""


async def set_table(root: Root, generation: int, keep_ms: int = 1_000_000_000, topic: str = "t") -> None:
    """Set the table of a generation, 0: none, and bring it into force in each bundle of the topic."""
    await write_table(root, generation, keep_ms, topic)
    for bundle in sorted(root.topics[topic].bundles_in_use):
        await tell(root, bundle)


async def write_table(root: Root, generation: int, keep_ms: int = 1_000_000_000, topic: str = "t") -> None:
    """The first step of `set_table`: no bundle knows yet."""
    root.topics[topic].raw_settings.pop("table.generation", None)
    changed = {"table_generation": str(generation)} if generation else {}
    await root.alter_topic(topic, table_keep_ms=str(keep_ms), **changed)
    root.topics[topic] = (await root.catalog()).topics_by_name[topic]


async def tell(root: Root, bundle: int) -> None:
    ledger = ledger_of(root.store, bundle, cluster=root.cluster, sources=root.sources)
    await bring_facts_into_force(ledger, await root.catalog())


async def a_root(*, has_table: bool = True, seed: int = 1) -> Root:
    """Two partitions in bundle 1, and bundle 2 to move to. Roots of the same seed have the same cluster id."""
    sources = virtual_sources(seed)
    root = await Root.open(MemoryStore("test", sources), sources, bundles=3)
    await root.create_topic("t", partitions=2)
    if has_table:
        await set_table(root, 1, KEEP_MS)
    return root


async def make_round(root: Root) -> None:
    """A file of two records for each partition."""
    for partition in (0, 1):
        await root.produce("t", (partition, [b"a", b"b"]))
    assert not (await root.compact()).failures


async def raise_start(root: Root, start: int, partition: int = 0) -> None:
    topic = root.topics["t"]
    ledger = ledger_of(root.store, topic.bundles[partition], cluster=root.cluster, sources=root.sources)
    await advance_checkpoint(ledger, log_start_move({PartitionId(topic.id, partition): start}))


async def tidy(root: Root, catalog: Catalog | None = None, bundle: int = 1) -> None:
    ledger = ledger_of(root.store, bundle, cluster=root.cluster, sources=root.sources)
    await tidy_bundle(ledger, catalog or await root.catalog())


def registrar(root: Root) -> Registrar:
    return Registrar(root.store, root.cluster, root.topics["t"], root.sources)


async def lost(root: Root) -> list[str]:
    return await lost_files(root, "t", KEEP_MS)


async def first_offsets(root: Root, partition: int = 0) -> list[int]:
    found = [keys.parse_parquet(key) for key in await parquet_keys(root.store, keys.parquet_partition("t", partition))]
    return [name.first_offset for name in found if name is not None]
