"""A root whose topic `t` has its small Parquet files merged by threes, and what is asked about them."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.fsck.check import check_root
from ledgermq_ledger.fsck.problem import Severity
from ledgermq_ledger.garbage.found import Removable
from ledgermq_ledger.garbage.sweep import sweep
from ledgermq_ledger.garbage.topics import merged_files
from ledgermq_ledger.garbage.topics.retention import deletion_move
from ledgermq_ledger.log.chains.checkpoint import partition_of
from ledgermq_ledger.log.chains.envelope import FORMAT_VERSION, ObjectKind, seal
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.parquet.merging.merged_list import list_key, place_of, read_list
from ledgermq_ledger.parquet.merging.names import parse_merged
from tests.stores.backends import seeded_sources
from tests.stores.requests_made import Requests
from tests.virtual_time import virtual_sources
from tests.worlds.ledgers import ledger_of
from tests.worlds.reading import opened_ledger, read_to_end
from tests.worlds.roots import Root

AGED_S = 60.0
"""Longer than any file has to stay."""
UNREAD = ["lost", "damaged", "later"]
"""How a list may be one that cannot be read (`spoil`)."""


def a_sources(seed: int = 1) -> Sources:
    return virtual_sources(seed)


async def a_root(rounds: int = 0, bundles: int = 2, **settings: str) -> Root:
    """A topic `t` whose files are merged by threes."""
    sources = a_sources()
    root = await Root.open(MemoryStore("merging", sources), sources, bundles=bundles)
    await root.create_topic("t", **{"parquet_merge_files": "3", **settings})
    for _ in range(rounds):
        await make_file(root)
    return root


async def make_file(root: Root, name: str = "t", values: Sequence[bytes] = ()) -> None:
    """A round: one more file of partition 0, of two records, and whatever is merged then."""
    count = len(root.produced.get((name, 0), []))
    await root.produce(name, (0, list(values) or [b"%d" % count, b"%d" % (count + 1)]))
    await asyncio.sleep(1)
    assert not (await root.compact()).failures


def compaction(root: Root, store: ObjectStore | None = None, seed: int = 7) -> Compaction:
    sources = seeded_sources(seed)
    sources = Sources(root.sources.now_us, sources.random)
    return Compaction(store or root.store, root.cluster, sources, LocalEngine(sources, run_inline))


async def counters_of(root: Root, name: str = "t", bundle: int = 1) -> fmt.PartitionCheckpoint:
    return partition_of(await root.newest(bundle), root.topics[name].id, 0)


async def merged_keys(root: Root) -> list[str]:
    return [info.key async for info in root.store.list(keys.MERGED)]


async def spans(root: Root) -> list[tuple[int, int]]:
    """Return the offsets of the merged files that are there."""
    names = [parse_merged(key) for key in await merged_keys(root)]
    return sorted(name.offsets for name in names if name is not None and name.offsets is not None)


async def delete_below(root: Root, offset: int, name: str = "t", bundle: int = 1) -> None:
    """Delete records on demand, and let rounds delete the files."""
    ledger = ledger_of(root.store, bundle, cluster=root.cluster, sources=root.sources)
    assert await advance_checkpoint(ledger, deletion_move(root.topics[name], {0: offset}))
    for _ in range(2):
        await asyncio.sleep(AGED_S)
        assert not (await root.compact()).failures


async def spoil(root: Root, how: str, bundle: int = 1) -> str:
    """Make a partition's list in force one that cannot be read, and return its key."""
    counters, store = await counters_of(root, bundle=bundle), root.store
    assert isinstance(store, MemoryStore)
    key = list_key(place_of(counters), counters.merged)
    if how == "lost":
        await store.delete([key])
    elif how == "damaged":
        await store.put(key, b"not a list")
    else:
        listed = await read_list(store, counters)
        await store.put(key, seal(ObjectKind.MERGED_LIST, listed, FORMAT_VERSION + 1))
    return key


@contextmanager
def without_deletions(*ways: str) -> Iterator[None]:
    """Each process dies before it deletes merged files, in these ways."""

    async def nothing(*rest: object) -> list[Removable]:
        return []

    with pytest.MonkeyPatch.context() as patch:
        for way in ways:
            patch.setattr(merged_files, way, nothing)
        yield


async def read_all(root: Root, name: str = "t", bundle: int = 1, first: int = 0) -> list[bytes]:
    ledger = await opened_ledger(root.store, bundle)
    return list((await read_to_end(ledger.reader, keys.PartitionId(root.topics[name].id, 0), first)).values())


async def damage(root: Root) -> list[tuple[str, str]]:
    checked = await check_root(root.store, root.cluster, run_blocking=run_inline)
    return [(found.code, found.object_key) for found in checked.problems if found.severity is Severity.DAMAGE]


async def check_all(root: Root) -> None:
    """What lists name is there and right, and garbage collection leaves nothing else."""
    await asyncio.sleep(AGED_S)
    swept = await sweep(compaction(root), grace_ms=0)
    assert not swept.failures
    assert await damage(root) == []
    assert await merged_files.find(root.store, await root.catalog()) == []


class Meanwhile(Requests):
    """Something happens just before a list of merged files, or another object, is put. `what`: a part of its key."""

    def __init__(self, inner: ObjectStore, what: str = "/lists/") -> None:
        super().__init__(inner)
        self._what = what
        self.then: list[object] = []

    async def put_if_absent(self, key: str, buffers: Sequence[bytes]) -> None:  # type: ignore[override]
        if self._what in key and self.then:
            await self.then.pop()  # type: ignore[misc]
        await super().put_if_absent(key, buffers)


async def unmerged(rounds: int, bundles: int = 2) -> Root:
    root = await a_root(rounds, bundles, parquet_merge_files="0")
    await root.alter_topic("t", parquet_merge_files="3")
    return root
