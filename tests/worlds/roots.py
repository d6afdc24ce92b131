"""Whole roots for tests of Parquet compaction: a cluster, topics in `__metadata`, records in
ledgers, and what Parquet holds of them.
"""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from ledgermq.errors import DataDamaged
from ledgermq.protocol.batches.records import SCHEMA, decode_batch, encode_batch
from ledgermq.sources import Sources
from ledgermq_broker.metadata.topic_changes import move_ended, moved
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.cluster import CHECKSUM, ClusterDefaults, ClusterSettings, checksum_of, mark_grown, open_cluster
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint, partition_of
from ledgermq_ledger.log.history import read_history
from ledgermq_ledger.log.partitions.moves import open_after
from ledgermq_ledger.log.segments.segment import Batch
from ledgermq_ledger.log.writing.writer import LedgerWriter
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.parquet.hand_over import has_forgotten
from ledgermq_ledger.parquet.report import CompactionReport
from ledgermq_ledger.rounds.runner import compact_root
from ledgermq_ledger.topics.catalog import Catalog, read_catalog
from ledgermq_ledger.topics.settings import CLUSTER_BUNDLES, parse_stored_settings
from ledgermq_ledger.topics.topic import METADATA, Topic, encode_topic_record, removed, topic_key
from tests.worlds.ledgers import append_and_wait, batch, ledger_of, take_over


