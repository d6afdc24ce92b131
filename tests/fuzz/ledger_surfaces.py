"""What lies in the bucket around a ledger: segments, checkpoints, cluster.json, topic records,
snapshots, and names of objects.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from functools import cache
from typing import Any

from crc32c import crc32c

from ledgermq_ledger import keys
from ledgermq_ledger.cluster import ClusterDefaults, open_cluster, read_cluster
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.garbage.ledgers.checkpoints import remove_older
from ledgermq_ledger.log.chains.checkpoint import (
    decode_checkpoint,
    encode_checkpoint,
    newest_checkpoint,
    state_of,
)
from ledgermq_ledger.log.chains.envelope import ObjectKind
from ledgermq_ledger.log.chains.snapshot import decode_snapshot, encode_snapshot, records_of
from ledgermq_ledger.log.fold import LedgerState
from ledgermq_ledger.log.history import read_history
from ledgermq_ledger.log.internal_topic import decode_internal
from ledgermq_ledger.log.recovery import advance_checkpoint, recover
from ledgermq_ledger.log.segments.segment import TRAILER, decode_tail
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.topics.catalog import Catalog, read_catalog
from ledgermq_ledger.topics.topic import Topic, encode_topic_record, topic_key
from tests.fuzz.mutation import mutate_fields, mutate_sealed
from tests.fuzz.surface import Surface
from tests.stores.backends import seeded_sources
from tests.worlds.batches import mutate
from tests.worlds.ledgers import STATES_MAX, append_and_wait, batch, encode_values, ledger_of, own, session

BUNDLE = 1
_runner = asyncio.Runner()


def in_loop(check: Callable[[bytes], Coroutine[Any, Any, None]]) -> Callable[[bytes], None]:
    return lambda data: _runner.run(check(data))


async def _filled() -> dict[str, bytes]:
    """Two terms of bundle 1, five segments, a checkpoint after the third; and bundle 0 with a
    topic.
    """
    sources = seeded_sources()
    store = MemoryStore("seed", sources)
    await open_cluster(store, sources, ClusterDefaults(bundles=2, producer_states_max=STATES_MAX))
    first = await own(store, sources)
    await append_and_wait(first, batch(b"one", b"two", producer=session(0)), batch(b"three", partition=1))
    await append_and_wait(first, batch(b"four", producer=session(2)))
    await advance_checkpoint(ledger_of(store, BUNDLE, sources=sources))
    second = await own(store, sources, "b")
    await append_and_wait(second, batch(b"five", producer=session(3)))
    return {info.key: await store.get(info.key) async for info in store.list("")}


@cache
def objects() -> dict[str, bytes]:
    return _runner.run(_filled())


async def store_with(key: str, data: bytes) -> MemoryStore:
    """The filled root, with another object at `key`."""
    store = MemoryStore("fuzz", seeded_sources())
    for name, content in {**objects(), key: data}.items():
        await store.put(name, content)
    return store


# Segments: the tail alone, then a whole recovery over it.

LAST_SLOT = 5


def segment_seeds() -> list[bytes]:
    return [objects()[keys.segment(BUNDLE, slot)] for slot in range(1, LAST_SLOT + 1)]


def spoil_segment(rng: random.Random, data: bytes) -> bytes:
    if rng.random() < 0.5:
        tail = rng.choice((28, 200, len(data)))
        return data[:-tail] + mutate(rng, data[-tail:], data)
    position, length, _, version, zero, magic = TRAILER.unpack_from(data, len(data) - TRAILER.size)
    index = fmt.SegmentIndex.FromString(data[position : position + length])
    mutate_fields(rng, index)
    body = index.SerializeToString()
    return data[:position] + body + TRAILER.pack(position, len(body), crc32c(body), version, zero, magic)


def check_tail(data: bytes) -> None:
    """Whatever its index says: the fold takes it, calls it void, or says that it is damaged."""
    for slot in range(1, LAST_SLOT + 1):
        state = LedgerState(STATES_MAX)
        state.slot = slot - 1
        try:
            found = decode_tail(data, BUNDLE, slot)
        except Exception:
            if slot == LAST_SLOT:
                raise
            continue
        state.last_put_id, state.epoch, state.writer = found.index.previous, found.index.epoch, found.index.writer
        if found.index.kind == fmt.CLAIM:
            state.epoch -= 1
        state.apply(found.index)
        return


async def check_recovery(data: bytes) -> None:
    store = await store_with(keys.segment(BUNDLE, LAST_SLOT), data)
    recovered = await recover(ledger_of(store, BUNDLE))
    LedgerState.from_proto(recovered.state.to_proto(), STATES_MAX)
    await read_history(ledger_of(store, BUNDLE))


# Checkpoints.


def checkpoint_seeds() -> list[bytes]:
    return [objects()[keys.checkpoint(BUNDLE, 1)]]


def spoil_checkpoint(rng: random.Random, data: bytes) -> bytes:
    checkpoint = decode_checkpoint(data, keys.checkpoint(BUNDLE, 1))
    if not checkpoint.partitions:
        checkpoint.partitions.add(topic_id=7, partition=0, log_start=1, parquet_start=0, parquet_end=2, newest_page=1)
        checkpoint.removed_topics.add(topic_id=5, topic="gone", named_at_plan=1)
    return mutate_sealed(rng, ObjectKind.CHECKPOINT, checkpoint, encode_checkpoint(checkpoint))


async def check_checkpoint(data: bytes) -> None:
    store = await store_with(keys.checkpoint(BUNDLE, 1), data)
    checkpoint = await newest_checkpoint(store, BUNDLE)
    state_of(checkpoint, STATES_MAX).to_proto()
    await read_history(ledger_of(store, BUNDLE))


# The rest.


async def check_cluster(data: bytes) -> None:
    await read_cluster(await store_with(keys.CLUSTER, data))


CLUSTERS = [
    b'{"format": "ledgermq", "format_version": 1, "cluster_id": "c", "bundles": 1e999, "created_ms": 0}',
    b'{"format": "ledgermq", "format_version": [], "cluster_id": {}, "bundles": true}',
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b'{"format": "ledgermq", "format_version": 1, "cluster_id": "c", "bundles": ' + b"9" * 5000 + b"}",
]


def topic_record_seeds() -> list[bytes]:
    topic = Topic(4, "t", (1, 2), {"retention.ms": "1000", "cleanup.policy": "compact"}, created_ms=5)
    return [encode_topic_record(topic), encode_topic_record(topic, creation=True)]


def spoil_topic_record(rng: random.Random, data: bytes) -> bytes:
    if rng.random() < 0.5:
        return mutate(rng, data, data)
    record = fmt.TopicRecord.FromString(data)
    mutate_fields(rng, record)
    return record.SerializeToString()


async def check_topic_record(data: bytes) -> None:
    """As the value of a record of `__metadata`; the catalog that comes of it is used."""
    catalog = Catalog()
    catalog.apply(5, topic_key("t"), data)
    for topic in catalog.living_topics():
        assert catalog.topics_by_id[topic.id] is topic, "the two indexes of the catalog differ"
        encode_topic_record(topic)
    catalog.apply(6, topic_key("t"), None)


SNAPSHOT = fmt.Snapshot(bundle=0, plan=3, put_id=b"p" * 16)
SNAPSHOT.partitions.add(topic_id=0, partition=0, end=12).records.add(
    offset=3, key=b"topic/t", value=topic_record_seeds()[0], timestamp_us=9
)


def check_snapshot(data: bytes) -> None:
    snapshot = decode_snapshot(data, keys.snapshot(0, 3))
    catalog = Catalog()
    for record in records_of(snapshot, 0, 0)[1]:
        catalog.apply(record.offset, record.key, record.value)


def check_internal(data: bytes) -> None:
    """The checksum fits: it is not the disk's fault."""
    decode_internal(data, fmt.BatchEntry(crc=crc32c(data), base_offset=4, record_count=2), keys.segment(0, 2))


