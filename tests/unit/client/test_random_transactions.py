"""Random lives of a transactional read-process-write program against the cluster in memory: lost,
doubled and refused calls, silence, moves of owners and coordinators, aborts and cancellations.

Judged: what a commit has confirmed is visible, once, as a whole, in order; of everything else,
nothing is; every message of the input is processed exactly once.
"""

from __future__ import annotations

import asyncio
import random

import pytest

import ledgermq
from ledgermq import errors
from tests.unit.client.transaction_broker import TransactionCluster
from tests.unit.client.transaction_clients import transaction_cluster
from tests.virtual_time import run_virtual

METHODS = ("stage", "stage_offsets", "end_transaction", "transaction_outcome", "init_transactions")
INPUT = [b"%d" % number for number in range(40)]


class ProgramFailure(Exception):
    pass


async def disturb(cluster: TransactionCluster, chance: random.Random) -> None:
    while True:
        await asyncio.sleep(chance.choice((0.001, 0.01, 0.1, 1)))
        method = chance.choice(METHODS)
        match chance.randrange(6):
            case 0:
                cluster.faults.lost[method] = chance.choice((1, 3, 20))
            case 1:
                cluster.faults.doubled[method] = chance.randrange(4)
            case 2:
                cluster.faults.refused[method] = [errors.Unavailable("not now")] * chance.randrange(3)
            case 3:
                cluster.move_everything()
            case 4:
                cluster.faults.silent.add(method)
                await asyncio.sleep(chance.choice((0.1, 9, 25)))
                cluster.faults.silent.clear()
            case 5:
                cluster.incomplete = chance.randrange(3)


async def one_transaction(
    transactions: ledgermq.Transactions, consumer: ledgermq.GroupConsumer, chance: random.Random
) -> None:
    async with asyncio.timeout(chance.choice((1, 60, 60, 60))), transactions.begin(reading=consumer) as transaction:
        messages = await consumer.fetch(chance.randrange(1, 6), timeout=5)
        for message in messages:
            transaction.send("t", message.value, partition=1)
            if chance.random() < 0.3:
                await transaction.flush()
            await asyncio.sleep(chance.choice((0, 0, 0.05, 0.5)))
        if chance.random() < 0.1:
            raise ProgramFailure
        await transaction.send_offsets(consumer, messages)
        if chance.random() < 0.1:
            raise ProgramFailure


async def live(seed: int) -> None:
    chance = random.Random(seed)
    async with transaction_cluster() as (cluster, client):
        cluster.log[0] = list(INPUT)
        cluster.assign(0)
        disturbing = asyncio.create_task(disturb(cluster, chance))
        consumer = client.consumer("t", group="g", commit="manual")
        try:
            transactions = client.transactions("billing-7", delivery_timeout_s=8, request_timeout_s=2)
            while cluster.epoch == 0 or not transactions.epoch:
                try:
                    await transactions.init()
                except errors.Unavailable:
                    continue
            for _ in range(400):
                if cluster.committed[0] == len(INPUT):
                    break
                try:
                    await one_transaction(transactions, consumer, chance)
                except (ProgramFailure, TimeoutError, errors.TransactionError, errors.Unavailable):
                    continue
        finally:
            disturbing.cancel()
        assert cluster.visible[1] == INPUT[: cluster.committed[0]], "offsets are committed if and only if records are"
        assert cluster.committed[0] == len(INPUT)
        await consumer.close()


@pytest.mark.parametrize("seed", range(25))
def test_every_message_is_processed_exactly_once(seed: int) -> None:
    run_virtual(lambda: live(seed))
