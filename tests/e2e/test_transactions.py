"""Transactions over gRPC on real brokers: all or nothing over topics and partitions, exactly once
from topic to topic though the process is killed, fencing, and how soon commits are seen.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

import ledgermq
import ledgermq.sync
from ledgermq.errors import TransactionAborted, TransactionError, TransactionFenced, TransactionUnknown
from ledgermq.sources import Sources
from ledgermq_broker.node import Node
from ledgermq_broker.settings.processes import load_settings
from tests.broker.cluster import Cluster, in_cluster
from tests.waiting import until

COUNT = 60
MEMBER_S_MAX = 120.0


@asynccontextmanager
async def brokers(tmp_path: Path, count: int = 2) -> AsyncIterator[str]:
    """The addresses of brokers that share a root on local files."""
    root = (tmp_path / "root").as_uri()
    settings = load_settings(None, port=0, background_compaction=False)
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(await Node.start(root, settings, Sources())) for _ in range(count)]
        yield ",".join(node.address for node in nodes)


async def read(client: ledgermq.Client, topic: str) -> list[bytes]:
    """Everything that is visible now."""
    ends = await client.list_offsets(topic)
    values: list[bytes] = []
    async with client.consumer(topic) as consumer:
        await consumer.wait_ready()
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            values += [message.value or b"" for message in await consumer.fetch(timeout=1.0)]
    return values


async def test_a_commit_shows_records_of_all_topics_and_an_exception_none(tmp_path: Path) -> None:
    async with brokers(tmp_path) as address, ledgermq.connect(address) as client:
        await client.create_topic("a", 4)
        await client.create_topic("b", 2)
        async with client.transactions("orders") as transactions:
            async with transactions.begin() as transaction:
                deliveries = [transaction.send("a", b"%d" % number, partition=number % 4) for number in range(20)]
                transaction.send("b", b"sum")
                await transaction.flush()
                assert [(await delivery).offset for delivery in deliveries] == [None] * 20
                assert await read(client, "a") == [] == await read(client, "b")
            assert (await outcome_of(client, transaction)).committed
            await until_read(client, "a", [b"%d" % number for number in range(20)])
            await until_read(client, "b", [b"sum"])
            with suppress(ZeroDivisionError):
                async with transactions.begin() as transaction:
                    transaction.send("a", b"never")
                    await transaction.flush()
                    raise ZeroDivisionError
            assert (await outcome_of(client, transaction)).state == "aborted"
            async with transactions.begin() as transaction:
                transaction.send("b", b"next")
        await until_read(client, "b", [b"next", b"sum"])
        assert sorted(await read(client, "a"), key=int) == [b"%d" % number for number in range(20)]
        with pytest.raises(TransactionUnknown):
            await client.transactions.outcome("nobody", epoch=1, number=1)


async def outcome_of(client: ledgermq.Client, transaction: ledgermq.Transaction) -> ledgermq.TransactionOutcome:
    return await client.transactions.outcome("orders", epoch=transaction.epoch, number=transaction.number)


async def until_read(client: ledgermq.Client, topic: str, expected: list[bytes]) -> None:
    """A commit is acknowledged when it is decided, and shows a moment later: never look only once."""
    wanted = sorted(expected)

    async def is_there() -> bool:
        return sorted(await read(client, topic)) == wanted

    await until(is_there, every_s=0.02)


@pytest.mark.parametrize("addresses", [("a:1",), ("a:1", "b:1")], ids=["one broker", "two brokers"])
def test_commits_take_effect_within_milliseconds(addresses: tuple[str, ...]) -> None:
    """In virtual time, which only waits of the product make pass. The pauses of brokers that would show here are
    10 s. Row T2 of the benchmarks measures real time.
    """

    @in_cluster(*addresses)
    async def scenario(cluster: Cluster) -> None:
        loop = asyncio.get_running_loop()
        commits_s, visible_s = [], []
        async with cluster.client() as client:
            await client.create_topic("a", 4)
            async with client.transactions("orders") as transactions, client.consumer("a") as consumer:
                for number in range(40):
                    async with transactions.begin() as transaction:
                        for partition in range(4):
                            transaction.send("a", b"%d" % number, partition=partition)
                        begun_s = loop.time()
                        await transaction.commit()
                    commits_s.append(loop.time() - begun_s)
                    seen = 0
                    while seen < 4:
                        seen += len(await consumer.fetch(timeout=5.0))
                    visible_s.append(loop.time() - begun_s)
        assert max(commits_s) < 0.25, f"commits: {commits_s}"
        assert max(visible_s) < 0.5, f"visible: {visible_s}"

    scenario()  # type: ignore[unused-coroutine]


def member(target: str, die_after: int, where: str) -> int:
    """Run one member until it dies or everything is copied; return its exit code."""
    command = [
        sys.executable,
        "-m",
        "tests.e2e.transactional_member",
        target,
        str(COUNT),
        str(die_after),
        where,
    ]
    return subprocess.run(command, check=False, timeout=MEMBER_S_MAX).returncode


@pytest.mark.slow
async def test_each_message_has_one_result_though_processes_are_killed(tmp_path: Path) -> None:
    async with brokers(tmp_path) as address, ledgermq.connect(address) as client:
        await client.create_topic("in", 2)
        await client.create_topic("out", 2)
        async with client.producer() as producer:
            for number in range(COUNT):
                producer.send("in", b"%d" % number, partition=number % 2)
            await producer.flush()
        for die_after, where in ((1, "staged"), (3, "staged"), (2, "committed")):
            assert await asyncio.to_thread(member, address, die_after, where) == -signal.SIGKILL
        begun_s = time.monotonic()
        assert await asyncio.to_thread(member, address, 0, "never") == 0
        print(f"the last member took {time.monotonic() - begun_s:.1f} s")
        await until_read(client, "out", [b"%d" % number for number in range(COUNT)])
        committed = await client.groups.describe("g")
        assert committed is not None


async def test_a_second_process_fences_the_first(tmp_path: Path) -> None:
    async with (
        brokers(tmp_path) as address,
        ledgermq.connect(address) as client,
        ledgermq.connect(address) as other,
    ):
        await client.create_topic("a", 2)
        async with client.transactions("orders") as transactions:
            transaction = transactions.begin()
            await transaction.start()
            transaction.send("a", b"old")
            await transaction.flush()
            async with other.transactions("orders") as later:
                assert later.epoch == transactions.epoch + 1
                async with later.begin() as newer:
                    newer.send("a", b"new")
                with pytest.raises(TransactionFenced):
                    await transaction.commit()
                with pytest.raises(TransactionFenced):
                    transactions.begin()
                async with later.begin() as newer:
                    newer.send("a", b"newer")
        await until_read(client, "a", [b"new", b"newer"])


async def test_messages_of_an_aborted_transaction_are_delivered_again(tmp_path: Path) -> None:
    async with brokers(tmp_path) as address, ledgermq.connect(address) as client:
        await client.create_topic("in", 2)
        await client.create_topic("out", 3)
        async with client.producer() as producer:
            await producer.send_many("in", [b"%d" % number for number in range(COUNT)])
            await producer.flush()
        tries: Counter[bytes] = Counter()
        async with (
            client.transactions("copy") as transactions,
            client.consumer("in", group="g", commit="manual") as consumer,
        ):
            copied = 0
            while copied < COUNT:
                messages = await consumer.fetch(max_records=7, timeout=5.0)
                tries.update(message.value or b"" for message in messages)
                try:
                    async with transactions.begin(reading=consumer) as transaction:
                        for message in messages:
                            transaction.send("out", message.value)
                        await transaction.send_offsets(consumer, messages)
                        if max(tries[message.value or b""] for message in messages) == 1 and copied % 3 == 0:
                            raise ZeroDivisionError
                except ZeroDivisionError:
                    continue
                copied += len(messages)
            assert sum((await consumer.committed()).values(), 0) == COUNT  # type: ignore[arg-type]
        assert max(tries.values()) == 2
        await until_read(client, "out", [b"%d" % number for number in range(COUNT)])


async def test_the_synchronous_client_has_them_too(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as address:

        def program() -> list[bytes]:
            with ledgermq.sync.connect(address) as client:
                client.create_topic("in", 1)
                client.create_topic("out", 1)
                with client.producer() as producer:
                    producer.send("in", b"one").result()
                with (
                    client.transactions("copy") as transactions,
                    client.consumer("in", group="g", commit="manual") as consumer,
                ):
                    messages = consumer.fetch(timeout=10.0)
                    with suppress(ZeroDivisionError), transactions.begin() as transaction:
                        transaction.send("out", b"never")
                        raise ZeroDivisionError
                    with transactions.begin() as transaction:
                        transaction.send("out", messages[0].value)
                        transaction.send_offsets(consumer, messages)
                    with pytest.raises(TransactionError):
                        transaction.abort()
                    outcome = client.transactions.outcome("copy", epoch=transaction.epoch, number=transaction.number)
                    assert outcome.committed, outcome
                with client.consumer("out") as consumer:
                    return [message.value or b"" for message in consumer.fetch(timeout=10.0)]

        assert await asyncio.to_thread(program) == [b"one"]


async def test_what_was_asked_about_before_its_commit_is_aborted(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as address, ledgermq.connect(address) as client:
        await client.create_topic("a", 1)
        async with client.transactions("orders") as transactions:
            transaction = transactions.begin()
            await transaction.start()
            transaction.send("a", b"never")
            await transaction.flush()
            assert (await outcome_of(client, transaction)).state == "aborted"
            with pytest.raises(TransactionAborted):
                await transaction.commit()
            async with transactions.begin() as transaction:
                transaction.send("a", b"again")
        await until_read(client, "a", [b"again"])
