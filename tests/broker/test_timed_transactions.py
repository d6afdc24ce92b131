"""Check timed messages of transactions through the brokers' services, in virtual time: those of an aborted
transaction never come, those of a committed one come once and at their time, whatever dies meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from ledgermq.errors import InvalidRecord, InvalidRequest
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.limits import DELAYED_BRANCH
from ledgermq.protocol.status import error_from_proto
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.timed.state.limits import TimerLimits
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.segments.segment import Batch
from tests.broker import timer_calls as timed
from tests.broker import transaction_calls as calls
from tests.broker.cluster import FAST_CONSTANTS, Cluster, in_cluster
from tests.broker.groups import ask
from tests.broker.timed_transactions import BUNDLES, SMALL, participant_of, timers_of
from tests.broker.timer_calls import Sender, bundle_of, listed, now_s, recall, watched
from tests.broker.transaction_calls import Producer, beginner, stage_frame, stage_once, timed_stage_frame
from tests.waiting import until


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_a_commit_over_all_bundles_delivers_each_message_once_at_its_time(cluster: Cluster) -> None:
    await cluster.create("t", 4)
    producer = await beginner(cluster, "orders")
    due_s = now_s() + 20
    for partition in range(4):
        await producer.send_timed("t", partition, (b"a%d" % partition, due_s), (b"b%d" % partition, due_s + 5))
        await producer.send_timed("t", partition, (b"c%d" % partition, due_s - 5))
    assert len(producer.parts) == 2
    assert await producer.commit() == pb.COMMITTED
    await producer.completed()
    for partition in range(4):
        async with watched(cluster, "t", partition) as watcher:
            expected = [b"%s%d" % (name, partition) for name in (b"c", b"a", b"b")]
            assert await watcher.until(3) == expected
            if partition == 0:
                dues_s = due_s - 5, due_s, due_s + 5
                assert all(0 <= at_s - due < 0.2 for (_, at_s), due in zip(watcher.seen, dues_s, strict=True))
    assert not any(found.participant.staged_bytes for found in calls.served(cluster).values())


@pytest.mark.parametrize("how", ["abort", "fenced", "time-out"])
def test_messages_of_a_transaction_that_is_not_committed_never_come(how: str) -> None:
    @in_cluster("a:1", "b:1", **BUNDLES)
    async def run(cluster: Cluster) -> None:
        await cluster.create("t", 1)
        producer = await beginner(cluster, "orders", timeout_ms=5000)
        await producer.send_timed("t", 0, (b"never", now_s() + 2), (b"never", now_s() + 40))
        await producer.send("t", 0, b"never")
        if how == "abort":
            await producer.abort()
        elif how == "fenced":
            await Producer(cluster, "orders").init()
        found = await participant_of(cluster)
        await until(lambda: not found.participant.staged_batches, 60)
        await timed.send(cluster, "t", 0, (b"other", now_s() + 60))
        async with watched(cluster, "t", 0) as watcher:
            assert await watcher.until(1) == [b"other"]

    run()


@in_cluster("a:1", **BUNDLES)
async def test_nothing_comes_before_the_commit_and_what_is_late_then_comes_at_once(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    producer = await beginner(cluster, "orders")
    begun_s = now_s()
    await timed.send(cluster, "t", 0, (b"beside", begun_s + 6))
    await producer.send_timed("t", 0, (b"5", begun_s + 5), (b"15", begun_s + 15), (b"4", begun_s + 4))
    async with watched(cluster, "t", 0) as watcher:
        await asyncio.sleep(10)
        assert watcher.values == [b"beside"]
        assert (await timers_of(cluster)).held.waiting.rows == 0, "nothing waits for delivery before the commit"
        await producer.commit()
        assert await watcher.until(3) == [b"beside", b"5", b"4"], "in the order in which they were sent"
        assert watcher.seen[-1][1] < begun_s + 12
        assert (await watcher.until(4))[-1] == b"15"
        assert begun_s + 15 <= watcher.seen[-1][1] < begun_s + 15.2


@in_cluster("a:1", **BUNDLES)
async def test_plain_records_of_the_transaction_come_at_the_commit_and_delayed_ones_later(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    producer = await beginner(cluster, "orders")
    due_s = now_s() + 10
    async with watched(cluster, "t", 0) as watcher:
        await producer.send("t", 0, b"now-1")
        await producer.send_timed("t", 0, (b"later-1", due_s))
        await producer.send("t", 0, b"now-2")
        await producer.send_timed("t", 0, (b"later-2", due_s))
        await producer.commit()
        await producer.completed()
        assert await watcher.until(2) == [b"now-1", b"now-2"]
        assert now_s() < due_s
        assert await watcher.until(4) == [b"now-1", b"now-2", b"later-1", b"later-2"]


@in_cluster("a:1", **BUNDLES)
async def test_a_repeated_completion_adds_no_message(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    producer = await beginner(cluster, "orders")
    await producer.send_timed("t", 0, (b"once", now_s() + 5))
    await producer.commit()
    await producer.completed()
    [part] = producer.parts.values()
    request = pb.CompleteTransactionRequest(transaction=producer.ref, outcome=pb.COMMITTED, part=part)
    for _ in range(3):
        assert (await ask(cluster, lambda line: line.complete_transaction(request))).done
    async with watched(cluster, "t", 0) as watcher:
        assert await watcher.until(1) == [b"once"]
        await asyncio.sleep(20)
        assert watcher.values == [b"once"]


@in_cluster("a:1", constants=SMALL, **BUNDLES)
async def test_blocks_and_the_note_about_them_are_one_group(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    await cluster.create("t", 1)
    producer = await beginner(cluster, "orders")
    for number in range(12):
        await producer.send_timed("t", 0, (b"%d" % number, now_s() + 5))
    intake = (await timers_of(cluster)).held.logs.intake
    notes = (await participant_of(cluster))._state._place
    groups: list[list[PartitionId]] = []
    real = BundleOwner.produce

    def produce(self: BundleOwner, batches: Sequence[Batch], **more: bool) -> list[asyncio.Future[int]]:
        groups.append([PartitionId(batch.topic_id, batch.partition) for batch in batches])
        return real(self, batches, **more)

    monkeypatch.setattr(BundleOwner, "produce", produce)
    await producer.commit()
    await producer.completed()
    with_blocks = [group for group in groups if intake in group]
    assert with_blocks
    assert all(notes in group for group in with_blocks)
    assert sum(group.count(intake) for group in with_blocks) == 12


@in_cluster("a:1", constants=SMALL, **BUNDLES)
async def test_blocks_of_transactions_and_of_producers_share_an_intake(cluster: Cluster) -> None:
    """Completions in several segments and sends beside them: the offsets are given where they meet."""
    await cluster.create("t", 2)
    due_s = now_s() + 30
    producers = [await beginner(cluster, f"orders-{number}") for number in range(4)]
    sender = await Sender(cluster, "t", 0).open()
    for producer in producers:
        for number in range(6):
            name = f"{producer.name}-{number}".encode()
            await producer.send_timed("t", 0, (name, due_s), (name + b"'", due_s + 400))

    async def send_beside() -> None:
        for number in range(30):
            await sender.send((b"beside-%d" % number, due_s + number % 3))

    await asyncio.gather(send_beside(), *(producer.commit() for producer in producers))
    for producer in producers:
        await producer.completed()
    async with watched(cluster, "t", 0) as watcher:
        found = await watcher.until(4 * 12 + 30)
        assert len(set(found)) == len(found)
        held = (await timers_of(cluster)).held
        assert held.behind_us is None
        assert not held.in_flight


@in_cluster("a:1", **BUNDLES)
async def test_a_block_is_due_after_every_delivery_that_began_before_it(cluster: Cluster) -> None:
    """A delivery begins while the completion's segment is on its way: its late messages wait for the next one."""
    await cluster.create("t", 1)
    begun_s = now_s()
    producer = await beginner(cluster, "orders")
    await producer.send_timed("t", 0, (b"late", begun_s + 1))
    for number in range(20):
        await timed.send(cluster, "t", 0, (b"%d" % number, begun_s + 10 + number / 100))
    await asyncio.sleep(begun_s + 10.05 - now_s())
    await producer.commit()
    async with watched(cluster, "t", 0) as watcher:
        found = await watcher.until(21)
        assert len(found) == len(set(found)) == 21