class Root:
    """`produced`: every acknowledged value, by (topic name, partition), in order of offset."""

    def __init__(self, store: ObjectStore, sources: Sources, cluster: ClusterSettings) -> None:
        self.store = store
        self.sources = sources
        self.cluster = cluster
        self.produced: dict[tuple[str, int], list[bytes]] = {}
        self.topics: dict[str, Topic] = {}
        self.writers: dict[int, LedgerWriter] = {}

    @classmethod
    async def open(cls, store: ObjectStore, sources: Sources, bundles: int = 2) -> Root:
        defaults = ClusterDefaults(bundles=bundles, url_life_ms=5_000, parquet_min_age_ms=20_000)
        root = cls(store, sources, await open_cluster(store, sources, defaults))
        await root.put_internal(METADATA, topic_key(METADATA.name), encode_topic_record(METADATA, creation=True))
        return root

    async def writer(self, bundle: int) -> LedgerWriter:
        if bundle not in self.writers or self.writers[bundle].lost is not None:
            self.writers[bundle] = await take_over(
                ledger_of(self.store, bundle, cluster=self.cluster, sources=self.sources), "test"
            )
        return self.writers[bundle]

    async def put_internal(self, topic: Topic, key: bytes, value: bytes | None, partition: int = 0) -> int:
        """One record of an internal topic; its offset."""
        data = encode_batch(pa.RecordBatch.from_pylist([{"key": key, "value": value}], SCHEMA))
        writer = await self.writer(topic.bundles[partition])
        return (await append_and_wait(writer, Batch(topic.id, partition, 1, crc32c(data), 0, 0, data)))[0]

    async def create_topic(self, name: str, partitions: int = 1, bundle: int = 1, **settings: str) -> Topic:
        raw = {key.replace("_", "."): value for key, value in settings.items()}
        topic = Topic(0, name, (bundle,) * partitions, raw, parse_stored_settings(raw))
        offset = await self.put_internal(METADATA, topic_key(name), encode_topic_record(topic, creation=True))
        self.topics[name] = Topic(offset, name, topic.bundles, raw, topic.settings)
        return self.topics[name]

    async def add_bundles(self, bundles: int) -> None:
        """As the controller does where no internal topic has partitions in each bundle. `bundles`: of the
        cluster then; `self.cluster` stays as a process knows it that is older than they are.
        """
        await mark_grown(self.store, self.cluster)
        raw = {CLUSTER_BUNDLES: str(bundles)}
        grown = replace(METADATA, raw_settings=raw, settings=parse_stored_settings(raw))
        await self.put_internal(METADATA, topic_key(grown.name), encode_topic_record(grown))

    async def alter_topic(self, name: str, **settings: str) -> None:
        topic = self.topics[name]
        raw = topic.raw_settings | {key.replace("_", "."): value for key, value in settings.items()}
        self.topics[name] = replace(
            topic, raw_settings=raw, settings=parse_stored_settings(raw), altered_ms=self.sources.now_ms()
        )
        await self.put_internal(METADATA, topic_key(name), encode_topic_record(self.topics[name]))

    async def remove_topic(self, name: str) -> None:
        await self.put_internal(METADATA, topic_key(name), encode_topic_record(removed(self.topics[name])))

    async def decide_move(self, name: str, partition: int, bundle: int) -> None:
        """As the controller does: the first step of a move. The others are `seal`, `open_moved`, `hand_over` and
        `end_move`, and `move` does all of them.
        """
        topic = moved(await self.catalog(), name, partition, bundle, self.cluster.bundles)
        await self._put_topic(topic)

    async def seal(self, name: str, partition: int) -> None:
        topic, key = self.topics[name], PartitionId(self.topics[name].id, partition)
        move = topic.moves[partition]
        sealed = (await self.writer(move.source)).seal(key, move.id, topic.bundles[partition], move.before)
        assert sealed is not None
        await sealed

    async def open_moved(self, name: str, partition: int) -> None:
        topic = self.topics[name]
        source = topic.moves[partition].source
        seal = (await self.writer(source)).durable.moves.seal_of(PartitionId(topic.id, partition))
        assert seal is not None
        opened = (await self.writer(topic.bundles[partition])).open_partition(open_after(seal, source))
        assert opened is not None
        await opened

    async def hand_over(self, name: str, partition: int) -> None:
        """Rounds until the old bundle has forgotten the partition. The catalog does not know yet."""
        topic, key = self.topics[name], PartitionId(self.topics[name].id, partition)
        move, engine = topic.moves[partition], LocalEngine(self.sources, run_inline)
        bundles = [move.source, topic.bundles[partition]]
        while not has_forgotten(await self.newest(move.source), key, move.id):
            assert not (await compact_root(self.store, self.sources, engine, bundles=bundles)).failures

    async def end_move(self, name: str, partition: int) -> None:
        topic = self.topics[name]
        ended = move_ended(await self.catalog(), topic.id, partition, topic.moves[partition].id)
        assert ended is not None
        await self._put_topic(ended)

    async def move(self, name: str, partition: int, bundle: int) -> None:
        await self.decide_move(name, partition, bundle)
        await self.seal(name, partition)
        await self.open_moved(name, partition)
        await self.hand_over(name, partition)
        await self.end_move(name, partition)

    async def _put_topic(self, topic: Topic) -> None:
        await self.put_internal(METADATA, topic_key(topic.name), encode_topic_record(topic))
        self.topics[topic.name] = (await self.catalog()).topics_by_name[topic.name]

    async def produce(self, name: str, *batches: tuple[int, list[bytes]], timestamp_ms: int = 1000) -> None:
        """One segment with these batches: (partition, values)."""
        topic = self.topics[name]
        writer = await self._writer_of(topic, batches[0][0])
        await append_and_wait(
            writer, *(batch(*v, topic_id=topic.id, partition=p, timestamp_ms=timestamp_ms) for p, v in batches)
        )
        for partition, values in batches:
            self.produced.setdefault((name, partition), []).extend(values)

    async def _writer_of(self, topic: Topic, partition: int) -> LedgerWriter:
        """Return the writer of the bundle that takes the partition's records: the old one until it has sealed it."""
        move = topic.moves.get(partition)
        if move is not None and not move.ended:
            old = await self.writer(move.source)
            if old.durable.moves.move(PartitionId(topic.id, partition)) < move.id:
                return old
        return await self.writer(topic.bundles[partition])

    async def catalog(self) -> Catalog:
        return await read_catalog(ledger_of(self.store, 0, cluster=self.cluster))

    async def compact(self, store: ObjectStore | None = None, sources: Sources | None = None) -> CompactionReport:
        """By hand, everything; another `store` may be a wrapper of the same objects."""
        engine = LocalEngine(sources or self.sources, run_inline)
        return await compact_root(store or self.store, sources or self.sources, engine)

    async def newest(self, bundle: int = 1) -> fmt.Checkpoint:
        return await newest_checkpoint(self.store, bundle)


