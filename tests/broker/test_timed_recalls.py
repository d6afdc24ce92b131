"""Recalls of timed messages: before their time, after it, from a range, by another topic."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ledgermq.errors import InvalidRequest, Unavailable
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.timed.state.blocks import Id, Source
from ledgermq_ledger.view.reader import PartitionRead
from tests.broker.cluster import Cluster, in_cluster
from tests.broker.timed_messages import BUNDLES, DAY_S, HOUR_S, MINUTE_S, SLOW, SMALL, numbered, seldom_looks
from tests.broker.timer_calls import constants_of, held_of, listed, now_s, recall, send, served, watched
from tests.waiting import until

calm = pytest.fixture(seldom_looks)


@in_cluster("a:1", "b:1", constants=constants_of(recall_kept_ms=60_000), **BUNDLES)
async def test_a_message_is_recalled_before_its_time_and_never_after_it(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    due_s = now_s() + 10
    async with watched(cluster, "t", 0) as watcher:
        offset = await send(cluster, "t", 0, *numbered(4, due_s))
        assert await recall(cluster, "t", 0, offset, 1, due_s) == "RECALLED"
        assert await recall(cluster, "t", 0, offset, 1, due_s) == "RECALLED"
        await cluster.stop(await cluster.owner_of("t", 0), graceful=False)
        assert await recall(cluster, "t", 0, offset, 3, due_s) == "RECALLED"
        assert await watcher.until(2) == [b"m0", b"m2"]
        assert await recall(cluster, "t", 0, offset, 0, due_s) == "TOO_LATE"
        assert await recall(cluster, "t", 0, offset, 1, due_s) == "RECALLED", "again, when its time has passed"
        await asyncio.sleep(MINUTE_S + 10)
        await send(cluster, "t", 0, (b"later", now_s()))
        await watcher.until(3)
        for row in (0, 1, 2):
            assert await recall(cluster, "t", 0, offset, row, due_s) == "FORGOTTEN"
        assert not any(part.held.timers.recalls for part in served(cluster).values())
        assert watcher.values == [b"m0", b"m2", b"later"]


@in_cluster("a:1", constants=SMALL, **BUNDLES, **SLOW)
async def test_a_message_in_a_range_is_recalled(cluster: Cluster, calm: None) -> None:
    await cluster.create("t", 1)
    due_s = now_s() + 2 * HOUR_S
    async with watched(cluster, "t", 0) as watcher:
        offset = await send(cluster, "t", 0, *numbered(3, due_s))
        await until(lambda: not held_of(cluster).waiting.rows, 10)
        assert await recall(cluster, "t", 0, offset, 1, due_s) == "RECALLED"
        assert await watcher.until(2, 3 * HOUR_S) == [b"m0", b"m2"]


@pytest.mark.parametrize("is_far", [False, True], ids=["in memory", "in a range"])
@in_cluster("a:1", bundles=2, constants=SMALL, **SLOW)
async def test_a_recall_by_another_topic_recalls_nothing(cluster: Cluster, calm: None, is_far: bool) -> None:
    """Who may produce to one topic could recall the messages of all topics in its bundle."""
    for name in ("t", "other"):
        await cluster.create(name, 1)
    due_s = now_s() + (2 * HOUR_S if is_far else 5)
    async with watched(cluster, "t", 0) as watcher:
        offset = await send(cluster, "t", 0, *numbered(3, due_s))
        if is_far:
            await until(lambda: not held_of(cluster).waiting.rows, 10)
        assert await recall(cluster, "other", 0, offset, 1, due_s) == "RECALLED", "there is none of that topic"
        assert await recall(cluster, "other", 0, offset, 2, due_s) == "RECALLED"
        assert await recall(cluster, "t", 0, offset, 2, due_s) == "RECALLED"
        listing = await listed(cluster, 1, topic="t", max_messages=10)
        assert [message.row for message in listing.messages] == ([] if is_far else [0, 1])
        await cluster.stop("a:1", graceful=False)
        await cluster.start("a:1")
        assert await watcher.until(2, 3 * HOUR_S) == [b"m0", b"m1"]


@in_cluster("a:1", **BUNDLES)
async def test_a_recall_of_what_was_never_sent_is_refused(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    with pytest.raises(InvalidRequest, match="no timed message yet"):
        await recall(cluster, "t", 0, 0, 0, now_s() + 5)
    offset = await send(cluster, "t", 0, (b"a", now_s() + 5))
    with pytest.raises(InvalidRequest, match="none has number"):
        await recall(cluster, "t", 0, offset + 1, 0, now_s() + 5)
    with pytest.raises(InvalidRequest, match="as late as"):
        await recall(cluster, "t", 0, offset, 0, now_s() + 1000 * DAY_S)


@in_cluster("a:1", **BUNDLES)
async def test_a_message_that_is_not_read_yet_is_recalled_when_it_is_known_when_it_is_due(cluster: Cluster) -> None:
    """One that came late is due later than its handle says: its tombstone would go before it is delivered."""
    await cluster.create("t", 1)
    due_s = now_s() + 10
    async with watched(cluster, "t", 0) as watcher:
        offset = await send(cluster, "t", 0, *numbered(2, due_s))
        [part] = [part for part in served(cluster).values() if part.held.waiting.rows]
        part._intake.next_offset = offset
        topic = cluster.brokers["a:1"].metadata.catalog.living("t")
        with pytest.raises(Unavailable, match="on its way into the memory") as told:
            await part.recall(Id(offset, 0), round(due_s * 1e6), topic.id, has_moved=False)
        assert told.value.retry_after_ms
        part._intake.next_offset = offset + 1
        assert await recall(cluster, "t", 0, offset, 0, due_s) == "RECALLED"
        assert await watcher.until(1) == [b"m1"]


@in_cluster("a:1", **BUNDLES)
async def test_a_block_that_left_memory_is_read_without_those_behind_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.create("t", 1)
    due_s = now_s() + HOUR_S
    offsets = [await send(cluster, "t", 0, *numbered(2, due_s)) for _ in range(20)]
    [held] = [part.held for part in served(cluster).values() if part.held.waiting.rows]
    held.waiting.evict(0)
    reads: list[int] = []
    real = BundleOwner.fetch

    async def fetch(self: BundleOwner, *given: Any, **more: Any) -> PartitionRead:
        found = await real(self, *given, **more)
        reads.append(len(found.batches))
        return found

    monkeypatch.setattr(BundleOwner, "fetch", fetch)
    await held.restore([Source(None, offsets[3])])
    assert reads == [1]
    await held.restore([Source(None, offset) for offset in offsets[5:15]])
    assert sum(reads) <= 1 + 10 + 1, "those that follow one another come together"
    assert len(reads) <= 4
