"""An asynchronous iterator whose records a transaction sends may go on when the transaction has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import ledgermq
from ledgermq import errors
from tests.unit.client.transaction_broker import TransactionCluster
from tests.unit.client.transaction_clients import with_transactions


@with_transactions
async def test_an_iterator_of_an_aborted_transaction_adds_nothing_to_the_next_one(
    cluster: TransactionCluster, client: ledgermq.Client
) -> None:
    async def records() -> AsyncIterator[ledgermq.Record]:
        for number in range(3):
            yield ledgermq.Record(b"%d" % number, partition=0)
            await asyncio.sleep(1)

    async with client.transactions("billing-7") as transactions:
        first = transactions.begin()
        await first.start()
        adding = asyncio.create_task(first.send_many("t", records()))
        await asyncio.sleep(0.5)
        await first.abort()
        async with transactions.begin() as second:
            second.send("t", b"second", partition=0)
            await asyncio.sleep(5)
        with pytest.raises(errors.TransactionAborted):
            await adding
    assert cluster.visible == {0: [b"second"]}
