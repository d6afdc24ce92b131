"""Queue groups in brokers: leases, words of members, owners that change, former owners, retention, and calls that are
refused; in virtual time.
"""

from __future__ import annotations

import asyncio

import pytest

from ledgermq.errors import (
    InvalidGroupName,
    InvalidRequest,
    InvalidTopicName,
    LedgerMQError,
    NotOwner,
    OffsetOutOfRange,
    RetriableError,
    UnknownTopic,
)
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.status import error_from_proto
from ledgermq_ledger import keys
from ledgermq_ledger.object_store.memory import MemoryStore
from tests.broker.cluster import Cluster, cluster_of, in_cluster
from tests.broker.groups import ask
from tests.broker.queue_calls import TOPIC, Leased, answer, answer_at, fetch, leased_of, request_of, shown
from tests.virtual_time import virtual, virtual_sources


async def stock(cluster: Cluster, *values: bytes, **settings: str) -> int:
    """Return the bundle of the partition."""
    made = await cluster.create(TOPIC, 1, **settings)
    await cluster.produce(TOPIC, 0, *values)
    return made.partitions[0].bundle


def offsets(messages: list[Leased]) -> list[int]:
    return [message.offset for message in messages]


@in_cluster("a:1")
async def test_members_share_a_partition(cluster: Cluster) -> None:
    bundle = await stock(cluster, b"0", b"1", b"2", b"3", b"4")
    one, two = await fetch(cluster, 2, member="one"), await fetch(cluster, 9, member="two")
    assert offsets(one) == [0, 1]
    assert [(m.offset, m.value, m.deliveries) for m in two] == [(2, b"2", 1), (3, b"3", 1), (4, b"4", 1)]
    assert await answer(cluster, two) == []
    [info] = await shown(cluster, bundle)
    assert (info.group, info.topic, info.start, info.end, info.high_watermark) == ("workers", TOPIC, 0, 5, 5)
    assert (info.leased, info.finished, [m.member_id for m in info.members]) == (2, 3, ["one"])
    assert await answer(cluster, one, pb.REJECT) == []
    [info] = await shown(cluster, bundle)
    assert (info.start, info.leased, info.finished) == (5, 0, 0)
    assert await fetch(cluster) == []


@in_cluster("a:1")
async def test_a_lease_that_ended_is_given_to_another(cluster: Cluster) -> None:
    await stock(cluster, b"0", b"1")
    [first, second] = await fetch(cluster, lease_ms=5000)
    begun = asyncio.get_running_loop().time()
    again = await fetch(cluster, member="two", max_wait_ms=20_000)
    assert asyncio.get_running_loop().time() - begun == pytest.approx(5.0, abs=0.3)
    assert [(m.offset, m.deliveries) for m in again] == [(0, 2), (1, 2)]
    assert await answer(cluster, [first, second]) == [0, 1]
    assert await answer(cluster, [first], pb.RELEASE_SHARE) == [0]
    assert await answer(cluster, again) == []
    assert await answer(cluster, again) == [], "its answer may have been lost"
    assert await answer(cluster, [first, second]) == [0, 1], "it was the other member that finished them"
    assert await answer(cluster, [first], pb.RENEW) == [0]


@in_cluster("a:1")
async def test_release_with_a_delay_and_renewal(cluster: Cluster) -> None:
    await stock(cluster, b"0", b"1", b"2")
    leased = await fetch(cluster, lease_ms=5000)
    assert await answer(cluster, leased[:1], pb.RELEASE_SHARE, time_ms=60_000) == []
    assert await answer(cluster, leased[1:2], pb.RENEW, time_ms=100_000) == []
    assert await answer(cluster, leased[2:], pb.RETURN) == []
    returned = await fetch(cluster, max_wait_ms=1)
    assert [(m.offset, m.deliveries) for m in returned] == [(2, 1)]
    assert await answer(cluster, returned) == []
    begun = asyncio.get_running_loop().time()
    while not (released := await fetch(cluster, max_wait_ms=20_000)):
        pass
    assert asyncio.get_running_loop().time() - begun == pytest.approx(60.0, abs=1.0)
    assert [(m.offset, m.deliveries) for m in released] == [(0, 2)]
    assert await answer(cluster, leased[1:2]) == [], "the renewed lease lasts"


@in_cluster("a:1")
async def test_a_waiting_member_gets_what_is_produced_and_what_is_released(cluster: Cluster) -> None:
    await stock(cluster, b"0")
    leased = await fetch(cluster)
    waiting = asyncio.create_task(fetch(cluster, max_wait_ms=30_000, member="two"))
    await asyncio.sleep(1)
    assert not waiting.done()
    await cluster.produce(TOPIC, 0, b"1")
    assert offsets(await waiting) == [1]
    waiting = asyncio.create_task(fetch(cluster, max_wait_ms=30_000, member="two"))
    await asyncio.sleep(1)
    await answer(cluster, leased, pb.RELEASE_SHARE)
    assert offsets(await waiting) == [0]


