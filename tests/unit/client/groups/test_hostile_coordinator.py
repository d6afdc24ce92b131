"""A coordinator that answers nonsense, errors or nothing: typed errors in time, bounded requests,
and a consumer that goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import ledgermq
from ledgermq import TopicPartition, errors
from ledgermq.client.settings.values import ClientSettings
from ledgermq.protocol import ledgermq_pb2 as pb
from tests.unit.client.groups.hostile_coordinator import HostileCoordinator, assigned
from tests.unit.client.hostile import ADDRESS, encoded, fetched
from tests.virtual_time import virtual_in, virtual_sources
from tests.waiting import until


@asynccontextmanager
async def hostile_coordinator() -> AsyncIterator[tuple[HostileCoordinator, ledgermq.Client]]:
    broker = HostileCoordinator()
    settings = ClientSettings(timeout_s=5, attempt_timeout_s=2)
    async with ledgermq.Client(broker, [ADDRESS], settings, virtual_sources(5)) as client:
        yield broker, client


against_a_hostile_coordinator = virtual_in(hostile_coordinator, "broker", "client")


def two_messages() -> list[object]:
    return [fetched(encoded(b"a", b"b"), count=2)]


@against_a_hostile_coordinator
async def test_answers_that_come_at_once_are_not_asked_for_without_end(
    broker: HostileCoordinator, client: ledgermq.Client
) -> None:
    broker.holds = False
    consumer = client.consumer("t", group="g", request_timeout_s=1000)
    assert await consumer.fetch(timeout=60) == []
    assert len(broker.heartbeats) < 40


@against_a_hostile_coordinator
async def test_a_group_that_never_keeps_its_member_is_not_asked_without_end(
    broker: HostileCoordinator, client: ledgermq.Client
) -> None:
    lost: list[object] = []

    def answer(request: pb.GroupHeartbeatRequest) -> pb.GroupHeartbeatResponse:
        if request.step == pb.JOIN:
            return assigned(0)
        raise errors.UnknownMember("who?")

    broker.on_heartbeat = answer
    consumer = client.consumer("t", group="g", on_lost=lost.append)
    assert await consumer.fetch(timeout=60) == []
    assert len(broker.heartbeats) < 150
    assert lost


@against_a_hostile_coordinator
async def test_a_new_epoch_drops_what_was_fetched_and_begins_at_the_committed_offset(
    broker: HostileCoordinator, client: ledgermq.Client
) -> None:
    epoch = 5
    broker.on_heartbeat = lambda request: assigned(0, epoch=epoch, group_epoch=epoch)
    broker.fetches = [two_messages(), two_messages()]  # type: ignore[list-item]
    consumer = client.consumer("t", group="g", commit="acked")
    (first,) = await consumer.fetch(1, timeout=5)
    epoch = 6
    await until(lambda: len(broker.requests) == 2)
    assert not first.ack(), "it counts under the old epoch only"
    again = await consumer.fetch(timeout=5)
    assert [message.offset for message in again] == [0, 1]
    await consumer.commit(again)
    assert [(each.epoch, each.counter, each.offset) for each in broker.commits[-1].commits] == [(6, 1, 2)]


@against_a_hostile_coordinator
async def test_an_answer_of_a_coordinator_of_before_is_not_believed(
    broker: HostileCoordinator, client: ledgermq.Client
) -> None:
    broker.on_heartbeat = lambda request: (
        assigned(0, 1, group_epoch=10) if len(broker.heartbeats) < 4 else assigned(group_epoch=9)
    )
    consumer = client.consumer("t", group="g")
    await consumer.fetch(timeout=20)
    assert len(consumer.assignment) == 2
    assert consumer.state == "failing"


@against_a_hostile_coordinator
async def test_silence_while_joining_is_unavailable_in_time(
    broker: HostileCoordinator, client: ledgermq.Client
) -> None:
    consumer = client.consumer("t", group="g", request_timeout_s=10, close_timeout_s=3)
    await consumer.fetch(timeout=1)
    broker.silent = True
    begun = asyncio.get_running_loop().time()
    with pytest.raises(errors.Unavailable):
        await consumer.fetch(timeout=100)
    assert asyncio.get_running_loop().time() - begun < 25
    begun = asyncio.get_running_loop().time()
    await consumer.close()
    assert asyncio.get_running_loop().time() - begun <= 3.1


@pytest.mark.parametrize("count", [0, 1, 3])
def test_committed_offsets_that_do_not_fit_are_not_believed(count: int) -> None:
    @against_a_hostile_coordinator
    async def body(broker: HostileCoordinator, client: ledgermq.Client) -> None:
        broker.on_committed = lambda request: pb.FetchCommittedResponse(partitions=[pb.CommittedPartition()] * count)
        consumer = client.consumer("t", group="g", request_timeout_s=5)
        with pytest.raises(errors.Unavailable, match="committed offsets"):
            await consumer.fetch(timeout=60)
        assert consumer.state == "failing"

    body()  # type: ignore[unused-coroutine]


@against_a_hostile_coordinator
async def test_a_partition_with_an_open_transaction_is_waited_for_and_the_others_are_read(
    broker: HostileCoordinator, client: ledgermq.Client
) -> None:
    """A new holder that began at the committed offset would process again what the transaction
    commits.
    """
    ended = asyncio.Event()

    def committed(request: pb.FetchCommittedRequest) -> pb.FetchCommittedResponse:
        answer = pb.FetchCommittedResponse()
        for asked in request.partitions:
            part = answer.partitions.add(topic="t", topic_id=1, partition=asked.partition)
            if asked.partition == 1 and not ended.is_set():
                part.error.CopyFrom(pb.Error(code="UNAVAILABLE", message="open transaction x", retry_after_ms=200))
            else:
                part.offset = 7 * asked.partition
        return answer

    assigned_to: list[list[TopicPartition]] = []
    broker.on_committed = committed
    consumer = client.consumer("t", group="g", on_assigned=assigned_to.append, request_timeout_s=100)
    assert await consumer.fetch(timeout=30) == []
    assert assigned_to == [[TopicPartition("t", 0)]]
    assert not broker.commits, "the start rule does not count: something may be committed"
    ended.set()
    assert await consumer.fetch(timeout=5) == []
    assert assigned_to == [[TopicPartition("t", 0)], [TopicPartition("t", 1)]]
    assert consumer.position(1) == 7


@against_a_hostile_coordinator
async def test_a_commit_whose_answer_does_not_fit_is_not_believed(
    broker: HostileCoordinator, client: ledgermq.Client
) -> None:
    broker.fetches = [two_messages()]  # type: ignore[list-item]
    broker.on_commit = lambda request: pb.CommitOffsetsResponse()
    consumer = client.consumer("t", group="g", commit="manual", request_timeout_s=5)
    messages = await consumer.fetch(timeout=5)
    with pytest.raises(errors.Unavailable, match="0 of 1"):
        await consumer.commit(messages)


@against_a_hostile_coordinator
async def test_a_refused_automatic_commit_is_noted_and_not_repeated(
    broker: HostileCoordinator, client: ledgermq.Client
) -> None:
    refusal = pb.CommitResult(error=pb.Error(code="STALE_ASSIGNMENT", message="gone"))
    broker.fetches = [two_messages()]  # type: ignore[list-item]
    broker.on_commit = lambda request: pb.CommitOffsetsResponse(results=[refusal] * len(request.commits))
    consumer = client.consumer("t", group="g", commit_interval_ms=100)
    assert len(await consumer.fetch(timeout=5)) == 2
    assert await consumer.fetch(timeout=10) == []
    assert isinstance(consumer.last_error, errors.StaleAssignment)
    assert len(broker.commits) == 1


@against_a_hostile_coordinator
async def test_what_is_retriable_of_a_commit_is_retried_for_these_partitions_only(
    broker: HostileCoordinator, client: ledgermq.Client
) -> None:
    def answer(request: pb.CommitOffsetsRequest) -> pb.CommitOffsetsResponse:
        later = pb.CommitResult(error=pb.Error(code="UNAVAILABLE", message="its end is not known"))
        return pb.CommitOffsetsResponse(
            results=[later if at.partition and len(broker.commits) < 4 else pb.CommitResult() for at in request.commits]
        )

    broker.on_commit = answer
    consumer = client.consumer("t", group="g", commit="manual")
    await consumer.wait_ready()
    wanted = {TopicPartition("t", 0): 3, TopicPartition("t", 1): 4}
    assert await consumer.commit(wanted) == wanted
    assert [[at.partition for at in commit.commits] for commit in broker.commits] == [[0, 1], [1], [1], [1]]


@against_a_hostile_coordinator
async def test_acknowledgements_that_wait_for_one_message_are_bounded(
    broker: HostileCoordinator, client: ledgermq.Client
) -> None:
    broker.on_heartbeat = lambda request: assigned(0)
    broker.fetches = [[fetched(encoded(*[b"x"] * 10), count=10, base=10 * number) for number in range(20)], []]
    consumer = client.consumer("t", group="g", commit="acked", acked_ahead_max=25)
    first = (await consumer.fetch(1, timeout=5))[0]
    count = 0
    while messages := await consumer.fetch(5, timeout=5):
        count += sum(message.ack() for message in messages)
    assert 25 <= count < 35, "the partition waits for its first message"
    asked = len(broker.requests)
    first.ack()
    await until(lambda: len(broker.requests) > asked)
    assert broker.requests[-1].partitions[0].offset == count + 1
