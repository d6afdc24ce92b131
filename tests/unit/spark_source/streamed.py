"""Queries of a stream without Spark, and the root that they read."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.datasource import ReadLimit

from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.garbage.topics.retention import log_start_move
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.object_store.file.store import FileStore
from ledgermq_ledger.topics.topic import METADATA, Topic, encode_topic_record, topic_key
from ledgermq_spark.source.streaming.stream import StreamReader
from tests.worlds.ledgers import ledger_of
from tests.worlds.roots import Root
from tests.worlds.source_readers import stream_reader
from tests.worlds.source_root import compact, fill

Row = tuple[str, int, int]
ADDED = 5
"""The bundle that is added to a cluster with five."""


class Query:
    """Asks a reader as Spark does: positions go through JSON, tasks through pickle, to a reader of
    their own.
    """

    def __init__(self, folder: Path, **options: str) -> None:
        named = {} if {"topics", "topicsPattern"} & options.keys() else {"topic": "t"}
        self.options = {"root": str(folder), **named, **options}
        self.reader = self._reader()
        self.at: dict[str, Any] | None = None

    def _reader(self) -> StreamReader:
        return stream_reader(self.options)

    def batch(self, limit: ReadLimit | None = None) -> list[Row]:
        """The next one; nothing: there is nothing new."""
        self.begin = json.loads(json.dumps(self.reader.initialOffset())) if self.at is None else self.at
        self.at = json.loads(
            json.dumps(self.reader.latestOffset(self.begin, limit or self.reader.getDefaultReadLimit()))
        )
        return [] if self.at == self.begin else self.rows(self.begin, self.at)

    def rows(self, begin: dict[str, Any], end: dict[str, Any]) -> list[Row]:
        found = []
        for task in self.reader.partitions(begin, end):
            for batch in self._reader().read(pickle.loads(pickle.dumps(task))):
                found += [(row["topic"], row["partition"], row["offset"]) for row in batch.to_pylist()]
        return sorted(found)

    def restart(self, **options: str) -> None:
        """The process is gone; what it had said is in the checkpoint."""
        self.reader.stop()
        self.options |= options
        self.reader = self._reader()


class Place:
    """A root, in a folder, and the queries that read it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.queries: list[Query] = []

    def query(self, **options: str) -> Query:
        self.queries.append(Query(self.folder, **options))
        return self.queries[-1]

    def produce(self, *batches: tuple[int, int], topic: str = "t") -> None:
        """(partition, number of records)"""

        async def work(root: Root) -> None:
            await root.produce(topic, *((partition, [b"v"] * count) for partition, count in batches))

        self._run(work)

    def create(self, name: str, partitions: int = 1, bundle: int = 2) -> None:
        async def work(root: Root) -> None:
            await root.create_topic(name, partitions, bundle)

        self._run(work)

    def add_bundle(self) -> None:
        self._run(lambda root: root.add_bundles(ADDED + 1))

    def add_partition(self) -> None:
        async def work(root: Root) -> None:
            topic = root.topics["t"]
            grown = Topic(topic.id, "t", (*topic.bundles, 2), topic.raw_settings, topic.settings)
            await root.put_internal(METADATA, topic_key("t"), encode_topic_record(grown))

        self._run(work)

    def delete(self) -> None:
        """Topic t, so that its name is free at once."""

        async def work(root: Root) -> None:
            await root.remove_topic("t")
            await root.put_internal(METADATA, topic_key("t"), None)

        self._run(work)

    def delete_records(self, before: int, name: str = "t", partition: int = 0) -> None:
        """As retention does: first the log start moves, then files go that lie below it."""

        async def work(root: Root) -> None:
            topic = root.topics[name]
            key, bundle = PartitionId(topic.id, partition), topic.bundles[partition]
            assert await advance_checkpoint(
                ledger_of(root.store, bundle, sources=root.sources), log_start_move({key: before})
            )
            assert await advance_checkpoint(
                ledger_of(root.store, bundle, sources=root.sources), partial(_forget, key=key, before=before)
            )
            for file in [info.key async for info in root.store.list(keys.PARQUET)]:
                parsed = keys.parse_parquet(file)
                if parsed and (parsed.topic_id, parsed.partition) == key and parsed.last_offset < before:
                    await root.store.delete([file])

        self._run(work)

    def compact(self) -> None:
        asyncio.run(compact(self.folder))

    def move(self, bundle: int, partition: int = 0) -> None:
        """A partition of topic t."""
        self._run(lambda root: root.move("t", partition, bundle))

    def begin_move(self, bundle: int, partition: int = 0) -> None:
        """The partition is open in the other bundle, and its files are where they were."""

        async def work(root: Root) -> None:
            await root.decide_move("t", partition, bundle)
            await root.seal("t", partition)
            await root.open_moved("t", partition)

        self._run(work)

    def end_move(self, partition: int = 0) -> None:
        async def work(root: Root) -> None:
            await root.hand_over("t", partition)
            await root.end_move("t", partition)

        self._run(work)

    def _run(self, work: Any) -> None:
        async def run() -> None:
            async with FileStore(self.folder, Sources()) as store:
                root = await Root.open(store, Sources())
                root.topics = dict((await root.catalog()).topics_by_name)
                await work(root)

        asyncio.run(run())


def _forget(draft: fmt.Checkpoint, key: tuple[int, int], before: int) -> bool:
    for part in draft.partitions:
        part.parquet_start = max(part.parquet_start, before if (part.topic_id, part.partition) == key else 0)
    return True


def a_place(tmp_path: Path) -> Iterator[Place]:
    asyncio.run(fill(tmp_path / "root"))
    place = Place(tmp_path / "root")
    yield place
    for query in place.queries:
        query.reader.stop()


def rows(topic: str, partition: int, first: int, end: int) -> list[Row]:
    return [(topic, partition, offset) for offset in range(first, end)]


def wait_for(query: Query) -> list[Row]:
    """Until something comes; the catalog is looked at every second."""
    for _ in range(100):
        if found := query.batch():
            return found
    raise AssertionError("nothing came")


def batches_until(query: Query, is_done: Callable[[], bool] = lambda: False) -> list[Row]:
    found: list[Row] = []
    for _ in range(100):
        found += query.batch()
        if is_done():
            break
    return found
