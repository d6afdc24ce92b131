"""Transactions without asyncio, against the cluster in memory: what crosses threads is committed,
or aborted, as a whole.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import ledgermq
from ledgermq import errors
from ledgermq.client.settings.values import ClientSettings
from ledgermq.sources import Sources
from ledgermq.sync import Client
from ledgermq.sync.background import Background
from tests.unit.client.transaction_broker import ADDRESSES, TransactionCluster


@asynccontextmanager
async def connection(cluster: TransactionCluster) -> AsyncIterator[ledgermq.Client]:
    settings = ClientSettings(timeout_s=10, attempt_timeout_s=2)
    async with ledgermq.Client(cluster, ADDRESSES, settings, Sources()) as client:
        yield client


@pytest.fixture
def cluster() -> TransactionCluster:
    return TransactionCluster()


@pytest.fixture
def client(cluster: TransactionCluster) -> Iterator[Client]:
    background = Background()
    opened = connection(cluster)
    with Client(background, opened, background.run(opened.__aenter__()), Sources()) as client:
        yield client


def test_what_is_sent_is_visible_after_the_commit(cluster: TransactionCluster, client: Client) -> None:
    with client.transactions("billing-7", timeout="1m") as transactions:
        with transactions.begin() as transaction:
            first = transaction.send("t", b"a", partition=0)
            transaction.send_many("t", [ledgermq.Record(b"b", partition=1), ledgermq.Record(b"c", partition=1)])
            assert first.result(60).offset is None
            transaction.flush()
            assert cluster.visible == {}
        assert cluster.visible == {0: [b"a"], 1: [b"b", b"c"]}
        assert (transaction.state, transaction.epoch, transaction.number) == ("committed", 1, 1)
        with pytest.raises(errors.TransactionError):
            transaction.send("t", b"late", partition=0)
    assert client.transactions.outcome("billing-7").committed
    assert transactions.closed


def test_a_delayed_record_waits_after_the_commit(cluster: TransactionCluster, client: Client) -> None:
    with client.transactions("billing-7") as transactions, transactions.begin() as transaction:
        transaction.send("t", b"a", partition=0, delay=5)
        transaction.send("t", b"b", partition=0)
    assert cluster.visible == {0: [b"b"]}
    assert [value for value, _ in cluster.waiting[0]] == [b"a"]


def test_an_exception_aborts(cluster: TransactionCluster, client: Client) -> None:
    def fail(transaction: ledgermq.sync.Transaction) -> None:
        with transaction:
            deliveries.append(transaction.send("t", b"a", partition=0))
            raise ZeroDivisionError

    deliveries: list[ledgermq.sync.Delivery] = []
    with client.transactions("billing-7") as transactions:
        with pytest.raises(ZeroDivisionError):
            fail(transactions.begin())
        with pytest.raises(errors.LedgerMQError):
            deliveries[0].result(60)
        with transactions.begin() as transaction:
            transaction.send("t", b"b", partition=0)
    assert cluster.visible == {0: [b"b"]}


def test_a_record_that_is_refused_in_the_background_is_not_left_out(
    cluster: TransactionCluster, client: Client
) -> None:
    with client.transactions("billing-7") as transactions:
        with transactions.begin() as transaction:
            transaction.send("t", b"a", partition=0)
        transaction = transactions.begin()
        transaction.start()
        transaction.send("t", b"b", partition=0)
        transaction.send("t", b"c", partition=99)
        with pytest.raises(errors.UnknownPartition):
            transaction.commit()
        assert isinstance(transaction.failure, errors.UnknownPartition)
    assert cluster.visible == {0: [b"a"]}


def test_messages_are_delivered_again_after_an_abort_although_they_were_fetched_ahead(
    cluster: TransactionCluster, client: Client
) -> None:
    cluster.log[0] = [b"a", b"b", b"c"]
    with (
        client.consumer("t", group="g", commit="manual", heartbeat_wait_s=0.1) as consumer,
        client.transactions("billing-7") as transactions,
    ):
        transaction = transactions.begin()
        transaction.start()
        first = next(consumer)
        transaction.send_offsets(consumer, [first])
        transaction.abort()
        with transactions.begin(reading=consumer) as transaction:
            messages = [next(consumer) for _ in range(2)]
            assert [message.value for message in messages] == [b"a", b"b"]
            transaction.send_offsets(consumer, messages)
        assert cluster.committed[0] == 2
        assert next(consumer).value == b"c"
        consumer.rewind()
        assert next(consumer).value == b"c"


def test_what_is_no_consumer_of_a_group_is_refused(cluster: TransactionCluster, client: Client) -> None:
    not_of_a_group: Any
    for not_of_a_group in (client.consumer("t"), "consumer", 5):
        with client.transactions("billing-7") as transactions:
            with pytest.raises(errors.InvalidConfig, match="a consumer with a group, not"):
                transactions.begin(reading=not_of_a_group)
            with transactions.begin() as transaction:
                with pytest.raises(errors.InvalidConfig, match="a consumer with a group, not"):
                    transaction.send_offsets(not_of_a_group, [])
                transaction.send("t", b"a")
    assert sum(map(len, cluster.visible.values())) == 3
