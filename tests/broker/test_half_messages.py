"""Check half messages through the brokers' services, without the client: when producers are asked,
how often, what their answers do, and where messages without an answer end; in virtual time.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from crc32c import crc32c

from ledgermq.errors import DataDamaged, InvalidRequest, TransactionAborted, UnknownPartition
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.batches.records import decode_batch
from ledgermq_broker.transactions.coordinating import checker
from ledgermq_broker.transactions.coordinating.term import Coordinating
from ledgermq_broker.transactions.coordinating.unresolved import UnresolvedCopies
from ledgermq_broker.transactions.partition import TransactionPartition
from ledgermq_broker.transactions.state.types import Part, Transaction
from tests.broker.cluster import Cluster, fetch_of, in_cluster
from tests.broker.groups import ask
from tests.broker.transaction_calls import (
    Producer,
    beginner,
    code_of,
    constants_of,
    coordinator_bundle,
    served,
)
from tests.waiting import until

BUNDLES = {"bundles": 4}
GROUP = "orders-checkers"
DAY_S = 24 * 3600
HALF: dict[str, Any] = {"kind": pb.HALF_MESSAGE, "check_group": GROUP}


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def half_message(cluster: Cluster, name: str, *values: bytes) -> Producer:
    producer = await beginner(cluster, name, **HALF)
    await producer.send("t", 0, *values)
    return producer


class Poller:
    """A producer of a check group that polls every coordinator. `checks`: (seconds, check)."""

    def __init__(self, cluster: Cluster, group: str = GROUP, max_wait_ms: int = 20_000) -> None:
        self.cluster = cluster
        self.group = group
        self.max_wait_ms = max_wait_ms
        self.checks: list[tuple[float, pb.Check]] = []

    async def poll(self, partition: int) -> pb.PollChecksResponse:
        request = pb.PollChecksRequest(partition=partition, check_group=self.group, max_wait_ms=self.max_wait_ms)
        return await ask(self.cluster, lambda line: line.poll_checks(request))

    async def run(self, partition: int) -> None:
        while True:
            answer = await self.poll(partition)
            self.checks += [(now_s(), check) for check in answer.checks]


@asynccontextmanager
async def polling(*pollers: Poller) -> AsyncIterator[None]:
    partitions = 3
    tasks = [asyncio.create_task(poller.run(partition)) for poller in pollers for partition in range(partitions)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def answer(cluster: Cluster, check: pb.Check, outcome: pb.TransactionState) -> int:
    request = pb.EndTransactionRequest(transaction=check.transaction, outcome=outcome)
    return (await ask(cluster, lambda line: line.end_transaction(request))).state


async def records_of(cluster: Cluster, topic: str) -> list[dict[str, Any]]:
    """All rows of partition 0."""
    frame = await cluster.line(await cluster.owner_of(topic, 0)).fetch_once(fetch_of(topic, 0))
    payload = memoryview(b"".join(frame.payload))
    rows: list[dict[str, Any]] = []
    at = 0
    for batch in frame.header.partitions[0].batches:
        rows += decode_batch(payload[at : at + batch.length]).to_pylist()
        at += batch.length
    return rows


async def state_of(cluster: Cluster, name: str) -> pb.TransactionInfo:
    request = pb.DescribeTransactionRequest(transactional_id=name)
    return (await ask(cluster, lambda line: line.describe_transaction(request))).transaction


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_a_half_message_that_is_committed_in_time_is_never_checked(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    poller = Poller(cluster)
    producer = await half_message(cluster, "h-1", b"x")
    async with polling(poller):
        await asyncio.sleep(3)
        assert await cluster.read_all("t", 0) == []
        assert await producer.commit() == pb.COMMITTED
        await producer.completed()
        await asyncio.sleep(60)
    assert await cluster.read_all("t", 0) == [b"x"]
    assert poller.checks == []


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_a_producer_is_asked_after_six_seconds_and_gets_the_message(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    poller = Poller(cluster)
    await half_message(cluster, "h-1", b"x")
    begun_s = now_s()
    async with polling(poller):
        await until(lambda: bool(poller.checks), 30)
        [(at_s, check)] = poller.checks
        assert 5.9 <= at_s - begun_s <= 9
        assert (check.transaction.transactional_id, check.attempt) == ("h-1", 1)
        assert (check.message.topic, check.message.partition, check.message.record_count) == ("t", 0, 1)
        assert decode_batch(check.message.data).column("value").to_pylist() == [b"x"]
        assert await answer(cluster, check, pb.COMMITTED) == pb.COMMITTED
        await until(lambda: _has(cluster, [b"x"]))
        await asyncio.sleep(60)
        assert len(poller.checks) == 1


async def _has(cluster: Cluster, values: list[bytes]) -> bool:
    return await cluster.read_all("t", 0) == values


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_each_check_goes_to_one_producer_of_the_group_and_they_take_turns(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    pollers, other = [Poller(cluster), Poller(cluster)], Poller(cluster, "others")
    producer = await half_message(cluster, "h-1", b"x")
    async with polling(*pollers, other):
        await asyncio.sleep(6 + 4 * 30)
        attempts = sorted(check.attempt for poller in pollers for _, check in poller.checks)
        assert attempts == list(range(1, len(attempts) + 1))
        assert len(attempts) >= 4
        assert all(poller.checks for poller in pollers)
        assert other.checks == []
        assert await answer(cluster, pollers[0].checks[0][1], pb.ABORTED) == pb.ABORTED
        await producer.completed()
        with pytest.raises(TransactionAborted):
            await producer.commit()
    assert await cluster.read_all("t", 0) == []


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_after_fifteen_checks_a_copy_waits_for_operators(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    poller = Poller(cluster)
    producer = await half_message(cluster, "h-1", b"x", b"y")
    begun_s = now_s()
    async with polling(poller):
        await until(lambda: len(poller.checks) == 15, 600)
        times = [at_s - begun_s for at_s, _ in poller.checks]
        assert all(29.9 <= later - earlier <= 32 for earlier, later in itertools.pairwise(times))
        assert (await state_of(cluster, "h-1")).state == pb.PREPARED
        await until(lambda: _is_complete(cluster, "h-1"), 60)
        assert [check.attempt for _, check in poller.checks] == list(range(1, 16))
    rows = await records_of(cluster, f"{GROUP}.unresolved")
    assert [row["value"] for row in rows] == [b"x", b"y"]
    assert {pair["key"]: pair["value"] for pair in rows[0]["headers"]} == {
        "half.transactional-id": b"h-1",
        "half.topic": b"t",
        "half.partition": b"0",
        "half.checks": b"15",
    }
    assert await cluster.read_all("t", 0) == []
    assert (await state_of(cluster, "h-1")).state == pb.UNRESOLVED
    assert sum(found.participant.staged_batches for found in served(cluster).values()) == 0
    with pytest.raises(TransactionAborted, match="UNRESOLVED"):
        await producer.commit()


async def _is_complete(cluster: Cluster, name: str) -> bool:
    return (await state_of(cluster, name)).complete


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_an_answer_carries_no_more_than_fits_and_what_is_left_is_not_counted(cluster: Cluster) -> None:
    await cluster.create("t", 1, max_message_bytes="4000000")
    names = [name for name in map(str, range(100)) if int(crc32c(name.encode())) % 3 == 0][:3]
    for name in names:
        await half_message(cluster, name, b"x" * 3_000_000)
    await asyncio.sleep(10)
    poller = Poller(cluster)
    first = (await poller.poll(0)).checks
    assert len(first) == 1
    assert sum([(await state_of(cluster, name)).checks for name in names]) == 1
    more = [*(await poller.poll(0)).checks, *(await poller.poll(0)).checks]
    assert {check.transaction.transactional_id for check in [*first, *more]} == set(names)


@pytest.mark.slow
@in_cluster("a:1", "b:1", **BUNDLES)
async def test_checks_are_not_used_up_while_no_producer_lives(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    producer = await half_message(cluster, "h-1", b"x")
    await asyncio.sleep(3600)
    info = await state_of(cluster, "h-1")
    assert (info.state, info.checks) == (pb.PREPARED, 0)
    poller = Poller(cluster)
    async with polling(poller):
        await until(lambda: bool(poller.checks), 10)
        await answer(cluster, poller.checks[0][1], pb.COMMITTED)
        await producer.completed()
    assert await cluster.read_all("t", 0) == [b"x"]


@in_cluster("a:1", "b:1", "c:1", **BUNDLES, constants=constants_of(checks_max=2))
async def test_a_copy_is_stored_once_by_whatever_coordinator(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first coordinator stores the copy, and dies before it records that; its successor attempts the
    copy again. Then the bundle drops the message, and the answer to that is lost, too.
    """
    await cluster.create("t", 1)
    await half_message(cluster, "h-1", b"x")
    stored: list[str] = []
    store, complete = UnresolvedCopies.store, TransactionPartition.complete

    async def store_and_stand_still(self: UnresolvedCopies, *given: Any) -> None:
        await store(self, *given)
        stored.append("copy")
        if len(stored) == 1:
            await asyncio.Event().wait()

    async def complete_and_stand_still(self: TransactionPartition, *given: Any) -> bool:
        done = await complete(self, *given)
        stored.append("dropped")
        if stored.count("dropped") == 1:
            await asyncio.Event().wait()
        return done

    monkeypatch.setattr(UnresolvedCopies, "store", store_and_stand_still)
    monkeypatch.setattr(TransactionPartition, "complete", complete_and_stand_still)
    async with polling(Poller(cluster)):
        await until(lambda: stored == ["copy"], 200)
        await cluster.stop(await _coordinator(cluster, "h-1"), graceful=False)
        await until(lambda: stored == ["copy", "copy", "dropped"], 200)
        await cluster.stop(await _coordinator(cluster, "h-1"), graceful=False)
        await until(lambda: _is_complete(cluster, "h-1"), 200)
    assert [row["value"] for row in await records_of(cluster, f"{GROUP}.unresolved")] == [b"x"]


