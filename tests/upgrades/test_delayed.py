"""Delayed messages between releases: a root of a release before them takes them, what an older release
left comes once and at its time, brokers without them are named, and records of a later release are
refused.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import groupby
from pathlib import Path

import pytest

import ledgermq
from ledgermq.errors import FormatNotSupported, InvalidRequest
from ledgermq.protocol.batches.records import encode_batch
from ledgermq.sources import Sources
from ledgermq_broker.internal.feature import StoredRoot
from ledgermq_broker.timed.state.blocks import encode_block
from ledgermq_broker.timed.state.format import ledgermq_timers_pb2 as fmt
from ledgermq_broker.timed.state.limits import DAY_US
from ledgermq_broker.timed.state.places import WIDTHS_US
from ledgermq_broker.timed.stored.check import add_timers
from ledgermq_broker.timed.stored.view import read_timers
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import ClusterSettings, read_cluster
from ledgermq_ledger.fsck.check import check_root
from ledgermq_ledger.fsck.problem import Problems, Severity
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.object_store.file.store import FileStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.topics.catalog import read_catalog
from ledgermq_ledger.topics.topic import Topic
from tests.broker.cluster import Cluster
from tests.broker.timer_calls import pass_time
from tests.e2e.test_delayed import Reader, client_of, reading
from tests.property.timer_log import batch_of
from tests.upgrades.delayed import FADING, PARTITIONS, TTL_S, XID, XID_FORMAT, Left
from tests.upgrades.golden import ROOTS, TIMED, VERSIONS, Expected, Row, contents, copy_root
from tests.upgrades.test_golden_roots import consume
from tests.upgrades.test_newer_formats import BUNDLE, NEWER, append_record, error_of, partition_in, produce
from tests.upgrades.test_transactions import BEFORE, old_broker
from tests.virtual_time import EPOCH_US, run_virtual, virtual_sources
from tests.waiting import until
from tests.worlds.ledgers import ledger_of

WITH_DELAYED = [of for of in VERSIONS if Expected.of(of).delayed]
OF_DELAYED = {"ProduceDelayed", "ProduceDelayedOnce", "RecallDelayed", "ListDelayed", "StageDelayed"}
RECALLED, TOO_LATE, FORGOTTEN = ledgermq.RecallOutcome
BEFORE_S, LATE_S = 30.0, 5.0
YEAR_S = 366 * 86_400


# What an older release left


def test_a_golden_root_has_delayed_messages() -> None:
    assert WITH_DELAYED


@asynccontextmanager
async def cluster_at(of: str, now_us: int) -> AsyncIterator[tuple[Cluster, ledgermq.Client]]:
    """A broker in virtual time on a golden root, and a client. All clocks show `now_us` at first."""
    skew_us = now_us - EPOCH_US
    store = MemoryStore("", virtual_sources(1000, skew_us))
    for key, content in contents(ROOTS / of / "root").items():
        await store.put(key, content)
    cluster = Cluster(store, bundles=4)
    try:
        await cluster.start("a:1", skew_us / 1e6)
        await cluster.settled()
        async with client_of(cluster, skew_s=skew_us / 1e6) as client:
            yield cluster, client
    finally:
        await cluster.close()


def of_state(left: list[Left], *states: str) -> list[Left]:
    """In order of due times."""
    return sorted((each for each in left if each.state in states), key=lambda each: each.due_us)


def pairs(left: list[Left]) -> Counter[tuple[int, str, int]]:
    return Counter((each.partition, each.value, each.due_us) for each in left)


def lasting(reader: Reader) -> Counter[tuple[int, str, int]]:
    """Return those that came and have no time to live."""
    return Counter({each: count for each, count in came(reader).items() if each[1] != FADING})


def came(reader: Reader) -> Counter[tuple[int, str, int]]:
    return Counter((m.partition, (m.value or b"").decode(), m.timestamp_us) for m, _ in reader.seen)


@pytest.mark.parametrize("of", WITH_DELAYED)
def test_what_waits_is_listed_recalled_and_comes_once_at_its_time(of: str) -> None:
    run_virtual(lambda: check_a_year(of))


async def check_a_year(of: str) -> None:
    """At the time at which the root was written, and through the year after it."""
    expected = Expected.of(of)
    left = expected.delayed
    delivered, recalled = of_state(left, "delivered"), of_state(left, "recalled")
    waiting = of_state(left, "waiting")
    named = [each for each in waiting if each.handle]
    taken_back = named[-1]
    async with cluster_at(of, expected.written_us) as (cluster, client), reading(client, TIMED) as reader:
        bundles = (await client.list_delayed(TIMED)).bundles
        assert not any(bundle.trouble for bundle in bundles)
        assert sum(bundle.messages for bundle in bundles) >= len(waiting)
        assert sum(each.messages for bundle in bundles for each in bundle.ranges) >= len(waiting) - 2 * PARTITIONS
        assert {await client.recall(each.handle or "") for each in recalled} == {RECALLED}
        assert {await client.recall(each.handle or "") for each in delivered} == {TOO_LATE}
        assert await client.recall(taken_back.handle or "") is RECALLED
        async with client.transactions.two_phase() as branch:
            xid = branch.xid(XID_FORMAT, XID)
            assert xid in await branch.tpc_recover()
            await branch.tpc_commit(xid)
        await reader.until(len(delivered))
        assert came(reader) == pairs(delivered)
        so_far = delivered
        for due_us, due in groupby(
            [each for each in of_state(left, "waiting", "prepared") if each is not taken_back],
            key=lambda each: each.due_us,
        ):
            pass_time(cluster, due_us - round(BEFORE_S * 1e6))
            await asyncio.sleep(BEFORE_S - 1)
            assert came(reader) == pairs(so_far)
            await asyncio.sleep(LATE_S)
            so_far += due
            assert came(reader) == pairs(so_far)
        pass_time(cluster, expected.written_us + YEAR_S * 1_000_000)
        await asyncio.sleep(60)
        assert came(reader) == pairs(so_far)
        for partition in range(PARTITIONS):
            dues = [message.timestamp_us for message, _ in reader.seen if message.partition == partition]
            assert dues == sorted(dues)
        timed = next(m for m, _ in reader.seen if m.value == FADING.encode())
        headers = dict(timed.headers)
        assert int(headers["ledgermq.expires-ms"] or 0) == timed.timestamp_us // 1000 + round(TTL_S * 1000)
        assert (timed.key, headers["h"]) == (b"k", b"1")
        assert not (await client.list_delayed(TIMED)).messages
        assert {await client.recall(each.handle or "") for each in named} == {FORGOTTEN}


@pytest.mark.parametrize("of", WITH_DELAYED)
async def test_each_message_is_delivered_or_waits_whatever_the_date_is(of: str, tmp_path: Path) -> None:
    """A real broker at the present, which is any time after the root was written. Those with a time to live may
    have expired.
    """
    left = [each for each in Expected.of(of).delayed if each.value != FADING]
    now_us = Sources().now_us()
    due = [each for each in of_state(left, "delivered", "waiting") if each.due_us < now_us]
    root = copy_root(of, tmp_path)
    async with ledgermq.connect(root.as_uri()) as client, reading(client, TIMED) as reader:
        await until(lambda: lasting(reader).total() >= len(due))
        bundles = (await client.list_delayed(TIMED)).bundles
        assert not any(bundle.trouble for bundle in bundles)
        found = lasting(reader)
    later = pairs(of_state(left, "waiting")) - pairs(due)
    assert found - later == pairs(due), "and what was due since"


@pytest.mark.parametrize("of", WITH_DELAYED)
async def test_a_check_of_the_root_finds_delayed_messages_of_every_kind(of: str, tmp_path: Path) -> None:
    root = copy_root(of, tmp_path)
    async with FileStore(root, Sources()) as store:
        cluster = await read_cluster(store)
        checked = await check_root(store, cluster)
        await add_timers(StoredRoot(store, cluster, Sources()), checked)
        assert checked.worst in (None, Severity.NOTE), checked.problems
        found, _ = await read_timers(store, cluster, Sources(), Problems().collecting, blocks=True)
    states = [bundle.state for bundle in found]
    widths = {each.to_us - each.from_us for state in states for each in state.ranges.values()}
    assert widths == set(WIDTHS_US)
    assert any(state.recalls for state in states)
    assert any(bundle.intake.end > bundle.state.flushed.end_offset for bundle in found), "a block that is not flushed"
    assert any(hidden.parquet_end for bundle in found for hidden in bundle.hidden), "blocks in hidden files"
    assert (root / "hidden").is_dir()


# Older roots and brokers


async def test_a_root_of_before_takes_delayed_messages(tmp_path: Path) -> None:
    root = copy_root(BEFORE, tmp_path)
    expected = Expected.of(BEFORE).records
    async with ledgermq.connect(root.as_uri()) as client, client.producer() as producer:
        sent = [await producer.send("flights", f"{each}", partition=each, delay=0.5) for each in range(3)]
        kept = await producer.send("flights", "kept", partition=0, delay=timedelta(days=300))
        assert all(result.handle for result in sent)
        assert await client.recall(kept.handle or "") is RECALLED
        await until(lambda: has_come(client, expected), every_s=0.1)


async def has_come(client: ledgermq.Client, before: dict[str, list[Row]]) -> bool:
    found = await consume(client)
    for partition in range(3):
        old, name = before[f"flights/{partition}"], f"flights/{partition}"
        assert found[name][: len(old)] == old
        new = [row[2] for row in found[name][len(old) :]]
        assert new in ([], [f"{partition}"])
        if not new:
            return False
    return True


@pytest.mark.parametrize("unknown", [OF_DELAYED, {"ProduceDelayed"}], ids=["all", "ProduceDelayed"])
async def test_a_broker_without_delayed_messages_is_named_and_nothing_is_visible(
    tmp_path: Path, unknown: set[str]
) -> None:
    root = copy_root(BEFORE, tmp_path)
    async with old_broker(tmp_path, root, unknown) as address, ledgermq.connect(address, timeout_s=20) as client:
        async with client.producer(delivery_timeout_s=10) as producer:
            with pytest.raises(InvalidRequest, match="release is older") as refused:
                await producer.send("flights", "never", partition=0, delay=0)
        assert address in refused.value.message
        await produce(client, 0)
        values = [row[2] for row in (await consume(client))["flights/0"]]
        assert "never" not in values
        assert values[-1] == "new"


# Newer records


def watermark_record() -> tuple[bytes, bytes]:
    return b"watermark", fmt.Watermark(version=NEWER, due_us=1).SerializeToString()


def flushed_record() -> tuple[bytes, bytes]:
    return b"flushed", fmt.Flushed(version=NEWER).SerializeToString()


def range_record() -> tuple[bytes, bytes]:
    found = fmt.Range(version=NEWER, from_us=20_000 * DAY_US, to_us=20_001 * DAY_US)
    return b"range/1/0", found.SerializeToString()


def recall_record() -> tuple[bytes, bytes]:
    return b"recall/1/0", fmt.Recall(version=NEWER, due_us=1).SerializeToString()


def unknown_record() -> tuple[bytes, bytes]:
    return b"place/x", b"what a later version keeps"


async def topic_of(root: Path, name: str) -> Topic:
    async with FileStore(root, Sources()) as store:
        ledger = ledger_of(store, 0, cluster=ClusterSettings(producer_states_max=1000))
        return (await read_catalog(ledger)).topics_by_name[name]


async def with_delayed(tmp_path: Path) -> Path:
    """A root of a release before delayed messages that has got their topics since."""
    root = copy_root(BEFORE, tmp_path)
    async with ledgermq.connect(root.as_uri()) as client, client.producer() as producer:
        for partition in range(3):
            await producer.send("flights", "kept", partition=partition, delay=timedelta(days=300))
    return root


@pytest.mark.parametrize("make", [watermark_record, flushed_record, range_record, recall_record, unknown_record])
async def test_a_newer_record_of_timers_refuses_delayed_messages_of_its_bundle(
    tmp_path: Path, make: Callable[[], tuple[bytes, bytes]]
) -> None:
    root = await with_delayed(tmp_path)
    topic = await topic_of(root, keys.TIMERS_TOPIC)
    async with FileStore(root, Sources()) as store:
        await append_record(store, BUNDLE, topic.id, topic.bundles.index(BUNDLE), *make())
    await check_refused(root, keys.TIMERS_TOPIC)


async def test_what_is_delayed_waits_behind_a_newer_block_of_its_bundle(tmp_path: Path) -> None:
    root = await with_delayed(tmp_path)
    topic = await topic_of(root, keys.DELAYED_TOPIC)
    record = encode_block(PartitionId(1, 0), 1, encode_batch(batch_of([1], [5])))
    header = fmt.BlockHeader.FromString(record.key)
    header.version = NEWER
    async with FileStore(root, Sources()) as store:
        place = topic.bundles.index(BUNDLE)
        await append_record(store, BUNDLE, topic.id, place, header.SerializeToString(), record.value or b"")
    refused, healthy = await partition_in(root, BUNDLE), await partition_in(root, BUNDLE + 1)
    async with ledgermq.connect(root.as_uri(), timeout_s=10) as client, client.producer() as producer:
        await producer.send("flights", "waits for a later release", partition=refused, delay=0)
        await producer.send("flights", "comes", partition=healthy, delay=0)
        await produce(client, refused)
        await until(lambda: last_is(client, healthy, "comes"), every_s=0.1)
        assert await last_is(client, refused, "new"), "nothing passes a block that cannot be read"
        troubles = {each.bundle: each.trouble for each in (await client.list_delayed("flights")).bundles}
        assert f"version {NEWER}" in troubles.pop(BUNDLE)
        assert not any(troubles.values())


async def check_refused(root: Path, name: str) -> None:
    """Records of the bundle are still produced and read, and delayed messages elsewhere come."""
    refused, healthy = await partition_in(root, BUNDLE), await partition_in(root, BUNDLE + 1)
    async with ledgermq.connect(root.as_uri(), timeout_s=10) as client:
        await produce(client, refused)
        async with client.producer(delivery_timeout_s=5) as producer:
            error = await error_of(producer.send("flights", "never", partition=refused, delay=0))
            assert isinstance(error, FormatNotSupported), repr(error)
            assert name in error.message
            await producer.send("flights", "comes", partition=healthy, delay=0)
        await until(lambda: last_is(client, healthy, "comes"), every_s=0.1)
        assert await last_is(client, refused, "new")


async def last_is(client: ledgermq.Client, partition: int, value: str) -> bool:
    return (await consume(client))[f"flights/{partition}"][-1][2] == value
