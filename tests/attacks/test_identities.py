"""Identities beside names: producer ids, holders, transactions and half messages of another principal.

Whatever a principal sends under them, an acknowledged record of their owner stays where it was told, a transaction
that was told COMMITTED is whole, and an operator publishes nothing that a principal has made up.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

import ledgermq
from ledgermq.errors import LedgerMQError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import Frame
from tests.attacks.cluster import SLOW_S, Attacked, line_of
from tests.broker.cluster import batch_header, encoded, frame_of

pytestmark = pytest.mark.slow


async def values(client: ledgermq.Client, topic: str) -> dict[int, bytes | None]:
    """By offset, of partition 0."""
    async with client.consumer(topic, partitions=[0], until_end=True) as consumer:
        return {message.offset: message.value async for message in consumer}


async def shown_session(at: Attacked, topic: str, offset: int) -> pb.ProducerSession:
    """What a reader learns of the producer of a record."""
    async with line_of(at, "shop") as line:
        found = await line.find_messages(pb.FindMessagesRequest(topic=topic, partition=0, offset=offset))
    by = found.messages[0].stored_by
    return pb.ProducerSession(id=by.producer_id, epoch=by.producer_epoch, sequence=by.sequence + 1)


async def forge(at: Attacked, topic: str, session: pb.ProducerSession) -> None:
    """Write a record as the producer of that session; refused or not."""
    async with line_of(at, "shop") as line:
        try:
            await line.produce_once(frame_of(topic, 0, b"forged by shop", session=session))
        except LedgerMQError:
            pass


@pytest.mark.parametrize("access_mode", ["shared", "exclusive"])
async def test_no_other_principal_writes_as_a_producer(shared_broker: Attacked, access_mode: str) -> None:
    """A reader looked the producer's id up and wrote its next sequence: the record that the producer then sent was
    acknowledged, and was nowhere. With an exclusive producer the batch of the other principal was stored, too.
    """
    at, topic = shared_broker, f"orders-{access_mode}"
    async with at.client("root") as root:
        await root.create_topic(topic, 1)
        await root.access.grant("user:shop", "produce,consume", topic)
    at.tokens.setdefault("shop", await new_token(at, "shop"))
    async with (
        at.client("victim") as client,
        client.producer(access_mode=access_mode, name="till") as producer,  # type: ignore[arg-type]
    ):
        first = await producer.send(topic, b"victim: order 0", partition=0)
        session = await shown_session(at, topic, first.offset)
        await forge(at, topic, session)
        async with line_of(at, "shop") as line:
            release = pb.ReleasePartitionsRequest(
                producer_id=session.id, partitions=[pb.WantedPartition(topic=topic, partition=0)]
            )
            try:
                released = [found.released for found in (await line.release_partitions(release)).partitions]
            except LedgerMQError:
                released = []
            assert not any(released), "a holder was put out by a principal that is not it"
        await forge(at, topic, session)
        second = await producer.send(topic, b"victim: order 1, 5000 EUR", partition=0)
        found = await values(client, topic)
    assert found[first.offset] == b"victim: order 0"
    assert found[second.offset] == b"victim: order 1, 5000 EUR"
    if access_mode == "exclusive":
        assert b"forged by shop" not in found.values()


async def new_token(at: Attacked, user: str) -> str:
    async with at.client("root") as root:
        return (await root.access.create_token(user)).token


async def test_no_other_principal_ends_a_transaction_in_part(shared_broker: Attacked) -> None:
    """A principal that may see the group staged a batch under the transaction's producer and its own id: the
    bundle dropped what its owner had staged, the owner was told COMMITTED, and one of two records was lost for good.
    """
    at = shared_broker
    async with at.client("root") as root:
        for name in ("in", "debit", "credit"):
            await root.create_topic(name, 1)
        await root.access.grant("user:mallory", "group", "billing")
    async with at.client("mallory") as mallory:
        await mallory.create_topic("mine", 16)  # a partition in the bundle of each of them
    async with at.client("victim") as client:
        async with client.producer() as producer:
            await producer.send("in", b"order", partition=0)
        async with (
            client.consumer("in", group="billing", commit="manual") as consumer,
            client.transactions("victim-eos") as transactions,
            transactions.begin() as transaction,
        ):
            message = await asyncio.wait_for(anext(aiter(consumer)), SLOW_S)
            transaction.send("debit", b"debit", partition=0)
            await transaction.flush()
            await transaction.send_offsets(consumer, [message])
            await stage_beside(at, "billing")
            transaction.send("credit", b"credit", partition=0)
            await transaction.flush()
            await stage_beside(at, "billing")
        completed = await told_complete(client, "victim-eos")
        assert not completed.missing
        assert list((await values(client, "debit")).values()) == [b"debit"]
        assert list((await values(client, "credit")).values()) == [b"credit"]
        assert b"junk" not in (await values(client, "mine")).values()


async def stage_beside(at: Attacked, group: str) -> None:
    """Stage a batch for each own partition under a pending transaction of the group, which others may not see."""
    async with line_of(at, "root") as line:
        [pending] = (await line.describe_group(pb.DescribeGroupRequest(group=group))).group.pending
    async with line_of(at, "mallory") as line:
        assert not (await line.describe_group(pb.DescribeGroupRequest(group=group))).group.pending
        own = await line.init_transactions(pb.InitTransactionsRequest(transactional_id="mine-1"))
        seen = pending.transaction
        refs = [pb.TransactionRef(), pb.TransactionRef()]
        for ref, name in zip(refs, ("mine-1", seen.transactional_id), strict=True):
            ref.CopyFrom(seen)
            ref.transactional_id, ref.coordinator = name, own.coordinator

        async def frames(ref: pb.TransactionRef):  # type: ignore[no-untyped-def]
            for partition in range(16):
                data = encoded([b"junk"])
                header = pb.StageHeader(transaction=ref)
                header.batches.add(batch=batch_header("mine", partition, data, 1), sequence=0)
                yield Frame(header, [data])

        for ref in refs:
            try:
                async with asyncio.timeout(SLOW_S):
                    answers = line.stage(frames(ref))
                    for _ in range(16):
                        await anext(answers)
            except (LedgerMQError, StopAsyncIteration):
                pass


async def told_complete(client: ledgermq.Client, name: str) -> ledgermq.TransactionDescription:
    async with asyncio.timeout(SLOW_S):
        while not (found := await client.transactions.describe(name)).complete:
            await asyncio.sleep(0.1)
    return found


async def test_an_operator_publishes_nothing_that_a_principal_made_up(shared_broker: Attacked) -> None:
    """One record with the headers of an unresolved half message was enough: the operator's command wrote it into a
    topic to which its author has no right.
    """
    at = shared_broker
    async with at.client("root") as root:
        await root.create_topic("payments", 1)
    headers = {"half.transactional-id": "mine-h1", "half.topic": "payments", "half.partition": "0", "half.checks": "15"}
    async with at.client("mallory") as client, client.producer() as producer:
        await client.create_topic("mine.unresolved", 1)
        made = [(name, value.encode()) for name, value in headers.items()]
        await producer.send("mine.unresolved", b"pay mallory 1,000,000", headers=made)
    command = [sys.executable, "-m", "ledgermq.cli.main", "transaction", "unresolved", "commit", "mine", "mine-h1"]
    done = await asyncio.to_thread(
        subprocess.run,
        [*command, "--yes", "--target", at.broker.address],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "LEDGERMQ_TOKEN": at.tokens["root"]},
    )
    async with at.client("victim") as client:
        assert await values(client, "payments") == {}
    assert done.returncode != 0, done.stdout
    assert "mine-h1" in done.stderr
    assert "Traceback" not in done.stderr
