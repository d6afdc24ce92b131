"""Which cuts of a root are whole that came in any order."""

from __future__ import annotations

from ledgermq.errors import LedgerMQError
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import ClusterSettings, read_cluster
from ledgermq_ledger.cuts import names
from ledgermq_ledger.cuts.reading.copying import copy_named
from ledgermq_ledger.cuts.reading.replica import CutInReplica, cuts_of_replica
from ledgermq_ledger.cuts.reading.root import open_at_cut
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from tests.unit.cuts.test_pins import a_cut_with_a_life_after_it
from tests.unit.cuts.test_restore import empty, objects_of
from tests.virtual_time import virtual
from tests.worlds.cuts import take_cut
from tests.worlds.set_tables import a_root


async def a_replica() -> tuple[ClusterSettings, dict[str, bytes]]:
    """The objects of a root with two cuts, of which the first one has files that were handed over."""
    root = await a_root(has_table=False)
    await a_cut_with_a_life_after_it(root)
    await take_cut(root, "later")
    return await read_cluster(root.store), await objects_of(root.store)


async def store_of(objects: dict[str, bytes]) -> MemoryStore:
    store = empty("replica")
    for key, data in objects.items():
        await store.put_if_absent(key, [data])
    return store


async def looked_at(store: ObjectStore) -> list[CutInReplica]:
    return [each async for each in cuts_of_replica(store)]


async def can_be_copied(store: ObjectStore, cluster: ClusterSettings, cut_id: int) -> bool:
    try:
        await copy_named(await open_at_cut(store, cluster, cut_id), empty("target"))
    except LedgerMQError:
        return False
    except ExceptionGroup:
        return False
    return True


@virtual
async def test_each_cut_is_whole_where_all_is_there_newest_first() -> None:
    _, objects = await a_replica()
    found = await looked_at(await store_of(objects))
    assert [(each.name, each.is_whole, each.missing) for each in found] == [("later", True, ()), ("c", True, ())]
    assert found[0].id > found[1].id
    assert any(key.startswith(names.HELD) for key in objects), "files that were handed over count"


@virtual
async def test_a_cut_is_whole_if_and_only_if_it_can_be_copied() -> None:
    """Each object of the root is missing once."""
    cluster, objects = await a_replica()
    lacked = set[str]()
    for key in sorted(objects.keys() - {keys.CLUSTER}):
        store = await store_of({other: data for other, data in objects.items() if other != key})
        for each in await looked_at(store):
            assert each.is_whole == await can_be_copied(store, cluster, each.id), (key, each)
            if not each.is_whole:
                assert key in each.missing or key in [names.held(one) for one in each.missing if "parquet/" in one]
                lacked.add(each.name)
    assert lacked == {"c", "later"}


@virtual
async def test_a_root_without_cuts_has_none_and_a_damaged_object_is_named() -> None:
    _, objects = await a_replica()
    bare = {key: data for key, data in objects.items() if not key.startswith(names.CUTS)}
    assert await looked_at(await store_of(bare)) == []
    newest = max(key for key in objects if key.startswith(names.CUTS))
    found = await looked_at(await store_of(objects | {newest: b"nothing"}))
    assert (found[0].is_whole, found[0].missing) == (False, (newest,))
    assert found[1].is_whole