@in_cluster("a:1", "b:1")
async def test_the_next_owner_knows_what_is_acknowledged(cluster: Cluster) -> None:
    bundle = await stock(cluster, *(str(i).encode() for i in range(10)))
    leased = await fetch(cluster)
    assert await answer(cluster, [m for m in leased if m.offset % 3]) == []
    assert await answer(cluster, [leased[0]], pb.RELEASE_SHARE) == []
    owner = await cluster.owner_of(TOPIC, 0)
    await cluster.stop(owner, graceful=False)
    after = await fetch(cluster, max_wait_ms=1000)
    assert [(m.offset, m.deliveries) for m in after] == [(0, 2), (3, 2), (6, 2), (9, 2)]
    assert await answer(cluster, [leased[3]]) == [3], "a lease of the former owner"
    assert await answer(cluster, [leased[3]], pb.RELEASE_SHARE) == [3]
    assert await answer(cluster, after) == []
    [info] = await shown(cluster, bundle)
    assert (info.start, info.leased) == (10, 0)


@in_cluster("a:1", "b:1")
async def test_a_former_owner_sends_nothing(cluster: Cluster) -> None:
    await stock(cluster, b"0", b"1")
    await fetch(cluster, 1, lease_ms=1000)
    former = await cluster.owner_of(TOPIC, 0)
    other = next(address for address in cluster.brokers if address != former)
    cluster.views[former].pause()
    asked = asyncio.create_task(cluster.line(former).share_fetch(request_of(max_wait_ms=0)))
    await asyncio.sleep(1)
    assert not asked.done(), "it waits for its fence check"
    cluster.network.stop_listening(former)
    cluster.brokers[other].ownership.report_lost(cluster.brokers[former].broker_id, True)
    async with asyncio.timeout(60):
        while not (found := await fetch(cluster, max_wait_ms=500)):
            pass
    assert await answer(cluster, found) == []
    cluster.views[former].resume()
    with pytest.raises(NotOwner):
        leased_of(await asked)


@in_cluster("a:1")
async def test_what_the_store_refused_is_not_acknowledged(cluster: Cluster) -> None:
    await stock(cluster, b"0", b"1")
    leased = await fetch(cluster)
    cluster.views["a:1"].pause()
    answering = asyncio.create_task(answer_at(cluster.line("a:1"), leased, pb.ACCEPT))
    await asyncio.sleep(5)
    assert not answering.done(), "an answer before it is durable"
    cluster.views["a:1"].resume()
    assert await answering == []


@in_cluster("a:1")
async def test_where_a_group_begins(cluster: Cluster) -> None:
    await stock(cluster, b"0", b"1")
    assert await fetch(cluster, group="late", latest=True) == []
    await cluster.produce(TOPIC, 0, b"2")
    assert offsets(await fetch(cluster, group="late", latest=True)) == [2]
    assert offsets(await fetch(cluster, group="early")) == [0, 1, 2]
    assert offsets(await fetch(cluster, group="timed", timestamp_us=2_000_000_000_000_000)) == []


async def reset(cluster: Cluster, offset: int | None, group: str = "workers") -> int:
    wanted = pb.ShareReset(topic=TOPIC, partition=0)
    if offset is not None:
        wanted.offset = offset
    request = pb.ResetSharesRequest(group=group, resets=[wanted])
    [result] = (await ask(cluster, lambda line: line.reset_shares(request))).results
    if result.HasField("error"):
        raise error_from_proto(result.error)
    return result.offset


@in_cluster("a:1")
async def test_a_reset_begins_again(cluster: Cluster) -> None:
    bundle = await stock(cluster, b"0", b"1", b"2")
    leased = await fetch(cluster)
    assert await answer(cluster, leased[:2]) == []
    assert await reset(cluster, 1) == 1
    assert await answer(cluster, leased[2:]) == [2], "the lease has ended"
    assert [(m.offset, m.deliveries) for m in await fetch(cluster)] == [(1, 1), (2, 1)]
    with pytest.raises(OffsetOutOfRange):
        await reset(cluster, 4)
    await reset(cluster, None)
    assert await shown(cluster, bundle) == []
    assert offsets(await fetch(cluster)) == [0, 1, 2]


@in_cluster("a:1")
async def test_deleted_records_are_not_waited_for(cluster: Cluster) -> None:
    bundle = await stock(cluster, b"0", b"1", b"2", b"3")
    leased = await fetch(cluster, 2)
    request = pb.DeleteRecordsRequest(topic=TOPIC, partitions=[pb.RecordsToDelete(partition=0, offset=3)])
    await ask(cluster, lambda line: line.delete_records(request))
    assert offsets(await fetch(cluster)) == [3]
    assert await answer(cluster, leased) == [], "what is gone is finished"
    [info] = await shown(cluster, bundle)
    assert info.start == 3


@in_cluster("a:1")
async def test_the_state_of_a_removed_topic_goes(cluster: Cluster) -> None:
    bundle = await stock(cluster, b"0")
    await fetch(cluster)
    await ask(cluster, lambda line: line.delete_topic(pb.DeleteTopicRequest(name=TOPIC)))
    await asyncio.sleep(5)
    assert await shown(cluster, bundle) == []


