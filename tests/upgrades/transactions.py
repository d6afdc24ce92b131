"""Leave transactions of all states in a cluster, so that another release finds them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import ledgermq
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import Connection
from ledgermq.protocol.frames import Frame, StageFrame
from tests.broker.cluster import batch_header, encoded
from tests.e2e.raw_client import RawClient

TIMESTAMP_US = 1_700_000_000_000_000
LEFT = ["committed"]
"""What each of the two partitions holds then."""
STATES = {
    "committed": "committed",
    "aborted": "aborted",
    "prepared": "prepared",
    "half": "prepared",
    "open": "aborted",
    "with-offset": "aborted",
}
"""By transactional id, what the next release answers about what was left."""
CHECKERS, MOVERS = "checkers", "movers"
"""The check group of the half message, and the group whose offset is staged."""
NEVER_UNRESOLVED = "--constant-unchecked-ms-max=1000000000000000"
"""For brokers on a root of any age: its half messages still wait for their producers."""


async def leave_transactions(client: ledgermq.Client, address: str, topic: str) -> None:
    """Into partitions 0 and 1 of a topic: a transaction that is committed and visible, one that is
    aborted, one that is prepared, a half message that waits for its producer, one that is open, and one
    that is open with an offset of a group (`STATES`).
    """
    for name in ("committed", "aborted"):
        async with client.transactions(name) as transactions, transactions.begin() as transaction:
            for partition in range(2):
                transaction.send(topic, name, partition=partition, timestamp=TIMESTAMP_US)
            if name == "aborted":
                await transaction.flush()
                await transaction.abort()
    while not (await client.transactions.outcome("committed", epoch=1, number=1)).complete:
        await asyncio.sleep(0.1)
    async with RawClient(address) as raw:
        line = raw.line(address)
        prepared = await _staged(line, "prepared", pb.TWO_PHASE, topic)
        await line.end_transaction(prepared)
        half = await _staged(line, "half", pb.HALF_MESSAGE, topic, CHECKERS)
        await line.end_transaction(half)
        await _staged(line, "open", pb.ORDINARY, topic)
        await _stage_offset(line, await _staged(line, "with-offset", pb.ORDINARY, topic), topic)


async def use_transactions(client: ledgermq.Client, target: str, topic: str, output: str) -> None:
    """Make every call that there is about transactions. Another topic is the output: a fetch that is
    under way must bring nothing of a later call, for calls are repeated one after the other.
    """
    consumer_settings = {"commit": "manual", "heartbeat_wait_s": 0.2}
    async with (
        client.transactions("calls") as transactions,
        client.consumer(topic, group="movers", **consumer_settings) as consumer,  # type: ignore[call-overload]
    ):
        messages = await consumer.fetch(1, timeout=10)
        async with transactions.begin() as transaction:
            transaction.send(output, "moved", partition=0, timestamp=TIMESTAMP_US)
            await transaction.send_offsets(consumer, messages)
        while not (await client.transactions.outcome("calls", epoch=1, number=1)).complete:
            await asyncio.sleep(0.1)
    async with RawClient(target) as raw:  # what operators and brokers call
        line = raw.line(target)
        await line.list_transactions(pb.ListTransactionsRequest())
        prepared = await _staged(line, "decided", pb.TWO_PHASE, topic)
        await line.end_transaction(prepared)
        ask = pb.AskTransactionRequest(transaction=prepared.transaction, question=pb.FATE, part=prepared.parts[0])
        await line.ask_transaction(ask)
        await line.read_staged(pb.ReadStagedRequest(transaction=prepared.transaction, part=prepared.parts[0]))
        half = await _staged(line, "checked", pb.HALF_MESSAGE, topic, "callers")
        await line.end_transaction(half)
        await line.end_transaction(await checked(line, half.transaction.coordinator, "callers"))
        while not (await client.transactions.outcome("checked")).complete:
            await asyncio.sleep(0.1)
        resolve = pb.ResolveTransactionRequest(transactional_id="decided", resolution=pb.ABORT)
        await line.resolve_transaction(resolve)
        await line.describe_transaction(pb.DescribeTransactionRequest(transactional_id="decided"))
        await line.complete_transaction(
            pb.CompleteTransactionRequest(transaction=prepared.transaction, outcome=pb.ABORTED, part=prepared.parts[0])
        )


async def commit_prepared(line: Connection, name: str) -> None:
    ref = pb.TransactionRef(transactional_id=name)
    await line.end_transaction(pb.EndTransactionRequest(transaction=ref, outcome=pb.COMMITTED))


async def checked(line: Connection, coordinator: int, group: str) -> pb.EndTransactionRequest:
    """Wait until a half message of a group is checked; return the request that commits it."""
    poll = pb.PollChecksRequest(partition=coordinator, check_group=group, max_wait_ms=30_000)
    [check] = (await line.poll_checks(poll)).checks
    return pb.EndTransactionRequest(transaction=check.transaction, outcome=pb.COMMITTED)


async def _stage_offset(line: Connection, of: pb.EndTransactionRequest, topic: str) -> None:
    """Stage the offset 1 of partition 0, as a program outside of the group does."""
    place = pb.TopicPartition(topic=topic, partition=0)
    [found] = (await line.fetch_committed(pb.FetchCommittedRequest(group=MOVERS, partitions=[place]))).partitions
    request = pb.StageOffsetsRequest(transaction=of.transaction, group=MOVERS)
    request.commits.add(topic=topic, partition=0, offset=1, epoch=found.epoch, counter=found.counter + 1)
    answer = await line.stage_offsets(request)
    assert not answer.results[0].HasField("error"), answer.results[0].error


async def _staged(
    line: Connection, name: str, kind: pb.TransactionKind.ValueType, topic: str, check_group: str = ""
) -> pb.EndTransactionRequest:
    """Stage a batch for each partition, of a half message for the first only; return the request that
    prepares them.
    """
    given = await line.init_transactions(
        pb.InitTransactionsRequest(transactional_id=name, kind=kind, check_group=check_group)
    )
    ref = pb.TransactionRef(
        transactional_id=name,
        coordinator=given.coordinator,
        producer_id=given.producer_id,
        epoch=given.epoch,
        number=1,
    )
    data = encoded([name.encode()])
    header = pb.StageHeader(transaction=ref)
    partitions = 1 if check_group else 2
    for partition in range(partitions):
        header.batches.add(batch=batch_header(topic, partition, data, 1))

    async def frames() -> AsyncIterator[StageFrame]:
        yield Frame(header, [data] * partitions)

    [answer] = [answer async for answer in line.stage(frames())]
    end = pb.EndTransactionRequest(transaction=ref, outcome=pb.PREPARED)
    for partition, result in enumerate(answer.results):
        assert not result.HasField("error"), result.error
        part = next((part for part in end.parts if part.bundle == result.bundle), None) or end.parts.add(
            bundle=result.bundle
        )
        part.counts.add(topic_id=result.topic_id, partition=partition, batches=1)
    return end