# Recall, list, tools


@in_cluster("a:1", **BUNDLES)
async def test_a_committed_message_is_listed_and_can_be_recalled_and_others_are_not(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    bundle = await bundle_of(cluster, "t", 0)
    producer = await beginner(cluster, "orders")
    due_s = now_s() + 30
    await producer.send_timed("t", 0, (b"back", due_s), (b"comes", due_s))
    assert not (await listed(cluster, bundle, max_messages=10)).messages
    with pytest.raises(InvalidRequest, match="none has number"):
        await recall(cluster, "t", 0, 0, 0, due_s)
    await producer.commit()
    await producer.completed()
    first, second = (await listed(cluster, bundle, max_messages=10)).messages
    assert (first.offset, first.row, second.row) == (second.offset, 0, 1)
    assert await recall(cluster, "t", 0, first.offset, first.row, due_s) == "RECALLED"
    async with watched(cluster, "t", 0) as watcher:
        assert await watcher.until(1) == [b"comes"]


@in_cluster("a:1", **BUNDLES)
async def test_a_prepared_transaction_delivers_when_it_is_committed(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    producer = await beginner(cluster, "xid", kind=pb.TWO_PHASE)
    due_s = now_s() + 5
    await producer.send_timed("t", 0, (b"later", due_s), (b"much later", due_s + 200))
    assert await producer.end(pb.PREPARED) == pb.PREPARED
    async with watched(cluster, "t", 0) as watcher:
        await asyncio.sleep(100)
        assert watcher.values == []
        await producer.commit()
        assert await watcher.until(1) == [b"later"]
        assert await watcher.until(2) == [b"later", b"much later"]


@in_cluster("a:1", **BUNDLES)
async def test_what_waits_for_a_topic_that_is_removed_before_the_commit_counts_as_done(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    await cluster.create("kept", 1)
    producer = await beginner(cluster, "orders")
    await producer.send_timed("t", 0, (b"never", now_s() + 5))
    await producer.send_timed("kept", 0, (b"kept", now_s() + 5))
    await cluster.line("a:1").delete_topic(pb.DeleteTopicRequest(name="t"))
    await until(lambda: "t" not in cluster.brokers["a:1"].metadata.catalog.topics_by_name, 50)
    await producer.commit()
    await producer.completed()
    async with watched(cluster, "kept", 0) as watcher:
        assert await watcher.until(1) == [b"kept"]


# What is refused


@in_cluster("a:1", **BUNDLES)
async def test_each_call_takes_only_branches_of_its_kind_and_due_times_within_the_horizon(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    producer = await beginner(cluster, "orders")
    plain = stage_frame(producer.ref, ("t", 0, 0, [b"a"]), branch=b"x" + DELAYED_BRANCH)
    [refused] = await stage_once(cluster, "a:1", plain)
    with pytest.raises(InvalidRequest, match="StageDelayed"):
        raise error_from_proto(refused.error)
    wrong = timed_stage_frame(producer.ref, "t", 0, 0, [(b"a", now_s())], branch=b"")
    [refused] = await stage_once(cluster, "a:1", wrong, delayed=True)
    with pytest.raises(InvalidRequest, match="StageDelayed"):
        raise error_from_proto(refused.error)
    far = timed_stage_frame(producer.ref, "t", 0, 0, [(b"a", now_s() + 400 * 86_400)])
    [refused] = await stage_once(cluster, "a:1", far, delayed=True)
    with pytest.raises(InvalidRecord, match="366 days"):
        raise error_from_proto(refused.error)


@in_cluster("a:1", constants=replace(FAST_CONSTANTS, limits=(TimerLimits(waiting_bytes_max=50),)), **BUNDLES)
async def test_a_bundle_without_room_refuses_delayed_batches_when_they_are_staged(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    producer = await beginner(cluster, "orders")
    frame = timed_stage_frame(producer.ref, "t", 0, 0, [(b"a" * 100, now_s())])
    await until(lambda: _code_is(cluster, frame, "RESOURCE_EXHAUSTED"), 20)
    await producer.send("t", 0, b"plain")
    await producer.commit()
    await producer.completed()
    assert await cluster.read_all("t", 0) == [b"plain"]


async def _code_is(cluster: Cluster, frame: object, code: str) -> bool:
    [result] = await stage_once(cluster, "a:1", frame, delayed=True)  # type: ignore[arg-type]
    return bool(result.error.code == code)