async def _coordinator(cluster: Cluster, name: str) -> str:
    request = pb.DescribeTransactionRequest(transactional_id=name)
    return (await ask(cluster, lambda line: line.describe_transaction(request))).coordinator


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_a_held_poll_ends_with_its_time_or_with_its_coordinator(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    assert (await Poller(cluster).poll(0)).partitions == 0
    await half_message(cluster, "h-1", b"x")
    poller = Poller(cluster, "others", max_wait_ms=5_000)
    begun_s = now_s()
    found = await poller.poll(0)
    assert (len(found.checks), found.partitions) == (0, 3)
    assert 4.9 <= now_s() - begun_s <= 5.5
    held = asyncio.create_task(poller.poll(0))
    await asyncio.sleep(1)
    request = pb.PollChecksRequest(partition=0, check_group=GROUP)
    for address in list(cluster.brokers)[:1]:
        await cluster.stop(address)
    assert (await held).partitions == 3  # the next coordinator has answered
    line = cluster.line(next(iter(cluster.brokers)))
    request.partition = 3
    with pytest.raises(UnknownPartition):
        await line.poll_checks(request)
    with pytest.raises(InvalidRequest):
        await line.poll_checks(pb.PollChecksRequest(check_group="no/group"))


@in_cluster("a:1", **BUNDLES, constants=constants_of(half_expiry_ms=20_000, notes_many=2))
async def test_ids_and_notes_of_half_messages_do_not_pile_up(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    for number in range(5):
        producer = await half_message(cluster, f"h-{number}", b"x")
        await producer.commit()
        await producer.completed()
    assert sum(found.coordinator.size for found in served(cluster).values()) == 5
    await asyncio.sleep(40)
    assert sum(found.coordinator.size for found in served(cluster).values()) == 0
    await asyncio.sleep(700)
    assert all(found.participant.note_count <= 2 for found in served(cluster).values())
    assert await cluster.read_all("t", 0) == [b"x"] * 5


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_messages_that_cannot_be_read_hold_up_no_others_of_their_group(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One answer carries two checks here, and the first two half messages are damaged."""
    await cluster.create("t", 1)
    monkeypatch.setattr(checker, "CHECKS_MAX", 2)
    read = Coordinating._read_first
    names = [name for name in map(str, range(100)) if int(crc32c(name.encode())) % 3 == 0][:4]
    unreadable = set(names[:2])

    async def damaged(self: Coordinating, transaction: Transaction, part: Part) -> pb.StagedData | None:
        if transaction.transactional_id in unreadable:
            raise DataDamaged("its staged bytes are not those that were staged")
        return await read(self, transaction, part)

    monkeypatch.setattr(Coordinating, "_read_first", damaged)
    for name in names:
        await half_message(cluster, name, b"x")
    poller = Poller(cluster)
    async with polling(poller):
        await until(lambda: {check.transaction.transactional_id for _, check in poller.checks} == set(names[2:]), 60)
        unreadable.clear()  # the object was repaired
        await until(lambda: {check.transaction.transactional_id for _, check in poller.checks} == set(names), 60)


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_a_half_message_without_a_message_is_not_prepared(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    producer = await beginner(cluster, "h-1", **HALF)
    assert await code_of(lambda: producer.end(pb.PREPARED)) == "INVALID_REQUEST"
    await producer.send("t", 0, b"x")
    assert await producer.end(pb.PREPARED) == pb.PREPARED
    assert await producer.commit() == pb.COMMITTED


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_a_message_that_is_not_durable_yet_is_not_asked_about(cluster: Cluster) -> None:
    """Its owner cannot write for longer than a check takes, and dies: the message does not exist."""
    await cluster.create("t", 1)
    owner = await cluster.owner_of("t", 0)
    deciding = next(address for address in cluster.brokers if address != owner)
    await Producer(cluster, "first").init()  # creates the topics of transactions
    for name in map(str, range(100)):
        if coordinator_bundle(cluster, name) in cluster.brokers[deciding].ownership.opened:
            break
    producer = await beginner(cluster, name, **HALF)
    cluster.views[owner].pause()
    staging = asyncio.create_task(producer.send("t", 0, b"x"))
    await asyncio.sleep(12)
    staging.cancel()
    await cluster.stop(owner, graceful=False)
    await asyncio.sleep(60)
    assert (await state_of(cluster, name)).state == pb.UNDECIDED, (
        "nothing of it was stored, so there is nothing to check"
    )


@pytest.mark.parametrize(("before_s", "after_s"), [(0, 2 * DAY_S), (-2 * DAY_S, 0)], ids=["fast", "slow"])
def test_a_wrong_clock_declares_no_message_unresolved(before_s: float, after_s: float) -> None:
    """A coordinator whose clock is days ahead takes over, or one takes over from a clock that was days behind."""

    @in_cluster(**BUNDLES)
    async def run(cluster: Cluster) -> None:
        await cluster.start("a:1", before_s)
        await cluster.create("t", 1)
        await half_message(cluster, "h-1", b"x")
        await until(lambda: _is_prepared(cluster, "h-1"), 30)
        await cluster.stop("a:1", graceful=False)
        await cluster.start("b:1", after_s)
        await asyncio.sleep(120)
        assert await _is_prepared(cluster, "h-1")
        poller = Poller(cluster)
        async with polling(poller):
            await until(lambda: bool(poller.checks), 60)
            assert await answer(cluster, poller.checks[0][1], pb.COMMITTED) == pb.COMMITTED
        await until(lambda: _has(cluster, [b"x"]))

    run()


async def _is_prepared(cluster: Cluster, name: str) -> bool:
    return (await state_of(cluster, name)).state == pb.PREPARED


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_a_new_id_asks_about_no_earlier_epoch(cluster: Cluster) -> None:
    """There is none; and each half message has a new id."""
    await cluster.create("t", 1)
    await half_message(cluster, "h-1", b"x")
    await half_message(cluster, "h-2", b"x")
    await asyncio.sleep(1)
    hurried = [found._housekeeper._hurried for found in served(cluster).values()]
    assert not any(event.is_set() for event in hurried)
    assert not any(found._housekeeper._fenced for found in served(cluster).values())
