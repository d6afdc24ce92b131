"""Share groups in trouble: owners that die or hand over, moves, deletions, twins, a store that is away; and random
lives of members, with planted bugs that their judge finds.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable

import pytest

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.kafka.handlers.shares import acknowledging, converting, leases
from ledgermq_broker.kafka.handlers.shares.acknowledging import Heard
from ledgermq_broker.kafka.handlers.shares.fetching import ShareHandler
from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import delete_topics_request as d
from ledgermq_broker.kafka.wire.messages import DELETE_TOPICS
from tests.broker.kafka_sharers import ACCEPT, RELEASE, Got, Sharer, SharerLine, got_of
from tests.broker.kafka_world import Ended, KafkaCluster, batch_of, in_kafka_cluster, kafka_cluster
from tests.broker.test_kafka_share_groups import EARLIEST, LOCK_S, produce, sharer, values
from tests.broker.test_kafka_transaction_moves import move
from tests.virtual_time import virtual
from tests.waiting import until

MESSAGES = 60
LIFE_S = 400


@in_kafka_cluster("a:1", "b:1", **EARLIEST)
async def test_a_takeover_ends_the_locks_and_what_was_accepted_stays_so(cluster: KafkaCluster) -> None:
    await cluster.create("t")
    await produce(cluster, *(b"%d" % n for n in range(3)))
    member = await sharer(cluster)
    line = await member.line()
    assert len(await line.fetch(0)) == 3
    assert await line.acknowledge({0: [(0, 0, [ACCEPT])]}) == {0: 0}
    await cluster.stop(line.client.address, graceful=False)
    line = await member.line()
    found = await line.fetch(0, wait_ms=5000)
    assert values(found) == [b"1", b"2"]
    assert await line.accept(*found) == {0: 0}


@in_kafka_cluster("a:1", "b:1", **EARLIEST)
async def test_a_partition_moves_while_its_messages_are_held(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    await produce(cluster, *(b"%d" % n for n in range(3)))
    member = await sharer(cluster)
    line = await member.line()
    assert len(await line.fetch(0)) == 3
    assert await line.acknowledge({0: [(0, 0, [ACCEPT])]}) == {0: 0}
    await move(cluster)
    late = await line.acknowledge({0: [(1, 1, [ACCEPT])]})
    assert late[0] in (Code.NOT_LEADER_OR_FOLLOWER, Code.INVALID_RECORD_STATE)
    after = SharerLine(member, cluster.connect(await cluster.owner_of("t", 0)))
    found = await after.fetch(0, wait_ms=10_000)
    assert values(found) == [b"1", b"2"]
    assert await after.accept(*found) == {0: 0}


@in_kafka_cluster("a:1", **EARLIEST)
async def test_a_topic_is_deleted_and_made_again_under_its_session(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1, topic_delete_grace_ms="0")
    await produce(cluster, b"old")
    member = await sharer(cluster)
    line = await member.line()
    assert values(await line.fetch(0)) == [b"old"]
    deleted = await line.client.call(DELETE_TOPICS, 5, d.DeleteTopicsRequest(topic_names=["t"], timeout_ms=10_000))
    assert deleted.responses[0].error_code == 0
    assert await line.acknowledge({0: [(0, 0, [ACCEPT])]}) == {0: Code.UNKNOWN_TOPIC_OR_PARTITION}
    [part] = (await line.ask()).responses[0].partitions
    assert part.error_code == Code.UNKNOWN_TOPIC_ID
    await cluster.create("t", partitions=1)
    await produce(cluster, b"new")
    before = member.topic_id
    await member.beat()
    assert member.topic_id != before, "a heartbeat names the topic that is there now"
    answer = await line.ask(0, wait_ms=1000)
    by_topic = {topic.topic_id: topic.partitions[0] for topic in answer.responses}
    assert by_topic[before].error_code == Code.UNKNOWN_TOPIC_ID
    answer = await line.ask(wait_ms=1000) if member.topic_id not in by_topic else answer
    by_topic = {topic.topic_id: topic.partitions[0] for topic in answer.responses}
    assert values(got_of(by_topic[member.topic_id])) == [b"new"]


@in_kafka_cluster("a:1", **EARLIEST)
async def test_twins_with_one_member_id_hold_their_own_messages(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    await produce(cluster, b"0", b"1")
    member = await sharer(cluster)
    address = await cluster.owner_of("t", 0)
    one, two = SharerLine(member, cluster.connect(address)), SharerLine(member, cluster.connect(address))
    assert values(await one.fetch(0, records=1)) == [b"0"]
    assert values(await two.fetch(0, records=1)) == [b"1"]
    assert await one.acknowledge({0: [(1, 1, [ACCEPT])]}) == {0: Code.INVALID_RECORD_STATE}
    assert await two.acknowledge({0: [(1, 1, [ACCEPT])]}) == {0: 0}
    await two.client.close()
    assert await one.acknowledge({0: [(0, 0, [ACCEPT])]}) == {0: 0}, "the end of one ends nothing of the other"


@in_kafka_cluster("a:1", **EARLIEST)
async def test_a_word_during_an_outage_of_the_store_counts_or_may_be_said_again(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    await produce(cluster, b"0")
    line = await (await sharer(cluster)).line()
    await line.fetch(0)
    cluster.views["a:1"].pause()
    saying = asyncio.create_task(line.acknowledge({0: [(0, 0, [ACCEPT])]}))
    await asyncio.sleep(3)
    assert not saying.done(), "an answer is durable"
    cluster.views["a:1"].resume()
    code = (await saying)[0]
    if code:
        assert code == Code.REQUEST_TIMED_OUT
        assert (await line.acknowledge({0: [(0, 0, [ACCEPT])]}))[0] == 0
    await asyncio.sleep(LOCK_S + 2)
    assert await line.fetch(wait_ms=1000) == []


# Random lives


class Judge:
    """`accepted`: how often a word about an offset counted. `after`: deliveries of a message after its word counted."""

    def __init__(self) -> None:
        self.accepted = Counter[int]()
        self.after: list[int] = []
        self.unsure: set[int] = set()

    def got(self, messages: list[Got], done_before: set[int]) -> None:
        self.after += [one.offset for one in messages if one.offset in done_before]


async def worker(cluster: KafkaCluster, judge: Judge, rng: random.Random) -> None:
    member = await Sharer(cluster).enter()
    while True:
        try:
            await session(member, judge, rng)
        except Ended:
            await asyncio.sleep(0.2)


async def session(member: Sharer, judge: Judge, rng: random.Random) -> None:
    """Work on one connection, until it ends, or the member drops it."""
    line = SharerLine(member, member.cluster.connect(await member.cluster.owner_of("t", 0)))
    for _ in range(rng.randrange(3, 12)):
        done = set(judge.accepted)
        answer = await line.ask(0, wait_ms=300, records=rng.randrange(1, 8))
        parts = [part for topic in answer.responses for part in topic.partitions]
        if answer.error_code or any(part.error_code for part in parts):
            break
        found = [one for part in parts for one in got_of(part)]
        judge.got(found, done)
        if rng.random() < 0.15:
            await asyncio.sleep(LOCK_S * rng.choice((0.5, 1.2)))
        for one in found:
            await say(line, one, judge, rng)
    await line.client.close()


async def say(line: SharerLine, one: Got, judge: Judge, rng: random.Random) -> None:
    chance = rng.random()
    if chance < 0.1 and one.deliveries < 3:
        return  # nothing is said: its lock ends with its time, or with the connection
    word = RELEASE if chance < 0.2 and one.deliveries < 3 else ACCEPT
    judge.unsure.add(one.offset)
    code = (await line.accept(one, word=word))[0]
    judge.unsure.discard(one.offset)
    if code == 0 and word == ACCEPT:
        judge.accepted[one.offset] += 1


async def killer(cluster: KafkaCluster, rng: random.Random) -> None:
    for _ in range(3):
        await asyncio.sleep(rng.uniform(1, 8))
        address = await cluster.owner_of("t", 0)
        await cluster.stop(address, graceful=rng.random() < 0.5)
        await cluster.start(address)


async def finished(cluster: KafkaCluster) -> bool:
    """Whether the group has passed the last message."""
    address = await cluster.owner_of("t", 0)
    bundle = cluster.brokers[address].metadata.catalog.living("t").bundles[0]
    answer = await cluster.line(address).list_shares(pb.ListSharesRequest(bundle=bundle, group="g"))
    return [one.start for one in answer.shares if one.partition == 0] == [MESSAGES]


async def live(seed: int) -> Judge:
    """Let members live until all messages are finished."""
    rng, judge = random.Random(seed), Judge()
    async with kafka_cluster("a:1", "b:1", **EARLIEST) as cluster:
        await cluster.create("t", partitions=1)
        for number in range(0, MESSAGES, 6):
            answer = await (await cluster.leader_client("t", 0)).produce(
                "t", 0, batch_of(*(b"%d" % (number + n) for n in range(6)))
            )
            assert answer.error_code == 0
        tasks = [asyncio.create_task(worker(cluster, judge, random.Random(rng.random()))) for _ in range(3)]
        tasks.append(asyncio.create_task(killer(cluster, rng)))
        try:
            await until(tasks[-1].done, LIFE_S)
            await tasks[-1]
            await until(lambda: finished(cluster), LIFE_S, every_s=1.0)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    return judge


def faults(judge: Judge) -> list[str]:
    found = [f"{offset} was accepted {count} times" for offset, count in judge.accepted.items() if count > 1]
    found += [f"{offset} came after it was accepted" for offset in judge.after]
    missing = set(range(MESSAGES)) - set(judge.accepted) - judge.unsure
    return found + [f"{offset} was never accepted" for offset in sorted(missing)]


@pytest.mark.slow
@virtual
async def test_random_lives_lose_nothing_and_finish_each_message_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converting, "DELIVERIES_MAX", 60)  # else some messages are finished because nothing was said
    for seed in range(4):
        assert faults(await live(seed)) == [], f"seed {seed}"


# Planted bugs

Plant = Callable[[pytest.MonkeyPatch], None]


def late_words_count(patch: pytest.MonkeyPatch) -> None:
    heard = acknowledging._heard

    def found(result: object, spans: acknowledging.Spans) -> Heard:
        return Heard(spans=spans) if isinstance(result, pb.SharePartitionResult) else heard(result, spans)  # type: ignore[arg-type]

    patch.setattr(acknowledging, "_heard", found)


def an_error_is_taken_for_success(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(acknowledging, "_code", lambda error: Code.NONE)


def a_release_is_an_acceptance(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(leases.WORDS, RELEASE, pb.ACCEPT)


def the_end_of_a_connection_accepts(patch: pytest.MonkeyPatch) -> None:
    give_back = ShareHandler._give_back

    async def accepts(self: ShareHandler, api: object, session: object, word: object) -> None:
        await give_back(self, api, session, pb.ACCEPT)  # type: ignore[arg-type]

    patch.setattr(ShareHandler, "_give_back", accepts)


@pytest.mark.parametrize(
    "plant",
    [late_words_count, an_error_is_taken_for_success, a_release_is_an_acceptance, the_end_of_a_connection_accepts],
)
@virtual
async def test_the_judge_finds_planted_bugs(monkeypatch: pytest.MonkeyPatch, plant: Plant) -> None:
    monkeypatch.setattr(converting, "DELIVERIES_MAX", 60)
    plant(monkeypatch)
    for seed in range(12):
        if faults(await live(seed)):
            return
    raise AssertionError(f"{plant.__name__} was not found")