FOLDERS = ("segments/", "checkpoints/", "compactions/", "files/", "snapshots/", "")
NAMES = [
    f"{folder}{name}".encode()
    for folder in FOLDERS
    for name in ("00000000000000000002", "00000000000000000009.tmp", "x", "-1", "9" * 30)
]


async def check_names(data: bytes) -> None:
    """An object of a strange name beside the true ones, in each of a bundle's folders."""
    name = "".join(c for c in data.decode("latin-1") if (c.isalnum() and c.isascii()) or c in "._-=/").strip("/")
    key = f"{keys.ledger(BUNDLE)}{name or 'x'}"
    if key in objects() or any(part in ("", ".", "..") for part in key.split("/")):
        return
    store = await store_with(key, b"foreign")
    await recover(ledger_of(store, BUNDLE))
    await read_history(ledger_of(store, BUNDLE))
    await read_catalog(ledger_of(store, 0))
    await remove_older(store, fmt.Checkpoint(bundle=BUNDLE, number=1))


def key_seeds() -> list[bytes]:
    name, hidden = (keys.ParquetName(topic, 3, 0, 99, 7, 2).key for topic in ("flights", None))
    return [
        name.encode(),
        hidden.encode(),
        keys.fence(1, 2, b"p" * 16).encode(),
        b"parquet/topic=/partition=/0-1-2-3.parquet",
    ]


def check_keys(data: bytes) -> None:
    text = data.decode("latin-1")
    found = keys.parse_parquet(text)
    if found is not None and text.isascii():
        assert keys.parse_parquet(found.key) == found
    keys.parse_fence(text)


def surfaces() -> list[Surface]:
    return [
        Surface("segment-tail", segment_seeds(), check_tail, spoil_segment, weight=4),
        Surface("recovery", segment_seeds()[-1:], in_loop(check_recovery), spoil_segment, weight=2),
        Surface("checkpoint", checkpoint_seeds(), in_loop(check_checkpoint), spoil_checkpoint, weight=2),
        Surface("cluster.json", [objects()[keys.CLUSTER], *CLUSTERS], in_loop(check_cluster)),
        Surface("topic-record", topic_record_seeds(), in_loop(check_topic_record), spoil_topic_record),
        Surface(
            "snapshot",
            [encode_snapshot(SNAPSHOT)],
            check_snapshot,
            lambda rng, data: mutate_sealed(rng, ObjectKind.SNAPSHOT, SNAPSHOT, data),
        ),
        Surface(
            "internal-batch", [encode_values([b"a", b"b"]), encode_values([b"c"], compression="zstd")], check_internal
        ),
        Surface("object-names", NAMES, in_loop(check_names)),
        Surface("parquet-keys", key_seeds(), check_keys),
    ]
