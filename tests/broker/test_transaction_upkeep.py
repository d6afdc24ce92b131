"""What the logs keep of transactions: carried forward, trimmed, given up, left out."""

from __future__ import annotations

import asyncio

from ledgermq.errors import Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_ledger import keys
from tests.broker.cluster import Cluster, in_cluster
from tests.broker.groups import ask
from tests.broker.transaction_calls import beginner, constants_of, served
from tests.broker.transaction_looks import BUNDLES, is_served, log_start, xid
from tests.waiting import until


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_what_a_removed_topic_would_have_got_is_left_out(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    await cluster.create("gone", 1)
    producer = await beginner(cluster, "orders")
    await producer.send("t", 0, b"x")
    await producer.send("gone", 0, b"y")
    await ask(cluster, lambda line: line.delete_topic(pb.DeleteTopicRequest(name="gone")))
    await asyncio.sleep(1)
    await producer.commit()
    await producer.completed()
    assert await cluster.read_all("t", 0) == [b"x"]
    assert sum(found.participant.staged_batches for found in served(cluster).values()) == 0


@in_cluster("a:1", constants=constants_of(carry_after_ms=2000, carry_slots=5), **BUNDLES)
async def test_what_stays_prepared_is_carried_forward_and_lets_the_log_start_move(cluster: Cluster) -> None:
    topic = await cluster.create("t", 1)
    producer = await beginner(cluster, "xid", kind=pb.TWO_PHASE)
    for value in (b"x", b"y", b"z"):
        await producer.send("t", 0, value)
    assert await producer.end(pb.PREPARED) == pb.PREPARED
    found = served(cluster)[topic.partitions[0].bundle]
    staged = found._staged
    first = found.participant.lowest_offset()
    for _ in range(40):
        await cluster.produce("t", 0, b"plain")
        await asyncio.sleep(1)
    carried = found.participant.lowest_offset()
    assert first == 0
    assert carried is not None
    assert carried >= 3
    await until(lambda: log_start(found) == found.participant.lowest_offset(), 200, every_s=1)
    assert log_start(found) > 0
    await cluster.stop("a:1", graceful=False)
    await cluster.start("b:1")
    await cluster.settled()
    assert (await ask(cluster, lambda line: line.end_transaction(xid("xid")))).state == pb.COMMITTED
    await until(lambda: is_served(cluster, "t", 43), 60)
    values = await cluster.read_all("t", 0)
    assert values == [b"plain"] * 40 + [b"x", b"y", b"z"]
    assert staged.topic.name == keys.STAGED_TOPIC


@in_cluster("a:1", constants=constants_of(ask_after_ms=1000), **BUNDLES)
async def test_segments_that_held_staged_batches_are_trimmed(cluster: Cluster) -> None:
    topic = await cluster.create("t", 1, parquet_max_lag_ms="0")
    producer = await beginner(cluster, "orders")
    await producer.send("t", 0, b"x")
    broker = cluster.brokers["a:1"]
    owner = broker.ownership.opened[topic.partitions[0].bundle]
    staged_at = owner.status().slot
    await producer.commit()
    await producer.completed()
    broker.apply(cluster.settings.model_copy(update={"background_compaction": True}))

    async def trimmed() -> bool:
        await cluster.produce("t", 0, b"plain")
        return owner._ledger.view.checkpoint.trim_slot > staged_at

    await until(trimmed, 1000, every_s=10)
    assert (await cluster.read_all("t", 0))[:2] == [b"x", b"plain"]


@in_cluster("a:1", "b:1", constants=constants_of(ask_after_ms=1000), **BUNDLES)
async def test_a_part_that_is_lost_is_given_up_and_the_others_stay(cluster: Cluster) -> None:
    """The producer counts a batch that one bundle does not have. No batch of that part becomes visible;
    after an operator gives the part up, the transactional id can be used again.
    """
    topic = await cluster.create("t", 2)
    producer = await beginner(cluster, "orders")
    await producer.send("t", 0, b"x")
    await producer.send("t", 1, b"y")
    lost = topic.partitions[1].bundle
    producer.parts[lost].counts[0].batches = 2
    await producer.commit()
    await until(lambda: has_trouble(cluster, "orders", f"bundle {lost}"), 10)
    assert not await producer.is_complete()
    assert [await cluster.read_all("t", partition) for partition in range(2)] == [[b"x"], []]
    request = pb.ResolveTransactionRequest(transactional_id="orders", resolution=pb.GIVE_UP, bundle=lost)
    assert (await ask(cluster, lambda line: line.resolve_transaction(request))).transaction.complete
    await until(lambda: not any(found.participant.staged_batches for found in served(cluster).values()), 60)
    producer.begin()
    await producer.send("t", 1, b"z")
    await producer.commit()
    await producer.completed()
    assert [await cluster.read_all("t", partition) for partition in range(2)] == [[b"x"], [b"z"]]


async def has_trouble(cluster: Cluster, name: str, text: str) -> bool:
    request = pb.DescribeTransactionRequest(transactional_id=name)
    return text in (await ask(cluster, lambda line: line.describe_transaction(request))).transaction.trouble


@in_cluster("a:1", constants=constants_of(ask_after_ms=1000, log_start_ms=1000), **BUNDLES)
async def test_the_log_start_of_staged_batches_moves_after_an_attempt_that_failed(cluster: Cluster) -> None:
    """Nothing else is staged in the bundle, so no later transaction can move the log start."""
    topic = await cluster.create("t", 1)
    producer = await beginner(cluster, "orders")
    found = served(cluster)[topic.partitions[0].bundle]
    await asyncio.sleep(3)
    move, failures = found._staged.move_log_start, []

    async def fail(begin: int) -> None:
        failures.append(begin)
        raise Unavailable("the store does not answer")

    found._staged.move_log_start = fail  # type: ignore[method-assign]
    await producer.send("t", 0, b"x")
    await producer.commit()
    await producer.completed()
    await asyncio.sleep(10)
    assert failures
    found._staged.move_log_start = move  # type: ignore[method-assign]
    await until(lambda: log_start(found) == 1, 60)
