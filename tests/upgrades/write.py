"""Writes the golden root of this version, once: `make golden`, as a step of every release
(docs/upgrades.md). `make golden RELEASE=1.2.3` writes that of a release which is being made.

    tests/golden/roots/<version>/root/
        a whole cluster: every kind of object, written by real processes of this version
    tests/golden/roots/<version>/expected.json
        what was acknowledged, which every later version has to find there
    tests/golden/roots/<version>/calls.json
        what a client of this version says to a broker on that root, and what it is told (`calls`)
    tests/golden/descriptors/<version>.binpb
        what this version declares in protobuf, of which nothing may ever change

A root that exists is never written again: it stands for what users have. Files of a few kilobytes:
git keeps them forever.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import ledgermq
from infra.protobuf import all_protos, descriptors
from ledgermq.client.messages.record import Record
from ledgermq.errors import UnknownTopic
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import ClusterSettings, read_cluster
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.garbage.sweep import collect_garbage
from ledgermq_ledger.log.recovery import recover
from ledgermq_ledger.log.segments.segment import encode_segment, first_batch_position
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.file.store import FileStore
from ledgermq_ledger.open_root import opened
from ledgermq_ledger.parquet.compacting.round import run_round
from ledgermq_ledger.parquet.compacting.task import CompactionTask, TaskOutcome
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import TASK_MEMORY_BYTES, OnTaskDone
from ledgermq_ledger.topics.catalog import read_catalog
from tests.e2e.processes import QUICK, BrokerProcesses
from tests.upgrades.calls import record_calls
from tests.upgrades.delayed import LEFT_OPTIONS, leave_delayed, leave_in_the_intake
from tests.upgrades.delayed import PARTITIONS as TIMED_PARTITIONS
from tests.upgrades.golden import ROOTS, TIMED, Expected
from tests.upgrades.transactions import LEFT, STATES, leave_transactions
from tests.worlds.ledgers import ledger_of

DESCRIPTORS = ROOTS.parent / "descriptors"
OPTIONS = (*QUICK, "--bundles", "4", "--checkpoint-slots", "8", "--offsets-partitions", "4")
OPTIONS += ("--constant-url-life-ms=1000", "--constant-parquet-min-age-ms=4000")
FLIGHTS, TUNED, GONE, GOING, PRICES, MOVES = "flights", "tuned", "gone", "going", "prices", "moves"
TUNED_SETTINGS = {
    "retention.ms": 10**15,
    "retention.bytes": 10**15,
    "compression.type": "zstd",
    "max.message.bytes": 100_000,
    "accept.subscribe": True,
    "parquet.target.bytes": 2048,
    "parquet.bloom.key": True,
}
TIMESTAMP_US = 1_700_000_000_000_000
PARTITIONS = 3


class _Writer:
    """Everything that it has been told is stored goes to `expected`."""

    def __init__(self, client: ledgermq.Client, expected: Expected) -> None:
        self.client = client
        self.expected = expected

    async def produce(self, topic: str, partition: int, records: Sequence[Record], **settings: object) -> None:
        async with self.client.producer(linger_ms=0, **settings) as producer:
            for record in records:
                done = await producer.send(topic, *record._replace(partition=partition))
                self.expected.note(topic, partition, done.offset, record)

    async def fill(self, name: str) -> None:
        """A few records to each partition of each living topic, by each codec and by a producer
        without idempotence.
        """
        for partition in range(PARTITIONS):
            for codec in ("none", "lz4", "zstd"):
                await self.produce(FLIGHTS, partition, _records(f"{name}/{partition}/{codec}"), compression=codec)
        await self.produce(FLIGHTS, 0, _records(f"{name}/plain")[:2], idempotent=False)
        await self.produce(TUNED, 0, _records(f"{name}/tuned"))
        async with self.client.producer() as producer:
            for key, value in (("EUR", f"{name} price"), (name, "once"), ("DEM", None if name == "third" else "gone")):
                await producer.send(PRICES, value, key=key, partition=0)
                latest = self.expected.latest.setdefault(PRICES, {})
                latest.pop(key, None)
                if value is not None:
                    latest[key] = value

    async def consume(self, group: str, count: int, instance_id: str = "") -> None:
        """A member takes some messages, commits what it took, and goes away; a static one without
        leaving the group.
        """
        settings = {"instance_id": instance_id, "commit": "manual", "client_id": "golden"}
        async with self.client.consumer(FLIGHTS, group=group, **settings) as consumer:
            taken: list[ledgermq.GroupMessage] = []
            while len(taken) < count:
                taken += await consumer.fetch(count - len(taken), timeout=10)
            await consumer.commit(taken, metadata="kept with the offset")
            committed = await consumer.committed()
        self.expected.committed[group] = {
            str(part.partition): offset for part, offset in committed.items() if offset is not None
        }


def _records(name: str) -> list[Record]:
    def at(number: int) -> int:
        return TIMESTAMP_US + number

    return [
        Record(f"{name}: text", "key", {"h": b"\x00\xff", "null": None}, "red", at(0)),
        Record(b"", b"", [("twice", b"1"), ("twice", b"2")], None, at(1)),
        Record(None, "tombstone", None, "blue", at(2)),
        Record((name * 40).encode(), None, None, None, at(3)),
        Record(bytes(range(256)), b"\x00", None, "ü", at(4)),
    ]


async def write(folder: Path, release: str) -> None:
    """Raises FileExistsError where this version has its root already."""
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        expected = Expected(release)
        root = work / "root"
        with BrokerProcesses(work, root.as_uri(), OPTIONS) as brokers:
            await _live(brokers, expected)
        async with opened(root.as_uri(), Sources()) as store:
            cluster = await read_cluster(store)
            collected = await collect_garbage(store, cluster)  # as a compaction service does after a topic's removal
            assert not collected.failures
            await _leave_unfinished(store, cluster)
        shutil.copytree(root, folder / "root", ignore=shutil.ignore_patterns(".tmp", ".probe-*", ".reserve", "_tmp"))
        expected.save(folder)
        await record_calls(work, root, FLIGHTS, folder)


async def _live(brokers: BrokerProcesses, expected: Expected) -> None:
    """Two terms: the first broker is killed, the second hands over.

    One topic is removed for good, another has only been named so.
    """
    first = await asyncio.to_thread(brokers.start, "--broker-id", "first")
    async with ledgermq.connect(first.address) as client:
        writer = _Writer(client, expected)
        await client.create_topic(FLIGHTS, PARTITIONS)
        await client.create_topic(TUNED, 1, TUNED_SETTINGS)
        await client.create_topic(PRICES, 1, {"cleanup.policy": "compact"})
        for name in (GONE, GOING):
            await client.create_topic(name, 1)
            await writer.produce(name, 0, _records(name))
        await writer.fill("first")
        await writer.consume("readers", 12)
        await writer.consume("forgotten", 5)
        await client.groups.delete("forgotten")
        await asyncio.to_thread(_compact, brokers.root_url)
        await client.delete_topic(GONE)
        await _wait_gone(client, brokers.root_url)
        await writer.fill("second")
        await writer.consume("readers", 9, "static-1")
    brokers.kill(first)
    second = await asyncio.to_thread(brokers.start, "--broker-id", "second", *LEFT_OPTIONS)
    async with ledgermq.connect(second.address) as client:
        writer = _Writer(client, expected)
        await writer.fill("third")
        await client.create_topic(TIMED, TIMED_PARTITIONS)
        expected.delayed = await leave_delayed(client, TIMED)
        await asyncio.to_thread(_compact, brokers.root_url)
        await writer.fill("fourth")
        await writer.consume("late", 7, "static-2")
        await client.create_topic(MOVES, 2)
        await leave_transactions(client, second.address, MOVES)
        expected.transactions = STATES
        for partition in range(2):
            expected.note(MOVES, partition, 0, Record(LEFT[0], None, None, None, TIMESTAMP_US))
        await client.delete_topic(GOING)
        expected.delayed += await leave_in_the_intake(client, TIMED)
        expected.written_us = Sources().now_us()
    assert await asyncio.to_thread(brokers.stop, second) == 0
    del expected.committed["forgotten"]
    for name in (GONE, GOING):
        expected.forget(name)


def _compact(root_url: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "ledgermq.cli.main", "compact", root_url],
        check=True,
        timeout=60,
        stdout=subprocess.DEVNULL,
    )


async def _wait_gone(client: ledgermq.Client, root_url: str) -> None:
    """Rounds of compaction until nothing is left of the topic, files that were too young included."""
    async with FileStore(Path(root_url.removeprefix("file://")), Sources()) as store, asyncio.timeout(60):
        while True:
            await asyncio.to_thread(_compact, root_url)
            catalog = await read_catalog(ledger_of(store, 0, cluster=(await read_cluster(store))))
            if GONE not in catalog.topics_by_name:
                break
            await asyncio.sleep(1)
    with suppress(UnknownTopic):
        await client.describe_topic(GONE)
        raise AssertionError("the topic is gone and is described")


class _NoEngine:
    """Stands for a compaction process that dies when its plan is put and its first task begins."""

    parallel = 1
    memory_bytes = TASK_MEMORY_BYTES

    async def run(self, store: ObjectStore, tasks: Sequence[CompactionTask], on_done: OnTaskDone) -> list[TaskOutcome]:
        raise InterruptedError


async def _leave_unfinished(store: ObjectStore, cluster: ClusterSettings) -> None:
    """In a bundle of the topic: a plan that no process has finished, then a void segment, which a
    former owner put too late.
    """
    catalog = await read_catalog(ledger_of(store, 0, cluster=cluster))
    bundle = catalog.topics_by_name[FLIGHTS].bundles[0]
    with suppress(InterruptedError):
        await run_round(Compaction(store, cluster, Sources(), _NoEngine()), bundle, catalog, everything=True)
        raise AssertionError("there was nothing to compact")
    state = (await recover(ledger_of(store, bundle, cluster=cluster))).state
    index = fmt.SegmentIndex(
        bundle=bundle,
        slot=state.slot + 1,
        epoch=1,
        kind=fmt.DATA,
        writer=b"w" * 16,
        put_id=b"p" * 16,
        previous=b"q" * 16,
        created_ms=int(datetime.now(UTC).timestamp() * 1000),
        broker="first",
    )
    data = _void_batch(index, catalog.topics_by_name[FLIGHTS].id)
    await store.put_if_absent(keys.segment(bundle, index.slot), encode_segment(index, [data]))


def _void_batch(index: fmt.SegmentIndex, topic_id: int) -> bytes:
    from tests.worlds.ledgers import batch

    made = batch(b"void: nobody may ever see this", topic_id=topic_id)
    index.batches.append(made.entry(0, first_batch_position()))
    return bytes(made.data)


if __name__ == "__main__":
    ROOTS.mkdir(parents=True, exist_ok=True)
    release = sys.argv[1] if len(sys.argv) > 1 else version("ledgermq")
    target = ROOTS / release
    if target.exists():
        sys.exit(f"{target} exists: the root of a version is written once, with its release")
    asyncio.run(write(target, release))
    DESCRIPTORS.mkdir(exist_ok=True)
    (DESCRIPTORS / f"{release}.binpb").write_bytes(descriptors(all_protos()))
    print(f"written: {target}")