class NoTasks(StoreWrapper):
    """`root.compact(NoTasks(root.store))` fails, and leaves a plan behind."""

    async def fenced_puts(self, fence: str, keys: object, url_life_ms: int) -> object:  # type: ignore[override]
        raise DataDamaged("no tasks")


async def parquet_keys(store: ObjectStore, folder: str = keys.PARQUET) -> list[str]:
    return [info.key async for info in store.list(folder)]


async def read_parquet_rows(store: ObjectStore, folder: str = keys.PARQUET) -> dict[tuple[str, int], dict[int, bytes]]:
    """What a plain reader of `parquet/` sees, or of another folder: (topic, partition) → offset →
    value; asserts each offset once, gapless. As Spark does, it passes over names that begin with "_".
    """
    found: dict[tuple[str, int], dict[int, bytes]] = {}
    for key in await parquet_keys(store, folder):
        if "/_" in key.removeprefix(folder):
            continue
        table = pq.ParquetFile(io.BytesIO(await store.get(key))).read()
        for row in table.select(["topic", "partition", "offset", "value"]).to_pylist():
            rows = found.setdefault((row["topic"], row["partition"]), {})
            assert row["offset"] not in rows, f"{key}: offset {row['offset']} is there twice"
            rows[row["offset"]] = row["value"]
    for part, rows in found.items():
        assert sorted(rows) == list(range(min(rows), max(rows) + 1)), f"{part}: a gap"
    return found


async def read_segments(root: Root, name: str) -> dict[tuple[str, int], dict[int, bytes]]:
    """What the segments that are not trimmed hold of a topic: (topic, partition) → offset → value."""
    topic = root.topics[name]
    found: dict[tuple[str, int], dict[int, bytes]] = {}
    for bundle in set(topic.bundles):
        for slot in (await read_history(ledger_of(root.store, bundle, cluster=root.cluster))).segments:
            for entry in slot.index.batches:
                if entry.topic_id == topic.id:
                    data = await root.store.get_range(
                        keys.segment(bundle, slot.index.slot), entry.position, entry.length
                    )
                    rows = found.setdefault((name, entry.partition), {})
                    rows |= dict(enumerate(decode_batch(data).column("value").to_pylist(), entry.base_offset))
    return found


async def read_rows(root: Root) -> dict[tuple[str, int], dict[int, bytes]]:
    """Parquet, then the segments behind it: what all readers together see: (topic, partition) →
    offset → value; asserts no gap.
    """
    parquet = await read_parquet_rows(root.store)
    result: dict[tuple[str, int], dict[int, bytes]] = {}
    for topic in root.topics.values():
        segments = await read_segments(root, topic.name)
        for partition, bundle in enumerate(topic.bundles):
            part = (topic.name, partition)
            counters = partition_of(await newest_checkpoint(root.store, bundle), topic.id, partition)
            rows = {offset: value for offset, value in parquet.get(part, {}).items() if offset < counters.parquet_end}
            rows = segments.get(part, {}) | rows
            if rows:
                assert sorted(rows) == list(range(min(rows), max(rows) + 1)), f"{part}: a gap"
                result[part] = rows
    return result


async def read_everything(root: Root) -> dict[tuple[str, int], list[bytes]]:
    """As `read_rows`: the values, in order of offset."""
    return {part: [rows[offset] for offset in sorted(rows)] for part, rows in (await read_rows(root)).items()}


def cluster_with(data: bytes, **fields: object) -> bytes:
    """A `cluster.json` with other fields, and the checksum that fits them: as another release
    writes it.
    """
    changed = json.loads(data) | fields
    changed.pop(CHECKSUM, None)
    return json.dumps(changed | {CHECKSUM: checksum_of(changed)}).encode()
