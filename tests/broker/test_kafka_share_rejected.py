"""What members of share groups reject goes to the dead letters of their group at once, as `dead_letter` of our own
members does it; in virtual time, byte by byte.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.kafka.handlers.shares import burying
from ledgermq_broker.kafka.handlers.shares.acknowledging import BURYING_S, REJECTED
from ledgermq_broker.kafka.handlers.shares.burying import Burying
from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_ledger import keys
from tests.broker.access import RULES, change, token
from tests.broker.cluster import frame_of
from tests.broker.kafka_sharers import ACCEPT, REJECT, RELEASE, Sharer, SharerLine
from tests.broker.kafka_world import KafkaCluster, in_kafka_cluster
from tests.broker.test_kafka_identity import proven, topic
from tests.broker.test_kafka_share_dead_letters import PAUSE_S, accepting, letters, start, worn_out
from tests.broker.test_kafka_share_groups import LOCK_S, produce, sharer
from tests.broker.test_kafka_share_offsets import EARLIEST


@in_kafka_cluster("a:1", "b:1", "c:1", **EARLIEST, bundles=5)
async def test_what_a_member_rejects_goes_to_the_dead_letters_at_once(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=3)
    member = await sharer(cluster)
    for number in range(3):
        await produce(cluster, b"a%d" % number, b"b%d" % number, partition=number)
        await produce(cluster, b"c%d" % number, b"d%d" % number, partition=number)
        line = await member.line(number)
        line.epoch = 0
        found = await line.fetch(number)
        assert await line.accept(*found[1:2], word=RELEASE) == {number: 0}
        assert [(got.offset, got.deliveries) for got in await line.fetch(wait_ms=100)] == [(1, 2)]
        assert await line.acknowledge({number: [(0, 3, [ACCEPT, REJECT, REJECT, ACCEPT])]}) == {number: 0}
    assert [(one.failures.origin, one.message.value, one.failures.attempts) for one in await letters(cluster)] == [
        (("t", number, offset), b"%s%d" % (word, number), attempts)
        for number in range(3)
        for offset, word, attempts in ((1, b"b", 2), (2, b"c", 1))
    ]
    assert {(one.failures.group, one.failures.error) for one in await letters(cluster)} == {("g", REJECTED)}
    assert await start(cluster) == 4
    for number in range(3):
        assert await (await member.line(number)).fetch(wait_ms=100) == []


@in_kafka_cluster("a:1", **EARLIEST)
async def test_a_rejected_message_comes_again_if_it_cannot_be_stored(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    await cluster.create("g.dlq", partitions=1)
    await cluster.line("a:1").alter_topic(accepting("false"))
    await produce(cluster, b"0", b"1", b"2")
    line = await (await sharer(cluster)).line()
    assert len(await line.fetch(0)) == 3
    assert await line.acknowledge({0: [(0, 2, [ACCEPT, REJECT, ACCEPT])]}) == {0: Code.INVALID_RECORD_STATE}
    assert await start(cluster) == 1, "finished without a copy"
    await cluster.line("a:1").alter_topic(accepting("true"))
    await asyncio.sleep(PAUSE_S)
    assert [(got.offset, got.deliveries) for got in await line.fetch(wait_ms=100)] == [(1, 2)]
    rejected = await line.ask(acks={0: [(1, 1, [REJECT])]}, wait_ms=100)
    [part] = rejected.responses[0].partitions
    assert (part.acknowledge_error_code, part.error_code) == (0, 0), "also with a fetch"
    assert [one.message.value for one in await letters(cluster)] == [b"1"]
    assert await start(cluster) == 3


@in_kafka_cluster("a:1", **EARLIEST)
async def test_what_is_accepted_beside_a_rejected_message_counts_at_once(cluster: KafkaCluster) -> None:
    """Though dead letters take longer than its lease has left."""
    real = Burying._stored

    async def slow(self: Burying, *about: Any) -> None:
        await asyncio.sleep(2 * BURYING_S)
        await real(self, *about)

    await cluster.create("t", partitions=2)
    member = await sharer(cluster)
    await produce(cluster, b"0", b"1", partition=0)
    await produce(cluster, b"other", partition=1)
    line = await member.line()
    assert len(await line.fetch(0, 1)) == 3
    await asyncio.sleep(LOCK_S - BURYING_S / 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Burying, "_stored", slow)
        answer = await line.acknowledge({0: [(0, 1, [ACCEPT, REJECT])], 1: [(0, 0, [ACCEPT])]})
    assert answer == {0: Code.INVALID_RECORD_STATE, 1: 0}, "the rejected one comes again"
    assert await start(cluster) == 1
    await asyncio.sleep(PAUSE_S)
    assert [got.offset for got in await line.fetch(wait_ms=100)] == [1]


@in_kafka_cluster("a:1", **EARLIEST)
async def test_a_topic_that_takes_the_place_of_the_dead_letters_gets_none(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    await produce(cluster, b"0", b"1")
    line = await (await sharer(cluster)).line()
    assert len(await line.fetch(0)) == 2
    assert await line.acknowledge({0: [(0, 0, [REJECT])]}) == {0: 0}
    async with cluster.client() as client:
        await client.delete_topic("g.dlq")
        await client.create_topic("g.dlq", 1)
        async with client.producer() as producer:
            await producer.send("g.dlq", b"of another program")
        assert await line.acknowledge({0: [(1, 1, [REJECT])]}) == {0: Code.INVALID_RECORD_STATE}
        assert [message.value for message in (await client.read("g.dlq")).messages] == [b"of another program"]


@in_kafka_cluster("a:1", **RULES, **EARLIEST)
async def test_what_is_rejected_without_the_right_to_dead_letters_is_finished(cluster: KafkaCluster) -> None:
    await topic(cluster, "t")
    root = await token(cluster, "root")
    await change(cluster, grant=["allow user:ann group g", "allow user:ann consume t"])
    [result] = (await cluster.line("a:1", root.text).produce_once(frame_of("t", 0, b"0", b"1"))).results
    assert not result.HasField("error")
    member = Sharer(cluster)
    member.client = await proven(cluster, "ann")
    assert (await member.beat()).error_code == 0
    line = SharerLine(member, await proven(cluster, "ann"))
    assert len(await line.fetch(0)) == 2
    assert await line.acknowledge({0: [(0, 1, [REJECT])]}) == {0: 0}
    assert await start(cluster, root.text) == 2
    async with cluster.client(root.text) as client:
        assert "g.dlq" not in [each.name for each in await client.list_topics()]


@in_kafka_cluster("a:1", **EARLIEST)
async def test_many_words_that_reject_read_each_batch_a_few_times(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    await produce(cluster, *(b"%d" % number for number in range(400)))
    line = await (await sharer(cluster)).line()
    assert len(await line.fetch(0)) == 400
    assert await line.acknowledge({0: [(n, n, [REJECT if n % 2 else ACCEPT]) for n in range(400)]}) == {0: 0}
    assert [one.failures.origin.offset for one in await letters(cluster)] == list(range(1, 400, 2))
    assert await start(cluster) == 400


@in_kafka_cluster("a:1", **EARLIEST)
async def test_a_rejection_that_comes_too_late_stores_no_copy(cluster: KafkaCluster) -> None:
    """Another member has the message by then, and accepts it."""
    await cluster.create("t", partitions=1)
    await produce(cluster, b"0", b"1")
    one, two = await (await sharer(cluster)).line(), await (await sharer(cluster)).line()
    assert len(await one.fetch(0)) == 2
    await asyncio.sleep(LOCK_S + 1)
    found = await two.fetch(0, records=1)
    assert [(got.offset, got.deliveries) for got in found] == [(0, 2)]
    assert await one.acknowledge({0: [(0, 0, [REJECT])]}) == {0: Code.INVALID_RECORD_STATE}
    assert await two.accept(*found) == {0: 0}
    async with cluster.client() as client:
        assert [each.name for each in await client.list_topics()] == ["t"]


@in_kafka_cluster("a:1", "b:1", "c:1", **EARLIEST, bundles=5)
async def test_a_rejected_message_outlives_the_owner_of_its_dead_letters(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    await cluster.create("g.dlq", partitions=1)
    owner = await cluster.owner_of("t", 0)
    if await cluster.owner_of("g.dlq", 0) == owner:
        opened = next(broker.ownership.terms.opened for at, broker in cluster.brokers.items() if at != owner)
        bundle = next(each for each in opened if each != keys.METADATA_BUNDLE)
        await cluster.line(owner).move_partition(pb.MovePartitionRequest(topic="g.dlq", partition=0, bundle=bundle))
    await produce(cluster, b"0")
    line = await (await sharer(cluster)).line()
    found = await line.fetch(0)
    await cluster.stop(await cluster.owner_of("g.dlq", 0), graceful=False)
    async with asyncio.timeout(300):
        while await line.acknowledge({0: [(0, 0, [REJECT])]} if found else {}) != {0: 0}:
            assert await start(cluster) == 0, "finished without a copy"
            await asyncio.sleep(PAUSE_S)
            found = await line.fetch(wait_ms=100)
    assert [one.message.value for one in await letters(cluster)] == [b"0"]
    assert await start(cluster) == 1


# A topic of others


@in_kafka_cluster("a:1", "b:1", **EARLIEST, bundles=5)
async def test_a_topic_with_records_of_others_takes_no_dead_letters(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    await cluster.create("g.dlq", partitions=4)
    await cluster.produce("g.dlq", 3, b"of a program")
    await produce(cluster, b"0", b"1")
    line = await (await sharer(cluster)).line()
    await worn_out(line, 0)
    for _ in range(2):
        assert await line.fetch(wait_ms=100) == []
        assert await start(cluster) == 0, "finished without a copy"
        await asyncio.sleep(PAUSE_S)
    assert [await cluster.read_all("g.dlq", number) for number in range(4)] == [[], [], [], [b"of a program"]]
    await produce(cluster, b"2")
    found = [got for got in await line.fetch(wait_ms=100) if got.value == b"2"]
    answer = await line.ask(acks={0: [(found[0].offset, found[0].offset, [REJECT])]}, wait_ms=100)
    [part] = answer.responses[0].partitions
    assert part.acknowledge_error_code == Code.INVALID_RECORD_STATE
    assert "has records that group 'g' did not put there" in part.acknowledge_error_message
    await cluster.line("a:1").delete_topic(pb.DeleteTopicRequest(name="g.dlq", now=True))
    async with asyncio.timeout(300):
        while await start(cluster) < 3:
            await line.accept(*await line.fetch(wait_ms=100), word=REJECT)
            await asyncio.sleep(1)
    assert [one.message.value for one in await letters(cluster)] == [b"0", b"1", b"2"]
    await produce(cluster, b"3")
    other = await (await sharer(cluster)).line()
    assert await other.accept(*await other.fetch(0), word=REJECT) == {0: 0}
    assert len(await letters(cluster)) == 4, "one that is there already takes more of the group"


@in_kafka_cluster("a:1", **EARLIEST)
async def test_a_connection_remembers_a_bounded_number_of_dead_letter_topics(cluster: KafkaCluster) -> None:
    """What it has forgotten it finds again."""
    kept, real = list[int](), Burying._stored

    async def counted(self: Burying, *about: Any) -> None:
        await real(self, *about)
        kept.append(len(self._letters))

    await cluster.create("t", partitions=1)
    await produce(cluster, b"0", b"1", b"2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(burying, "KEPT_MAX", 2)
        patch.setattr(Burying, "_stored", counted)
        client = cluster.connect("a:1")
        lines = {group: SharerLine(await sharer(cluster, group), client) for group in ("g1", "g2", "g3")}
        for group, offset in ("g1", 0), ("g2", 0), ("g3", 0), ("g1", 1):
            if not offset:
                assert len(await lines[group].fetch(0)) == 3
            assert await lines[group].acknowledge({0: [(offset, offset, [REJECT])]}) == {0: 0}
    assert kept == [1, 2, 2, 2]
    assert [len(await letters(cluster, group)) for group in ("g1", "g2", "g3")] == [2, 1, 1]
