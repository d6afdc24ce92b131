"""Transactions of Kafka's second protocol (KIP-890), in virtual time and byte by byte: nothing is added beforehand, and
each transaction has an epoch of its own.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from ledgermq_broker.cluster.heartbeat import KAFKA_RENEWALS
from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import api_versions_request as av
from ledgermq_broker.kafka.wire.messages import API_VERSIONS, END_TXN
from tests.broker.kafka_consumers import KafkaConsumer
from tests.broker.kafka_members import KafkaMember
from tests.broker.kafka_producer import KafkaProducer, SecondProducer
from tests.broker.kafka_world import Ended, KafkaCluster, in_kafka_cluster
from tests.broker.test_kafka_settled import Held
from tests.broker.test_kafka_transaction_moves import move
from tests.broker.test_kafka_transactions import shows, until_committed
from tests.waiting import until

FIRST_EPOCH = 0


async def offered(cluster: KafkaCluster, address: str, version: int = 4) -> tuple[int, list[tuple[str, int]]]:
    """Return the epoch of the features that a broker offers, and their levels."""
    request = av.ApiVersionsRequest(client_software_name="test", client_software_version="1")
    answer = await cluster.connect(address).call(API_VERSIONS, version, request)
    found = [(one.name, one.max_version_level) for one in answer.finalized_features]
    assert [one.name for one in answer.supported_features] == [name for name, _ in found]
    assert all(one.min_version >= 1 for one in answer.supported_features), "Java 3 takes no 0"
    return answer.finalized_features_epoch, found


async def begun(cluster: KafkaCluster, partitions: int = 2, timeout_ms: int = 60_000) -> SecondProducer:
    await cluster.create("t", partitions=partitions)
    producer = SecondProducer(cluster)
    await producer.init(timeout_ms)
    assert producer.epoch == FIRST_EPOCH
    return producer


# What is offered


@in_kafka_cluster("a:1", "b:1")
async def test_the_protocol_is_offered_while_every_broker_speaks_it(cluster: KafkaCluster) -> None:
    """An older one would lose the epoch of a producer at a takeover, and fence it."""
    for version in (3, 4):
        assert await offered(cluster, "a:1", version) == (1, [("transaction.version", 2), ("share.version", 1)])
    older = cluster.brokers["b:1"].membership
    features = tuple(each for each in older.me.features if each != KAFKA_RENEWALS)
    older.me = replace(older.me, features=features, release="0.0.9")
    await until(lambda: bool(cluster.brokers["a:1"].membership.lacking(KAFKA_RENEWALS)))
    assert await offered(cluster, "a:1") == (-1, [])  # unknown: a client keeps the highest epoch that it has seen
    await cluster.stop("b:1")
    await until(lambda: not cluster.brokers["a:1"].membership.lacking(KAFKA_RENEWALS))
    assert await offered(cluster, "a:1") == (1, [("transaction.version", 2), ("share.version", 1)])


# One producer


@in_kafka_cluster("a:1", "b:1")
async def test_each_transaction_has_an_epoch_and_shows_all_or_nothing(cluster: KafkaCluster) -> None:
    producer = await begun(cluster, partitions=3)
    for number in range(3):
        assert await producer.send("t", number, b"%d" % number) == 0
        assert await producer.send("t", number, b"more") == 0
        part = await (await cluster.leader_client("t", number)).fetch("t", number, 0)
        assert (part.high_watermark, part.last_stable_offset, bytes(part.records or b"")) == (0, 0, b"")
    assert await producer.end() == 0
    assert producer.epoch == 1
    for number in range(3):
        await shows(cluster, "t", number, b"%d" % number, b"more")
    await producer.transaction({("t", 0): b"never", ("t", 2): b"never"}, commit=False)
    assert producer.epoch == 2
    await producer.transaction({("t", 0): b"a", ("t", 2): b"b"})
    await shows(cluster, "t", 0, b"0", b"more", b"a")
    await shows(cluster, "t", 2, b"2", b"more", b"b")
    assert producer.epoch == 3


@in_kafka_cluster("a:1", "b:1")
async def test_transactions_follow_each_other_in_one_partition(cluster: KafkaCluster) -> None:
    producer = await begun(cluster, partitions=1)
    kept = []
    for n in range(40):
        commit = n % 3 != 1
        await producer.transaction({("t", 0): b"%d" % n}, commit=commit)
        kept += [b"%d" % n] if commit else []
    await shows(cluster, "t", 0, *kept)
    assert producer.epoch == 40


@in_kafka_cluster("a:1")
async def test_a_repeated_end_gets_the_same_epoch(cluster: KafkaCluster) -> None:
    producer = await begun(cluster)
    assert await producer.send("t", 0, b"a") == 0
    asked = producer.ending(True)
    answers = [await producer.at_coordinator(END_TXN, 5, asked) for _ in range(3)]
    assert {(one.error_code, one.producer_id, one.producer_epoch) for one in answers} == {(0, producer.id, 1)}
    assert await producer.end(commit=False) == Code.INVALID_TXN_STATE
    assert (await producer.at_coordinator(END_TXN, 4, asked)).error_code == Code.PRODUCER_FENCED
    producer.epoch = 1
    producer.sequences.clear()
    assert await producer.end() == Code.INVALID_TXN_STATE  # nothing to commit, as in Kafka
    assert await producer.end(commit=False) == 0
    assert producer.epoch == 2
    await producer.transaction({("t", 0): b"b"})
    await shows(cluster, "t", 0, b"a", b"b")


@in_kafka_cluster("a:1", "b:1")
async def test_what_comes_late_is_in_no_later_transaction(cluster: KafkaCluster) -> None:
    """With the first protocol it may begin the next one, end it, or put older offsets in place of newer ones."""
    producer = await begun(cluster, partitions=1)
    late = producer.batch("t", 0, b"late", sequence=0)
    before, ending = SecondProducer(cluster), producer.ending(True)
    before.id, before.epoch = producer.id, producer.epoch
    assert await producer.end(commit=False) == 0  # it has given up what it has sent
    for _ in range(2):
        assert (await before.send_once("t", 0, late)).error_code == Code.TRANSACTION_ABORTABLE
        assert await before.send_offsets("g", 3) == Code.TRANSACTION_ABORTABLE
    assert await producer.send("t", 0, b"a") == 0
    assert await producer.send_offsets("g", 9) == 0
    assert (await before.send_once("t", 0, late)).error_code == Code.INVALID_PRODUCER_EPOCH
    assert await before.send_offsets("g", 3) == Code.INVALID_PRODUCER_EPOCH
    assert (await producer.at_coordinator(END_TXN, 5, ending)).error_code == Code.PRODUCER_FENCED
    assert await before.add(("t", 0)) == Code.PRODUCER_FENCED
    assert await producer.end() == 0
    await shows(cluster, "t", 0, b"a")
    await until_committed(cluster, "g", 9)


@in_kafka_cluster("a:1", "b:1")
async def test_a_second_producer_fences_the_epoch_that_was_given_out(cluster: KafkaCluster) -> None:
    first = await begun(cluster)
    await first.transaction({("t", 0): b"a"})
    second = SecondProducer(cluster)
    await second.init()
    assert (second.id, second.epoch) == (first.id, 2)
    assert await first.send("t", 0, b"never") == Code.INVALID_PRODUCER_EPOCH
    assert await first.send_offsets("g", 1) == Code.INVALID_PRODUCER_EPOCH
    assert await first.end(commit=False) == Code.PRODUCER_FENCED
    await second.transaction({("t", 0): b"b"})
    await shows(cluster, "t", 0, b"a", b"b")


@in_kafka_cluster("a:1", "b:1")
async def test_after_a_time_out_a_producer_aborts_and_goes_on(cluster: KafkaCluster) -> None:
    producer = await begun(cluster, timeout_ms=5000)
    assert await producer.send("t", 0, b"never") == 0
    await asyncio.sleep(8.0)
    assert await producer.send("t", 1, b"never") == Code.TRANSACTION_ABORTABLE
    assert await producer.send("t", 0, b"never") == Code.TRANSACTION_ABORTABLE
    assert await producer.send_offsets("g", 1) == Code.TRANSACTION_ABORTABLE
    assert await producer.end() == Code.TRANSACTION_ABORTABLE
    assert await producer.end(commit=False) == 0
    assert producer.epoch == 1
    await producer.transaction({("t", 0): b"a", ("t", 1): b"b"})
    await shows(cluster, "t", 0, b"a")
    await shows(cluster, "t", 1, b"b")


@in_kafka_cluster("a:1", "b:1")
async def test_a_producer_that_timed_out_and_was_replaced_is_fenced(cluster: KafkaCluster) -> None:
    first, second = await begun(cluster, timeout_ms=5000), SecondProducer(cluster)
    assert await first.send("t", 0, b"never") == 0
    await asyncio.sleep(8.0)
    await second.init()
    assert await first.send("t", 0, b"never") == Code.INVALID_PRODUCER_EPOCH
    assert await first.end(commit=False) == Code.PRODUCER_FENCED
    await second.transaction({("t", 0): b"a"})
    await shows(cluster, "t", 0, b"a")


@in_kafka_cluster("a:1", "b:1")
async def test_the_next_transaction_waits_for_the_end_of_the_one_before(cluster: KafkaCluster) -> None:
    producer = await begun(cluster, partitions=1)
    with pytest.MonkeyPatch.context() as patch:
        held = Held(patch)
        await producer.transaction({("t", 0): b"a"})
        batch = producer.batch("t", 0, b"b", sequence=0)
        refused = await producer.send_once("t", 0, batch)
        assert refused.error_code == Code.CONCURRENT_TRANSACTIONS  # clients send it again
        ended = await (await producer.coordinator()).call(END_TXN, 5, producer.ending(False))
        assert ended.error_code == Code.CONCURRENT_TRANSACTIONS
        held.release()
    assert await producer.end(commit=False) == 0
    await producer.transaction({("t", 0): b"c"})
    await shows(cluster, "t", 0, b"a", b"c")


@pytest.mark.parametrize(("version", "code"), [(9, Code.INVALID_TXN_STATE), (11, Code.TRANSACTION_ABORTABLE)])
@in_kafka_cluster("a:1")
async def test_earlier_versions_add_nothing(cluster: KafkaCluster, version: int, code: Code) -> None:
    await cluster.create("t", partitions=1)
    producer = KafkaProducer(cluster)
    producer.produce_version = version
    await producer.init()
    assert await producer.send("t", 0, b"a") == code
    for of_offsets, expected in ((3, Code.INVALID_TXN_STATE), (4, Code.TRANSACTION_ABORTABLE)):
        assert await producer.send_offsets("g", 1, version=of_offsets) == expected
    assert await producer.end(version=4) == Code.INVALID_TXN_STATE
    assert await producer.add_group("g") == 0


@in_kafka_cluster("a:1", "b:1")
async def test_producers_of_both_protocols_follow_each_other(cluster: KafkaCluster) -> None:
    second = await begun(cluster)
    await second.transaction({("t", 0): b"a"})
    first = KafkaProducer(cluster)
    await first.init()
    await first.transaction({("t", 0): b"b"})
    await first.transaction({("t", 0): b"c"})
    assert first.epoch == 2
    await first.init(producer_id=first.id, epoch=first.epoch)  # as Java does when it begins with the second protocol
    second.id, second.epoch = first.id, first.epoch
    second.sequences.clear()
    assert second.epoch == 3
    await second.transaction({("t", 0): b"d"})
    await shows(cluster, "t", 0, b"a", b"b", b"c", b"d")


# Offsets


@in_kafka_cluster("a:1", "b:1")
async def test_offsets_of_members_of_both_kinds_are_committed_with_the_records(cluster: KafkaCluster) -> None:
    producer = await begun(cluster)
    classic, assigned = KafkaMember(cluster, "classic"), KafkaConsumer(cluster, "assigned")
    await classic.enter()
    await assigned.enter()
    assert await producer.send("t", 1, b"a") == 0
    for member in (classic, assigned):
        present = {"member_id": member.id, "generation_id": member.generation}
        assert await producer.send_offsets(member.group, 7, **present) == 0
        former = {**present, "generation_id": member.generation + 5}
        assert await producer.send_offsets(member.group, 8, **former) == Code.ILLEGAL_GENERATION
        strange = {**present, "member_id": "nobody"}
        assert await producer.send_offsets(member.group, 8, **strange) == Code.UNKNOWN_MEMBER_ID
    assert await producer.end() == 0
    for group in ("classic", "assigned"):
        await until_committed(cluster, group, 7)
    await shows(cluster, "t", 1, b"a")


@in_kafka_cluster("a:1")
async def test_a_transaction_may_have_offsets_alone(cluster: KafkaCluster) -> None:
    producer = await begun(cluster)
    for offset in (4, 2):  # it may go back, as in Kafka
        assert await producer.send_offsets("g", offset) == 0
        assert await producer.end() == 0
        await until_committed(cluster, "g", offset)
    assert await producer.send_offsets("g", 9) == 0
    assert await producer.end(commit=False) == 0
    await until_committed(cluster, "g", 2)


# Takeovers, moves


@pytest.mark.parametrize("which", ["coordinator", "leader"])
@pytest.mark.parametrize("when", ["first batch", "batch", "offsets", "end", "answer"])
@in_kafka_cluster("a:1", "b:1", "c:1", "d:1")
async def test_a_broker_dies_within_a_transaction(cluster: KafkaCluster, which: str, when: str) -> None:
    producer = await begun(cluster, partitions=4)
    await producer.transaction({("t", n): b"first" for n in range(4)})

    async def step(name: str) -> None:
        if name == when:
            coordinator = (await producer.coordinator()).address
            await cluster.stop(
                coordinator if which == "coordinator" else await cluster.owner_of("t", 0), graceful=False
            )

    await step("first batch")
    for n in range(3):
        assert await producer.send("t", n, b"second") == 0
    await step("batch")
    assert await producer.send("t", 0, b"third") == 0
    assert await producer.send("t", 3, b"second") == 0
    await step("offsets")
    assert await producer.send_offsets("g", 5) == 0
    await step("end")
    if when == "answer":
        asked = producer.ending(True)
        ending = asyncio.create_task((await producer.coordinator()).call(END_TXN, 5, asked))
        await asyncio.sleep(0)
        await step("answer")
        await asyncio.wait([ending])
        assert ending.exception() is None or isinstance(ending.exception(), Ended)
    assert await producer.end() == 0
    assert producer.epoch == 2
    for n in range(4):
        await shows(cluster, "t", n, *[b"first", b"second", b"third"][: 3 if n == 0 else 2])
    await until_committed(cluster, "g", 5)
    await producer.transaction({("t", n): b"never" for n in range(4)}, commit=False)
    await producer.transaction({("t", 1): b"end"})
    await shows(cluster, "t", 1, b"first", b"second", b"end")
    assert producer.epoch == 4


@in_kafka_cluster("a:1", "b:1")
async def test_a_partition_moves_between_two_transactions(cluster: KafkaCluster) -> None:
    """Sequences begin anew with each epoch, so the other bundle lacks nothing."""
    producer = await begun(cluster, partitions=1)
    kept = []
    for n in range(4):
        await producer.transaction({("t", 0): b"%d" % n})
        kept.append(b"%d" % n)
        if n == 1:
            await move(cluster)
    await shows(cluster, "t", 0, *kept)
    assert producer.epoch == 4
