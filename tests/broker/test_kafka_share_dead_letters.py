"""What members of share groups do not finish in five deliveries goes to the dead letters of their group, as with our
own members; in virtual time, byte by byte.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from ledgermq.client.groups.retries.retry_creation import RECORD_BYTES_MAX
from ledgermq.client.operating.dead_letters import DeadLetter
from ledgermq.errors import InvalidRequest
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import ProduceFrame, decode_produce, encode_frame, varint
from ledgermq.protocol.status import error_from_proto
from ledgermq_broker.kafka.handlers.shares.acknowledging import BURYING_S
from ledgermq_broker.kafka.handlers.shares.converting import DELIVERIES_MAX
from ledgermq_ledger import keys
from tests.broker.access import RULES, change, token
from tests.broker.cluster import frame_of, read_all
from tests.broker.kafka_sharers import RELEASE, Sharer, SharerLine
from tests.broker.kafka_world import KafkaCluster, in_kafka_cluster
from tests.broker.test_kafka_identity import proven, topic
from tests.broker.test_kafka_share_expiry import sent_now
from tests.broker.test_kafka_share_groups import produce, sharer, shares
from tests.broker.test_kafka_share_offsets import BUNDLES, EARLIEST

PAUSE_S = 6.0
"""Until a message has come again whose copy could not be stored."""


async def worn_out(line: SharerLine, *partitions: int) -> None:
    """Let each message come as often as is allowed, and never finish it."""
    for attempt in range(1, DELIVERIES_MAX + 1):
        found = await line.fetch(*partitions)
        assert {one.deliveries for one in found} == {attempt}
        assert set((await line.accept(*found, word=RELEASE)).values()) == {0}


async def letters(cluster: KafkaCluster, group: str = "g", root: str = "") -> list[DeadLetter]:
    async with cluster.client(root) as client:
        found = (await client.dead_letters.list(group)).letters
    return sorted(found, key=lambda letter: letter.failures.origin)


async def start(cluster: KafkaCluster, root: str = "") -> int:
    if not root:
        [info] = await shares(cluster)
        return info.start
    async with cluster.client(root) as client:
        [found] = (await client.queues.describe("g")).partitions
    return found.start


@in_kafka_cluster("a:1", "b:1", "c:1", **EARLIEST, bundles=5)
async def test_the_copies_lie_at_other_brokers_and_say_where_they_come_from(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=3, message_ttl_ms="3600000")
    member = await sharer(cluster)
    places: set[tuple[str, str]] = set()
    for number in range(3):
        await sent_now(cluster, b"bad %d" % number, b"worse %d" % number, partition=number)
        line = await member.line(number)
        line.epoch = 0
        await worn_out(line, number)
        assert await line.fetch(wait_ms=100) == []
        places.add((await cluster.owner_of("t", number), await cluster.owner_of("g.dlq", number)))
    found = await letters(cluster)
    assert [(one.failures.origin, one.message.partition, one.message.value) for one in found] == [
        (("t", number, offset), number, b"%s %d" % (word, number))
        for number in range(3)
        for offset, word in enumerate((b"bad", b"worse"))
    ]
    assert {(one.failures.group, one.failures.attempts, one.failures.error) for one in found} == {
        ("g", DELIVERIES_MAX + 1, "its last delivery was not answered")
    }
    assert all("ledgermq.retry.expires-ms" in dict(one.message.headers) for one in found), "as our own members note it"
    assert any(owner != taker for owner, taker in places), "no copy went to another broker: the test shows too little"
    assert await start(cluster) == 2
    async with cluster.client() as client:
        settings = (await client.describe_topic("g.dlq")).settings
    assert settings == {"max.message.bytes": str(1024 * 1024 + 64 * 1024)}


@in_kafka_cluster("a:1", **EARLIEST)
async def test_a_topic_that_is_there_takes_larger_messages_from_then_on(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1, max_message_bytes="3000000")
    await cluster.create("g.dlq", partitions=3)
    await produce(cluster, bytes(2_000_000))
    line = await (await sharer(cluster)).line()
    await worn_out(line, 0)
    assert await line.fetch(wait_ms=100) == []
    [letter] = await letters(cluster)
    assert (letter.message.partition, len(letter.message.value)) == (0, 2_000_000)


@in_kafka_cluster("a:1", **EARLIEST, topic_delete_grace_ms=60_000)
async def test_a_message_stays_until_its_copy_can_be_stored(cluster: KafkaCluster) -> None:
    """The topic of dead letters was deleted, and its name is not free: nothing is finished meanwhile."""
    await cluster.create("t", partitions=1)
    await cluster.create("g.dlq", partitions=1)
    await cluster.line("a:1").delete_topic(pb.DeleteTopicRequest(name="g.dlq"))
    await produce(cluster, b"0", b"1", b"2")
    line = await (await sharer(cluster)).line()
    await worn_out(line, 0)
    for _ in range(3):
        assert await line.fetch(wait_ms=100) == []
        assert await start(cluster) == 0
        await asyncio.sleep(PAUSE_S)
    await asyncio.sleep(120)
    assert await line.fetch(wait_ms=100) == []
    assert [one.message.value for one in await letters(cluster)] == [b"0", b"1", b"2"]
    assert await start(cluster) == 3


@in_kafka_cluster("a:1", "b:1", **EARLIEST, **BUNDLES)
async def test_a_topic_of_dead_letters_that_is_made_anew_is_found(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    line = await (await sharer(cluster)).line()
    await produce(cluster, b"0")
    await worn_out(line, 0)
    assert await line.fetch(wait_ms=100) == []
    await cluster.line("a:1").delete_topic(pb.DeleteTopicRequest(name="g.dlq", now=True))
    await produce(cluster, b"1")
    await worn_out(line)
    async with asyncio.timeout(300):
        while await start(cluster) < 2:
            assert await line.fetch(wait_ms=100) == []
            await asyncio.sleep(1)
    assert [one.message.value for one in await letters(cluster)] == [b"1"]


@in_kafka_cluster("a:1", **EARLIEST)
async def test_a_topic_that_is_made_anew_with_fewer_partitions_takes_all(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=3)
    line = await (await sharer(cluster)).line()
    await produce(cluster, b"0", partition=2)
    await worn_out(line, 2)
    assert await line.fetch(wait_ms=100) == []
    assert [(one.message.partition, one.message.value) for one in await letters(cluster)] == [(2, b"0")]
    await cluster.line("a:1").delete_topic(pb.DeleteTopicRequest(name="g.dlq", now=True))
    async with asyncio.timeout(300), cluster.client() as client:
        while "g.dlq" in [each.name for each in await client.list_topics()]:
            await asyncio.sleep(1)
    await cluster.create("g.dlq", partitions=1)
    await produce(cluster, b"1", partition=2)
    await worn_out(line)
    assert await line.fetch(wait_ms=100) == []
    assert [(one.message.partition, one.message.value) for one in await letters(cluster)] == [(0, b"1")]


@in_kafka_cluster("a:1", **EARLIEST)
async def test_messages_that_become_larger_after_the_first_letter_are_kept(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    line = await (await sharer(cluster)).line()
    await produce(cluster, b"0")
    await worn_out(line, 0)
    assert await line.fetch(wait_ms=100) == []
    await cluster.line("a:1").alter_topic(pb.AlterTopicRequest(name="t", set={"max.message.bytes": "3000000"}))
    await produce(cluster, bytes(2_000_000), b"1")
    await worn_out(line)
    assert await line.fetch(wait_ms=100) == []
    assert [len(one.message.value) for one in await letters(cluster)] == [1, 2_000_000, 1]
    assert await start(cluster) == 3


@pytest.mark.slow
@in_kafka_cluster("a:1", **EARLIEST)
async def test_a_message_whose_copy_no_topic_can_take_is_finished(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1, max_message_bytes=str(RECORD_BYTES_MAX))
    await cluster.produce("t", 0, bytes(RECORD_BYTES_MAX - 100))
    await cluster.produce("t", 0, b"small")
    line = await (await sharer(cluster)).line()
    for _ in range(3 * DELIVERIES_MAX):  # one answer has room for the large one alone
        await line.accept(*await line.fetch(0, wait_ms=100), word=RELEASE)
    assert await line.fetch(wait_ms=100) == []
    assert [one.message.value for one in await letters(cluster)] == [b"small"]
    assert await start(cluster) == 2


def accepting(wanted: str) -> pb.AlterTopicRequest:
    return pb.AlterTopicRequest(name="g.dlq", set={"accept.publish": wanted})


@in_kafka_cluster("a:1", **EARLIEST)
async def test_a_message_stays_while_a_setting_closes_the_topic_of_dead_letters(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    await cluster.create("g.dlq", partitions=1)
    await cluster.line("a:1").alter_topic(accepting("false"))
    await produce(cluster, b"0", b"1")
    line = await (await sharer(cluster)).line()
    await worn_out(line, 0)
    for _ in range(3):
        assert await line.fetch(wait_ms=100) == []
        assert await start(cluster) == 0, "finished without a copy"
        await asyncio.sleep(PAUSE_S)
    await cluster.line("a:1").alter_topic(accepting("true"))
    assert await line.fetch(wait_ms=100) == []
    assert [one.message.value for one in await letters(cluster)] == [b"0", b"1"]
    assert await start(cluster) == 2


@in_kafka_cluster("a:1", "b:1", "c:1", **EARLIEST, bundles=5)
async def test_the_owner_of_the_dead_letters_dies(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    await cluster.create("g.dlq", partitions=4)
    owner = await cluster.owner_of("t", 0)
    number = [await cluster.owner_of("g.dlq", n) != owner for n in range(4)].index(True)
    moved = cluster.brokers[owner].metadata.catalog.topics_by_name["g.dlq"].bundles[number]
    here = cluster.brokers[owner].metadata.catalog.topics_by_name["g.dlq"].bundles[0]
    if here != moved:
        await cluster.line(owner).move_partition(pb.MovePartitionRequest(topic="g.dlq", partition=0, bundle=moved))
    await produce(cluster, b"0", b"1")
    line = await (await sharer(cluster)).line()
    await worn_out(line, 0)
    await cluster.stop(await cluster.owner_of("g.dlq", 0), graceful=False)
    async with asyncio.timeout(300):
        while await start(cluster) < 2:
            assert await line.fetch(wait_ms=100) == []
            await asyncio.sleep(1)
    assert {one.message.value for one in await letters(cluster)} == {b"0", b"1"}


@in_kafka_cluster("a:1", "b:1", **EARLIEST, bundles=5)
async def test_an_owner_of_dead_letters_that_hangs_holds_up_an_answer_for_a_while_alone(cluster: KafkaCluster) -> None:
    """The letters of three partitions go to a broker whose store stands still, those of the fourth to another."""
    for name in ("t", "g.dlq"):
        await cluster.create(name, partitions=4)
    opened = {address: broker.ownership.terms.opened for address, broker in cluster.brokers.items()}
    here, other = sorted(opened, key=lambda address: keys.METADATA_BUNDLE not in opened[address])
    bundles = cluster.brokers[here].metadata.catalog.topics_by_name["t"].bundles
    near, far = (next(bundle for bundle in bundles if bundle in opened[address]) for address in (here, other))
    for name, wanted in (("t", [near] * 4), ("g.dlq", [far, far, far, near])):
        for number, bundle in enumerate(wanted):
            if cluster.brokers[here].metadata.catalog.topics_by_name[name].bundles[number] != bundle:
                move = pb.MovePartitionRequest(topic=name, partition=number, bundle=bundle)
                await cluster.line(here).move_partition(move)
    for number in range(4):
        await produce(cluster, b"%d" % number, partition=number)
    line = await (await sharer(cluster)).line()
    await worn_out(line, 0, 1, 2, 3)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    cluster.views[other].pause()
    assert await line.fetch(wait_ms=100) == []
    assert loop.time() - began_s < BURYING_S + 2, "one partition waited after another"
    assert await read_all(cluster.line(here), "g.dlq", 3) == [b"3"], (
        "what another broker could store waits for the one that hangs"
    )
    cluster.views[other].resume()
    async with asyncio.timeout(300):
        while {one.message.value for one in await letters(cluster)} != {b"0", b"1", b"2", b"3"}:
            assert await line.fetch(wait_ms=100) == []
            await asyncio.sleep(1)


@pytest.mark.parametrize("group", ["g" * 249, "grün", "t"], ids=["long", "other characters", "of the letters"])
def test_a_group_without_dead_letters_goes_on(group: str) -> None:
    @in_kafka_cluster("a:1", **EARLIEST)
    async def test(cluster: KafkaCluster) -> None:
        name = "t.dlq" if group == "t" else "t"
        await cluster.create(name, partitions=1)
        await cluster.produce(name, 0, b"bad")
        member = await Sharer(cluster, group, [name]).enter()
        line = await member.line()
        await worn_out(line, 0)
        assert await line.fetch(wait_ms=100) == []
        await cluster.produce(name, 0, b"good")
        [good] = await line.fetch(wait_ms=100)
        assert (good.value, good.offset) == (b"good", 1)
        async with cluster.client() as client:
            assert [each.name for each in await client.list_topics()] == [name]

    test()


@in_kafka_cluster("a:1", **RULES, **EARLIEST)
async def test_copies_are_made_by_the_rights_of_the_caller(cluster: KafkaCluster) -> None:
    await topic(cluster, "t")
    root = await token(cluster, "root")
    granted = await change(cluster, grant=["allow user:ann group g", "allow user:ann consume t"])
    assert len(granted) == 2

    async def line_of_ann() -> SharerLine:
        member = Sharer(cluster)
        member.client = await proven(cluster, "ann")
        assert (await member.beat()).error_code == 0
        return SharerLine(member, await proven(cluster, "ann"))

    async def written(value: bytes) -> None:
        request = frame_of("t", 0, value)
        [result] = (await cluster.line("a:1", root.text).produce_once(request)).results
        assert not result.HasField("error")

    await written(b"0")
    line = await line_of_ann()
    await worn_out(line, 0)
    assert await line.fetch(wait_ms=100) == []
    assert await start(cluster, root.text) == 1, "as in Kafka: finished without a copy"
    async with cluster.client(root.text) as client:
        assert "g.dlq" not in [each.name for each in await client.list_topics()]
    await change(cluster, grant=["allow user:ann produce,describe,create g.dlq"])
    await written(b"1")
    line = await line_of_ann()
    await worn_out(line, 0)
    assert await line.fetch(wait_ms=100) == []
    assert [one.message.value for one in await letters(cluster, root=root.text)] == [b"1"]
    assert await start(cluster, root.text) == 2


@in_kafka_cluster("a:1", **RULES, **EARLIEST)
async def test_a_copy_too_large_for_a_topic_that_the_caller_may_not_alter_is_given_up(cluster: KafkaCluster) -> None:
    root = await token(cluster, "root")
    await topic(cluster, "t")
    await cluster.create("g.dlq", 1, root.text, max_message_bytes="1000")
    await change(cluster, grant=["allow user:ann group g", "allow user:ann consume t"])
    await change(cluster, grant=["allow user:ann produce,describe g.dlq"])
    request = frame_of("t", 0, b"small", bytes(2000))
    [result] = (await cluster.line("a:1", root.text).produce_once(request)).results
    assert not result.HasField("error")
    member = Sharer(cluster)
    member.client = await proven(cluster, "ann")
    assert (await member.beat()).error_code == 0
    line = SharerLine(member, await proven(cluster, "ann"))
    await worn_out(line, 0)
    assert await line.fetch(wait_ms=100) == []
    assert [one.message.value for one in await letters(cluster, root=root.text)] == [b"small"]
    assert await start(cluster, root.text) == 2, "it could never be finished otherwise"


@in_kafka_cluster("a:1", "b:1", **BUNDLES)
async def test_a_broker_hands_on_one_batch_without_a_session(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=4)
    owner = await cluster.owner_of("t", 0)
    other = cluster.line(next(address for address in cluster.brokers if address != owner))

    def handed(frame: ProduceFrame) -> ProduceFrame:
        return replace(frame, at_owner=True)

    [result] = (await other.produce_once(handed(frame_of("t", 0, b"0", b"1")))).results
    assert (result.HasField("error"), result.base_offset) == (False, 0)
    assert await cluster.read_all("t", 0) == [b"0", b"1"]
    [result] = (await other.produce_once(handed(frame_of("none", 0, b"0")))).results
    assert error_from_proto(result.error).code == "UNKNOWN_TOPIC"
    [result] = (await other.produce_once(handed(frame_of("t", 9, b"0")))).results
    assert error_from_proto(result.error).code == "UNKNOWN_PARTITION"
    session = pb.ProducerSession(id=bytes(16), sequence=0)
    with pytest.raises(InvalidRequest, match="none with a session"):
        await other.produce_once(handed(frame_of("t", 0, b"2", session=session)))
    twice = handed(frame_of("t", 0, b"2"))
    twice.header.batches.append(twice.header.batches[0])
    with pytest.raises(InvalidRequest, match="one batch"):
        await other.produce_once(twice)
    assert await cluster.read_all("t", 0) == [b"0", b"1"]


@in_kafka_cluster("a:1", "b:1", **BUNDLES)
async def test_what_comes_over_the_network_is_not_handed_on(cluster: KafkaCluster) -> None:
    """The owner would not know the principal. A header field of number 4 asked for it once."""
    await cluster.create("t", partitions=4)
    owner = await cluster.owner_of("t", 0)
    other = cluster.line(next(address for address in cluster.brokers if address != owner))
    sent = replace(frame_of("t", 0, b"0"), at_owner=True)
    header = sent.header.SerializeToString() + b"\x20\x01"
    payload = b"".join(sent.payload)
    crafted = b"".join((b"\x0a", varint(len(header)), header, b"\x12", varint(len(payload)), payload))
    for received in (decode_produce(encode_frame(sent)), decode_produce(crafted)):
        [result] = (await other.produce_once(received)).results
        assert error_from_proto(result.error).code == "NOT_OWNER"
    assert await cluster.read_all("t", 0) == []
