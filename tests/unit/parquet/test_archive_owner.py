"""An archive belongs to one cluster: the names of its files are the same in every cluster, so a
second one is refused.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from ledgermq.errors import DataDamaged, FormatNotSupported, InvalidConfig
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.fsck.names import check_names
from ledgermq_ledger.fsck.problem import Problems
from ledgermq_ledger.garbage.topics.expired_files import remove_expired as remove_expired_files
from ledgermq_ledger.object_store.contract import AlreadyExists, Buffer, ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.parquet.archiving.archive import Archives
from ledgermq_ledger.parquet.archiving.owner import check_owner, decode_mark, encode_mark
from tests.stores.one_put import OnePut
from tests.unit.parquet.test_archive import VALUES, archived_rows, filled, live_rows
from tests.unit.parquet.test_gc import Clock
from tests.worlds.ledgers import ledger_of
from tests.worlds.roots import Root, parquet_keys

GOLDEN = Path(__file__).parents[2] / "golden" / "archive-owner-v1.json"
CLUSTER_ID = "00112233445566778899aabbccddeeff"


class Vault:
    """One store that several clusters have for their archive.

    `sources`: of which the clusters draw their ids.
    """

    def __init__(self) -> None:
        self.clock = Clock()
        self.sources = Sources(self.clock, random.Random(1))
        self.store: ObjectStore = MemoryStore("vault", self.sources)

    async def cluster(self, name: str) -> Root:
        """With three files that are to go to the archive."""
        store = MemoryStore(name, self.sources)
        return await filled(store, self.clock, self.sources, archive_url="memory://vault")

    async def expire(self, root: Root) -> int:
        return await remove_expired_files(
            ledger_of(root.store, 1, cluster=root.cluster, sources=self.sources), await root.catalog(), self.open
        )

    async def open(self, url: str) -> ObjectStore:
        return self.store

    async def read(self, root: Root) -> ObjectStore:
        """As a query with `includeArchive` does."""
        async with Archives(root.store, self.sources, self.open) as archives:
            return await archives.store("memory://vault")


async def test_a_second_cluster_is_refused_and_keeps_its_files() -> None:
    vault = Vault()
    first, second = await vault.cluster("first"), await vault.cluster("second")
    assert await vault.expire(first) == 3
    with pytest.raises(InvalidConfig) as refused:
        await vault.expire(second)
    assert first.cluster.cluster_id in refused.value.message
    assert second.cluster.cluster_id in refused.value.message
    assert "memory://vault" in refused.value.message
    assert len(await parquet_keys(second.store)) == 3
    assert (await live_rows(first.store), await archived_rows(vault.store)) == ({}, VALUES)


async def test_a_reader_of_another_cluster_is_refused() -> None:
    vault = Vault()
    first, second = await vault.cluster("first"), await vault.cluster("second")
    assert await vault.read(second) is vault.store, "there is nothing in it yet"
    assert [info async for info in vault.store.list("")] == [], "who reads marks nothing"
    await vault.expire(first)
    assert await vault.read(first) is vault.store
    with pytest.raises(InvalidConfig, match=first.cluster.cluster_id):
        await vault.read(second)


async def test_an_archive_of_before_there_were_marks_is_of_the_cluster_whose_files_it_has() -> None:
    vault = Vault()
    first, second = await vault.cluster("first"), await vault.cluster("second")
    await vault.expire(first)
    await vault.store.delete([keys.ARCHIVE_OWNER])
    damaged = keys.archived(keys.ParquetName("a", 0, 0, 0, 9, 1).key)
    await vault.store.put_if_absent(damaged, [b"no Parquet"])  # it tells nothing
    assert await vault.read(first) is vault.store
    for use in (vault.expire, vault.read):
        with pytest.raises(InvalidConfig, match=first.cluster.cluster_id):
            await use(second)
    await vault.store.delete([damaged])
    await first.produce("t", (0, [b"6"]), timestamp_ms=1000)
    assert not (await first.compact()).failures
    vault.clock.now_us += 10**9
    assert await vault.expire(first) == 1
    assert decode_mark(await vault.store.get(keys.ARCHIVE_OWNER)) == first.cluster.cluster_id


class _MarkedMeanwhile(OnePut):
    """Another cluster is faster."""

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        if key == keys.ARCHIVE_OWNER:
            await self.inner.put_if_absent(key, [encode_mark(CLUSTER_ID)])
            raise AlreadyExists(key)
        await super().put_if_absent(key, buffers)


async def test_of_two_that_begin_at_once_one_is_refused() -> None:
    vault = Vault()
    root = await vault.cluster("first")
    vault.store = _MarkedMeanwhile(vault.store)
    with pytest.raises(InvalidConfig, match=CLUSTER_ID):
        await vault.expire(root)
    assert await live_rows(root.store) == VALUES


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", DataDamaged),
        (b"[]", DataDamaged),
        (b"[" * 100_000, DataDamaged),
        (b'{"format": "ledgermq", "format_version": 1, "cluster_id": "a"}', DataDamaged),
        (b'{"format": "ledgermq-archive", "format_version": 1}', DataDamaged),
        (b'{"format": "ledgermq-archive", "format_version": 1, "cluster_id": 7}', DataDamaged),
        (b'{"format": "ledgermq-archive", "format_version": 1, "cluster_id": "\\ud800"}', DataDamaged),
        (b'{"format": "ledgermq-archive", "format_version": 2, "cluster_id": "a"}', FormatNotSupported),
    ],
)
async def test_a_mark_that_cannot_be_read_is_named(data: bytes, error: type[Exception]) -> None:
    store = MemoryStore()
    await store.put_if_absent(keys.ARCHIVE_OWNER, [data])
    with pytest.raises(error, match=keys.ARCHIVE_OWNER):
        await check_owner(store, CLUSTER_ID)


async def test_the_golden_mark_is_read_and_written() -> None:
    assert encode_mark(CLUSTER_ID) == GOLDEN.read_bytes()
    assert decode_mark(GOLDEN.read_bytes()) == CLUSTER_ID
    later = {**json.loads(GOLDEN.read_bytes()), "later": 1}
    assert decode_mark(json.dumps(later).encode()) == CLUSTER_ID


async def test_a_mark_in_the_root_itself_is_no_stranger() -> None:
    store, problems = MemoryStore(), Problems()
    await store.put_if_absent(keys.ARCHIVE_OWNER, [encode_mark(CLUSTER_ID)])
    assert await check_names(store, 2, problems) == 1
    assert problems.all == []