@in_cluster("a:1")
async def test_calls_that_are_refused(cluster: Cluster) -> None:
    await stock(cluster, b"0")
    line = cluster.line("a:1")

    async def fetched(**more: str) -> list[Leased]:
        return leased_of(await line.share_fetch(request_of(**more)))

    with pytest.raises(UnknownTopic):
        await fetched(topic="nothing")
    with pytest.raises(InvalidTopicName, match="belongs to the system"):
        await fetched(topic=keys.METADATA_TOPIC)
    with pytest.raises(InvalidGroupName):
        await fetched(group="a group")
    with pytest.raises(InvalidRequest):
        await fetched(member="")
    with pytest.raises(InvalidRequest, match="partitions"):
        await line.share_fetch(pb.ShareFetchRequest(group="g", member_id="m"))
    twice = [pb.SharePartition(topic=TOPIC), pb.SharePartition(topic=TOPIC)]
    with pytest.raises(InvalidRequest, match="once"):
        await line.share_fetch(pb.ShareFetchRequest(group="g", member_id="m", partitions=twice))

    async def said(**span: int) -> object:
        part = pb.SharePartitionAnswer(topic=TOPIC, spans=[pb.SharedSpan(**span)])  # type: ignore[arg-type]
        return await line.share_answer(pb.ShareAnswerRequest(group="g", member_id="m", partitions=[part]))

    with pytest.raises(InvalidRequest, match="before it begins"):
        await said(first=3, last=1)
    with pytest.raises(InvalidRequest, match="word"):
        await said(first=1, last=1, word=17)
    await fetch(cluster)
    with pytest.raises(InvalidRequest, match="bundle 0"):
        await line.list_shares(pb.ListSharesRequest(bundle=0))
    found = await line.share_answer(
        pb.ShareAnswerRequest(
            group="unknown",
            member_id="m",
            partitions=[pb.SharePartitionAnswer(topic=TOPIC, spans=[pb.SharedSpan(first=0, last=2**64 - 1)])],
        )
    )
    assert (found.results[0].late[0].first, found.results[0].late[0].last) == (0, 2**64 - 1)


@in_cluster("a:1")
async def test_a_large_backlog_comes_in_pieces(cluster: Cluster) -> None:
    made = await cluster.create(TOPIC, 1)
    for number in range(6):
        await cluster.produce(TOPIC, 0, *(bytes([number]) * 300_000 for _ in range(3)))
    seen: list[int] = []
    while found := await fetch(cluster, 2000, max_bytes=1_000_000):
        assert len(found) < 9
        assert all(m.deliveries == 1 for m in found), "what did not fit was not delivered"
        seen += offsets(found)
        assert await answer(cluster, found) == []
    assert seen == list(range(18))
    [info] = await shown(cluster, made.partitions[0].bundle)
    assert info.start == 18


@virtual
async def test_the_topic_is_made_only_when_every_broker_has_the_feature() -> None:
    async with cluster_of("a:1", "b:1", store=MemoryStore("", virtual_sources(1))) as cluster:
        await stock(cluster, b"0")
        former = cluster.brokers["b:1"].membership
        former.me = type(former.me)(**{**_fields(former.me), "features": ()})
        await asyncio.sleep(3)
        with pytest.raises(RetriableError, match="shares need every broker"):
            leased_of(await cluster.line(await cluster.owner_of(TOPIC, 0)).share_fetch(request_of()))
        former.me = type(former.me)(**{**_fields(former.me), "features": ("shares",)})
        await asyncio.sleep(3)
        assert offsets(await fetch(cluster)) == [0]


def _fields(value: object) -> dict[str, object]:
    return {name: getattr(value, name) for name in value.__slots__}  # type: ignore[attr-defined]


@in_cluster("a:1", "b:1", "c:1")
async def test_nothing_is_lost_while_owners_change(cluster: Cluster) -> None:
    """Members of a busy queue, with a handover every few seconds: each message is finished, and none comes again
    after its acknowledgement was answered.
    """
    await cluster.create(TOPIC, 1)
    for number in range(40):
        await cluster.produce(TOPIC, 0, *(f"{number}/{i}".encode() for i in range(25)))
    done: dict[int, float] = {}
    loop = asyncio.get_running_loop()

    async def member(name: str) -> None:
        while len(done) < 1000:
            begun_s = loop.time()
            try:
                found = await fetch(cluster, 7, member=name, lease_ms=4000, max_wait_ms=500)
                for m in found:
                    assert done.get(m.offset, begun_s) >= begun_s, f"{m.offset} comes again"
                await asyncio.sleep(0.05)
                late = await answer(cluster, found) if found else []
            except LedgerMQError:
                continue
            done.update({m.offset: loop.time() for m in found if m.offset not in late})

    async def killer() -> None:
        for number in range(4):
            await asyncio.sleep(2)
            address = await cluster.owner_of(TOPIC, 0)
            await cluster.stop(address, graceful=number % 2 == 0)
            await cluster.start(address)

    async with asyncio.timeout(600), asyncio.TaskGroup() as tasks:
        for name in ("one", "two", "three", "four"):
            tasks.create_task(member(name))
        tasks.create_task(killer())
    assert sorted(done) == list(range(1000))
