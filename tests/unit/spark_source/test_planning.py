"""What planning asks of a store: only ledgers that are read, several partitions at a time, and of
Parquet files the times alone.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from ledgermq.errors import InvalidConfig
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.garbage.topics.retention import log_start_move
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.object_store.contract import ObjectInfo, ObjectMissing, ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from ledgermq_ledger.parquet import reader
from ledgermq_ledger.parquet.files import columns
from ledgermq_ledger.topics.topic import METADATA, encode_topic_record, topic_key
from ledgermq_spark.source.options import parse_options
from ledgermq_spark.source.ranges.planning import plan_query
from tests.worlds.ledgers import ledger_of
from tests.worlds.roots import Root, parquet_keys

BATCHES, ROWS = 4, 50


class Watched(StoreWrapper):
    """`asked`: what was, with the bytes that came; `footers`: those of files. `most`: how many
    ranges were asked for side by side.
    """

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.asked: list[tuple[str, int]] = []
        self.footers: list[str] = []
        self.running = self.most = 0

    def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        self.asked.append((prefix, 0))
        return super().list(prefix, start_after)

    async def get_suffix(self, key: str, length: int) -> bytes:
        data = await super().get_suffix(key, length)
        self.asked.append((key, len(data)))
        self.footers.append(key)
        return data

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.001)
        self.running -= 1
        self.asked.append((key, length))
        return await super().get_range(key, start, length)


@pytest.fixture
async def root(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> Root:
    """Topic t: partitions 0 to 2 in bundle 1, 3 in bundle 2; four batches of 50 records each, which
    are row groups in Parquet files.

    The times of a batch are its number and one thousandth for each record, in seconds.
    """
    monkeypatch.setattr(columns, "row_group_bytes_of", lambda file: 1)
    root = await Root.open(MemoryStore("planning", sources), sources, bundles=3)
    topic = replace(await root.create_topic("t", 3), bundles=(1, 1, 1, 2))
    await root.put_internal(METADATA, topic_key("t"), encode_topic_record(topic))
    root.topics["t"] = topic
    noise = random.Random(7)
    for number in range(BATCHES):
        for partition in range(4):
            await root.produce(
                "t", (partition, [noise.randbytes(20_000) for _ in range(ROWS)]), timestamp_ms=1000 * number
            )
    await root.compact()
    return root


async def spans(store: ObjectStore, **options: str) -> dict[int, tuple[int, int]]:
    """First offset and end by partition, of what is read."""
    found: dict[int, tuple[int, int]] = {}
    for task in await plan_query(store, parse_options({"root": "memory://planning", "topic": "t", **options})):
        for part in task:
            first, _ = found.get(part.range.key[1], (part.range.first, 0))
            found[part.range.key[1]] = first, part.range.end
    return found


async def test_only_ledgers_of_partitions_that_are_read_are_opened(root: Root) -> None:
    store = Watched(root.store)
    assert await spans(store, partitions="0,2") == {0: (0, 200), 2: (0, 200)}
    assert keys.segments(1) in dict(store.asked)
    assert keys.segments(2) not in dict(store.asked)


async def test_a_time_is_looked_for_in_the_times_of_one_row_group_of_several_partitions_at_once(root: Root) -> None:
    store = Watched(root.store)
    assert await spans(
        store, startingTimestamp="1970-01-01T00:00:02Z", endingTimestamp="1970-01-01T00:00:03Z"
    ) == dict.fromkeys(range(4), (100, 150))
    sizes = [size for key, size in store.asked if keys.parse_parquet(key)]
    assert sum(sizes) < 4 * 100_000, "of a megabyte in each row group"
    assert store.most > 1


async def move(store: ObjectStore, key: str) -> None:
    """A file goes to the archive."""
    await store.put(keys.archived(key), await store.get(key))
    await store.delete([key])


class Moving(Watched):
    """A file that is looked for in the archive goes there just after that."""

    async def get_suffix(self, key: str, length: int) -> bytes:
        try:
            return await super().get_suffix(key, length)
        except ObjectMissing:
            if (name := keys.parse_archived(key)) is not None:
                await move(self.inner, name.key)
            raise


async def take_all(root: Root, *, moved: bool) -> None:
    """Retention has taken every record, for the archive; the files are there, or still on their
    way.
    """
    await root.alter_topic("t", delete_action="archive")
    topic = root.topics["t"]
    for bundle in (1, 2):
        ends = {PartitionId(topic.id, p): len(root.produced["t", p]) for p in range(4) if topic.bundles[p] == bundle}
        await advance_checkpoint(ledger_of(root.store, bundle, sources=root.sources), log_start_move(ends))
    for key in await parquet_keys(root.store) if moved else []:
        await move(root.store, key)


@pytest.mark.parametrize("where", ["archive", "live", "moving"])
async def test_in_an_archive_a_time_is_looked_for_in_the_times_of_one_row_group(root: Root, where: str) -> None:
    await take_all(root, moved=where == "archive")
    store = (Moving if where == "moving" else Watched)(root.store)
    times = {"startingTimestamp": "1970-01-01T00:00:02Z", "endingTimestamp": "1970-01-01T00:00:03Z"}
    assert await spans(store, includeArchive="true", **times) == dict.fromkeys(range(4), (100, 150))
    assert bool(await parquet_keys(root.store)) == (where == "live")
    sizes = [size for key, size in store.asked if keys.parse_parquet(key) or keys.parse_archived(key)]
    assert sum(sizes) < 5 * 100_000, "of a megabyte in each row group; the first file tells whose archive it is"
    assert await spans(store, includeArchive="true", startingTimestamp="1970-01-01T00:00:09Z") == {}


async def test_a_later_time_is_looked_for_behind_an_earlier_one(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """So footers of an archive are read once for both times of a query, however few are kept."""
    for number in range(BATCHES, BATCHES + 3):
        await root.produce("t", (0, [b"%d" % number] * ROWS), timestamp_ms=1000 * number)
        await root.compact()
    await take_all(root, moved=True)
    monkeypatch.setattr(reader, "FOOTERS_MAX", 1)
    store = Watched(root.store)
    times = {"startingTimestamp": "1970-01-01T00:00:04Z", "endingTimestamp": "1970-01-01T00:00:06Z"}
    assert await spans(store, includeArchive="true", partitions="0", **times) == {0: (200, 300)}
    assert len([key for key in store.footers if keys.parse_archived(key)]) == 1 + 4, (
        "whose archive it is, and four files"
    )
    times = {"startingTimestamp": "1970-01-01T00:00:06Z", "endingTimestamp": "1970-01-01T00:00:04Z"}
    with pytest.raises(InvalidConfig, match="endingTimestamp is before startingTimestamp"):
        await spans(store, includeArchive="true", partitions="0", **times)


async def test_an_end_below_the_start_names_the_partition(root: Root) -> None:
    starts, ends = {"startingOffsets": '{"t": {"1": 20}}'}, {"endingOffsets": '{"t": {"1": 10}}'}
    with pytest.raises(InvalidConfig, match="t/1: endingOffsets is 10, below startingOffsets, 20"):
        await spans(root.store, **starts, **ends)
    with pytest.raises(InvalidConfig, match="t/1: endingOffsets is 10, below"):
        await spans(root.store, startingOffsets="latest", **ends)
    assert 1 not in await spans(root.store, startingOffsets='{"t": {"1": 10}}', **ends)
