"""Where batches are, for callers that can read the store themselves: only those that the broker
would have to read from segments.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from ledgermq.protocol.batches.batch_header import check_crc
from ledgermq.sources import Sources
from ledgermq_broker.bundle.shared.context import BundleLimits
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.view import reader
from tests.stores.backends import file_store
from tests.unit.bundle.counted_reads import NO_CACHE, CountingStore, Sums, compact
from tests.worlds.bundles import TOPIC, bundle_context, fetch_values, opened, produce
from tests.worlds.ledgers import batch


@pytest.fixture
async def store(tmp_path: Path, sources: Sources) -> AsyncIterator[CountingStore]:
    async with file_store(tmp_path / "a root", sources) as inner:
        yield CountingStore(inner)


def object_at(url: str) -> bytes:
    return Path(unquote(urlsplit(url).path)).read_bytes()


async def test_batches_outside_the_cache_are_located_and_not_read(store: CountingStore, sources: Sources) -> None:
    sums = Sums()
    async with opened(bundle_context(store, sources, NO_CACHE, sums)) as owner:
        sent = [batch(b"a"), batch(b"b"), batch(b"c")]
        await produce(owner, sent[0], batch(b"x", partition=1), sent[1])
        await produce(owner, sent[2])
        found = await owner.fetch(TOPIC, 0, 0, 1 << 20, direct=True)
    assert (found.high_watermark, found.batches, store.ranges) == (3, [], [])
    assert [each.batch.base_offset for each in found.located] == [0, 1, 2]
    assert len({each.url for each in found.located}) == 2
    for each, wanted in zip(found.located, sent, strict=True):
        data = object_at(each.url)[each.batch.position :][: each.batch.length]
        assert data == wanted.data
        check_crc(data, each.batch.crc)
    assert list(sums.sources) == ["direct"]


async def test_an_offset_within_a_batch_is_located_with_its_batch_and_no_more_bytes_than_asked_for(
    store: CountingStore, sources: Sources
) -> None:
    async with opened(bundle_context(store, sources, NO_CACHE)) as owner:
        await produce(owner, batch(b"a", b"b"), batch(b"c"), batch(b"d"))
        found = await owner.fetch(TOPIC, 0, 1, len(batch(b"a", b"b").data) + len(batch(b"c").data), direct=True)
        assert [(each.batch.base_offset, each.batch.end) for each in found.located] == [(0, 2), (2, 3)]
        assert (await owner.fetch(TOPIC, 0, 4, 100, direct=True)).located == []


async def test_cached_batches_come_as_bytes(store: CountingStore, sources: Sources) -> None:
    async with opened(bundle_context(store, sources)) as owner:
        await produce(owner, batch(b"a"))
        found = await owner.fetch(TOPIC, 0, 0, 1 << 20, direct=True)
    assert (len(found.batches), found.located) == (1, [])


async def test_a_store_that_cannot_be_shared_is_read_by_the_broker(sources: Sources) -> None:
    async with opened(bundle_context(MemoryStore("alone", sources), sources, NO_CACHE)) as owner:
        await produce(owner, batch(b"a"))
        found = await owner.fetch(TOPIC, 0, 0, 1 << 20, direct=True)
    assert (len(found.batches), found.located) == (1, [])


async def test_batches_that_were_compacted_and_trimmed_come_as_bytes(store: CountingStore, sources: Sources) -> None:
    context = bundle_context(store, sources, BundleLimits(cache_bytes_max=0, background_compaction=False))
    async with opened(context) as owner:
        await produce(owner, batch(b"a"), batch(b"b"))
        await compact(context)
        await owner._ledger.view.look()
        found = await owner.fetch(TOPIC, 0, 0, 1 << 20, direct=True)
        assert found.located == []
        assert found.batches[0].base_offset == 0
        assert await fetch_values(owner, 0) == [b"a", b"b"]


async def test_no_more_segments_are_named_than_an_answer_has_room_for(
    store: CountingStore, sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "SHARED_MAX", 3)
    async with opened(bundle_context(store, sources, NO_CACHE)) as owner:
        for number in range(5):
            await produce(owner, batch(b"%d" % number))
        found = await owner.fetch(TOPIC, 0, 0, 1 << 20, direct=True)
    assert [each.batch.base_offset for each in found.located] == [0, 1, 2]
