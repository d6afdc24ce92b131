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


async def leave_transactions(client: ledgermq.Client, address: str, topic: str) -> None:
    """Into partitions 0 and 1 of a topic: a transaction that is committed and visible, one that is
    aborted, one that is prepared, and one that is open.
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
        await _staged(line, "open", pb.ORDINARY, topic)


async def use_transactions(client: ledgermq.Client, target: str, topic: str) -> None:
    """Make every call that there is about transactions."""
    consumer_settings = {"commit": "manual", "heartbeat_wait_s": 0.2}
    async with (
        client.transactions("calls") as transactions,
        client.consumer(topic, group="movers", **consumer_settings) as consumer,  # type: ignore[call-overload]
    ):
        messages = await consumer.fetch(1, timeout=10)
        async with transactions.begin() as transaction:
            transaction.send(topic, "moved", partition=0, timestamp=TIMESTAMP_US)
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
        resolve = pb.ResolveTransactionRequest(transactional_id="decided", resolution=pb.ABORT)
        await line.resolve_transaction(resolve)
        await line.describe_transaction(pb.DescribeTransactionRequest(transactional_id="decided"))
        await line.complete_transaction(
            pb.CompleteTransactionRequest(transaction=prepared.transaction, outcome=pb.ABORTED, part=prepared.parts[0])
        )


async def commit_prepared(line: Connection, name: str) -> None:
    ref = pb.TransactionRef(transactional_id=name)
    await line.end_transaction(pb.EndTransactionRequest(transaction=ref, outcome=pb.COMMITTED))


async def _staged(
    line: Connection, name: str, kind: pb.TransactionKind.ValueType, topic: str
) -> pb.EndTransactionRequest:
    """Stage a batch for each partition, and return the request that prepares them."""
    given = await line.init_transactions(pb.InitTransactionsRequest(transactional_id=name, kind=kind))
    ref = pb.TransactionRef(
        transactional_id=name,
        coordinator=given.coordinator,
        producer_id=given.producer_id,
        epoch=given.epoch,
        number=1,
    )
    data = encoded([name.encode()])
    header = pb.StageHeader(transaction=ref)
    for partition in range(2):
        header.batches.add(batch=batch_header(topic, partition, data, 1))

    async def frames() -> AsyncIterator[StageFrame]:
        yield Frame(header, [data, data])

    [answer] = [answer async for answer in line.stage(frames())]
    end = pb.EndTransactionRequest(transaction=ref, outcome=pb.PREPARED)
    for partition, result in enumerate(answer.results):
        assert not result.HasField("error"), result.error
        part = next((part for part in end.parts if part.bundle == result.bundle), None) or end.parts.add(
            bundle=result.bundle
        )
        part.counts.add(topic_id=result.topic_id, partition=partition, batches=1)
    return end
