"""Take and drop cuts of a root without brokers, as the controller does, and read what they have."""

from __future__ import annotations

from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.cuts.cut import put_cut
from ledgermq_ledger.cuts.pins import pin_for_cut
from ledgermq_ledger.cuts.reading.root import open_at_cut
from ledgermq_ledger.cuts.record import abandoned, begun, cut_in, dropped, encode, key_of, taken
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.garbage import cuts as garbage_cuts
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.numbered import list_numbered
from ledgermq_ledger.topics.topic import METADATA
from ledgermq_ledger.view.following.followed_ledger import FollowedLedger
from tests.worlds.ledgers import ledger_of
from tests.worlds.reading import read_to_end
from tests.worlds.roots import Root


async def begin_cut(root: Root, name: str) -> tuple[int, dict[int, int]]:
    """Begin a cut and pin every bundle; return its id and its bases."""
    record = begun(await root.catalog(), name, 0, b"", root.sources.now_ms())
    cut_id = await root.put_internal(METADATA, key_of(name), encode(record))
    bases = {}
    for bundle in range((await root.catalog()).bundles(root.cluster)):
        ledger = ledger_of(root.store, bundle, cluster=root.cluster, sources=root.sources)
        bases[bundle] = await pin_for_cut(ledger, cut_id)
    return cut_id, bases


async def fix_cut(root: Root, name: str, cut_id: int, bases: dict[int, int]) -> None:
    cut = fmt.Cut(id=cut_id, put_id=root.sources.new_id(), name=name, created_ms=root.sources.now_ms())
    for bundle in sorted(bases, reverse=True):
        versions = [
            fmt.CutPartition(topic_id=topic.id, partition=partition, version=number)
            for topic in root.topics.values()
            for partition, its in enumerate(topic.bundles)
            if its == bundle and (number := await _newest_version(root, PartitionId(topic.id, partition)))
        ]
        slot = (await root.writer(bundle)).durable.slot
        cut.bundles.insert(0, fmt.CutBundle(bundle=bundle, base=bases[bundle], slot=slot, partitions=versions))
    await put_cut(root.store, cut, root.sources)
    record = taken(await root.catalog(), name, cut_id, cut.created_ms)
    await root.put_internal(METADATA, key_of(name), encode(record))


async def take_cut(root: Root, name: str = "c") -> int:
    cut_id, bases = await begin_cut(root, name)
    await fix_cut(root, name, cut_id, bases)
    return cut_id


async def _newest_version(root: Root, place: PartitionId) -> int:
    return max([number async for number, _ in list_numbered(root.store, keys.keyed_versions(place))], default=0)


async def drop_cut(root: Root, name: str = "c") -> int:
    record = dropped(await root.catalog(), name)
    assert record is not None
    await root.put_internal(METADATA, key_of(name), encode(record))
    return cut_in(await root.catalog(), name).id


async def end_attempt(root: Root, name: str) -> None:
    """As a controller does that begins: the copy has the record that began the cut, and not yet the next one."""
    ended = abandoned(await root.catalog(), cut_in(await root.catalog(), name).id, "restored")
    assert ended is not None
    await root.put_internal(METADATA, key_of(name), encode(ended))


async def end_cuts(root: Root) -> None:
    """What the controller does in the background: pins of cuts that are over go, then what only they needed."""
    catalog = await root.catalog()
    for bundle in range(catalog.bundles(root.cluster)):
        ledger = ledger_of(root.store, bundle, cluster=root.cluster, sources=root.sources)
        await garbage_cuts.unpin(ledger, catalog)
    await garbage_cuts.remove(root.store, await garbage_cuts.find(root.store, root.cluster))


async def read_at(root: Root, cut_id: int, topic: str, partition: int = 0) -> dict[int, bytes]:
    """Offset → value of a partition at a cut, read from the store alone."""
    at = await open_at_cut(root.store, root.cluster, cut_id)
    found = at.catalog.topics_by_name[topic]
    key = PartitionId(found.id, partition)
    ledger = FollowedLedger(ledger_of(at.store, found.bundles[partition], cluster=at.cluster), run_blocking=run_inline)
    await ledger.open()
    start = (await at.partition(key)).start
    return await read_to_end(ledger.reader, key, start) if ledger.reader.end(key) > start else {}
