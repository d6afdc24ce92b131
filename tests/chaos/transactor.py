"""A program with transactions, as a process that is killed, stopped and paused: `python -m
tests.chaos.transactor TARGET ROLE NAME SEED DIARY`.

A role that is a group reads `main` and writes one record for each message to each output, with its
offsets. Any other role writes to any partitions of the outputs, and is its transactional id: two
places of one role fence each other. A place has one id over all its lives.

Its diary is that of a member, with lines about transactions (TXN is ID:EPOCH:NUMBER):

    sent TXN TOPIC PARTITION NAME    before it is sent
    committing TXN                   before the commit is called
    ended TXN committed|aborted      once its end is known
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Sequence

import ledgermq
from ledgermq.client.groups.group_consumer import GroupConsumer
from ledgermq.client.groups.message import GroupMessage
from ledgermq.client.transactions.transaction import Transaction
from ledgermq.client.transactions.transactions import Transactions
from ledgermq.errors import LedgerMQError, TransactionAborted, TransactionFenced, TransactionOutcomeUnknown
from tests.chaos.groups import GROUPS
from tests.chaos.member import JOINS, SESSION_S, Diary
from tests.chaos.workload import OUTPUTS, PARTITIONS, READ_S, REQUEST_S
from tests.simulation.transactions_truth import processed_as

TIMEOUT_S = 5.0
COMMIT_S = 10.0
ABORT_S = 5.0
FENCED_S = 3.0
"""How long the one that was fenced leaves the id to the other, at least."""
LEFT_OPEN, ABORTED = 0.04, 0.2
"""Shares of the transactions."""
TRANSACTIONS_PER_S = 4.0


class Transactor:
    """`group`: of a program that reads, processes and writes, with its `topics`; else empty."""

    fetches = (1, 10, 200)
    """Messages of one transaction."""
    timeout_s = TIMEOUT_S

    def __init__(
        self,
        client: ledgermq.Client,
        transactional_id: str,
        name: str,
        seed: int,
        diary: Diary,
        group: str = "",
        topics: str = "",
    ) -> None:
        self._client, self._id, self._diary = client, transactional_id, diary
        self._group, self._topics = group, topics
        self._random = random.Random(f"{name} {seed} {os.getpid()}")
        self._unique = f"{name}.{time.monotonic_ns()}"
        self._number = 0
        self.stopped = asyncio.Event()

    async def run(self) -> None:
        while not self.stopped.is_set():
            try:
                await (self._process() if self._group else self._write())
            except LedgerMQError as error:
                self._diary.told(error)
                fenced_s = FENCED_S if isinstance(error, TransactionFenced) else 0.0
                await asyncio.sleep(fenced_s + self._random.uniform(0.2, 2.0))

    def _transactions(self) -> Transactions:
        return self._client.transactions(
            self._id,
            timeout=self.timeout_s,
            linger_ms=self._random.choice((0, 5, 50)),
            compression=self._random.choice(("none", "zstd")),
            request_timeout_s=REQUEST_S,
        )

    def _goes_on(self, over_s: float) -> bool:
        return not self.stopped.is_set() and asyncio.get_running_loop().time() < over_s

    def _over_s(self) -> float:
        """Each session ends after a while, as a program that is started again."""
        return asyncio.get_running_loop().time() + self._random.choice((5.0, 20.0, 1000.0))

    async def _write(self) -> None:
        over_s = self._over_s()
        async with self._transactions() as transactions:
            while self._goes_on(over_s):
                transaction = transactions.begin()
                await transaction.start()
                try:
                    await self._fill(transaction)
                    await self._end(transaction)
                finally:
                    if not transaction.closed:
                        await transaction.abort(ABORT_S)

    async def _fill(self, transaction: Transaction) -> None:
        await asyncio.sleep(self._random.expovariate(TRANSACTIONS_PER_S))
        for _ in range(self._random.choice((1, 2, 5, 20))):
            self._number += 1
            topic, number = self._random.choice(OUTPUTS), self._random.randrange(PARTITIONS)
            self._send(transaction, topic, number, f"{self._unique}.{self._number}")

    async def _process(self) -> None:
        over_s = self._over_s()
        consumer = self._client.consumer(
            self._topics,
            group=self._group,
            commit="manual",
            session_timeout_s=SESSION_S,
            heartbeat_wait_s=1.0,
            close_timeout_s=5.0,
            request_timeout_s=READ_S,
        )
        try:
            async with self._transactions() as transactions:
                while self._goes_on(over_s):
                    messages = await consumer.fetch(self._random.choice(self.fetches), timeout=1.0)
                    if messages:
                        await self._copy(transactions, consumer, messages)
        finally:
            try:
                await consumer.close()
            except LedgerMQError as error:
                self._diary.told(error)

    async def _copy(
        self, transactions: Transactions, consumer: GroupConsumer, messages: Sequence[GroupMessage]
    ) -> None:
        transaction = transactions.begin(reading=consumer)
        await transaction.start()
        try:
            await self._process_all(transaction, messages)
            await transaction.send_offsets(consumer, messages)
            if await self._end(transaction):
                ends = {(m.topic, m.partition): m.offset + 1 for m in messages}
                self._diary.write(*(f"committed {topic} {number} {end}" for (topic, number), end in ends.items()))
        finally:
            if not transaction.closed:
                await transaction.abort(ABORT_S)

    async def _process_all(self, transaction: Transaction, messages: Sequence[GroupMessage]) -> None:
        self._diary.handled(messages)
        for message in messages:
            for output in OUTPUTS:
                self._number += 1
                place = processed_as(output, message.partition, message.offset)
                self._send(transaction, output, message.partition, f"{place}/{self._unique}.{self._number}")

    def _send(self, transaction: Transaction, topic: str, number: int, name: str) -> None:
        self._diary.write(f"sent {transaction.name} {topic} {number} {name}")
        value = f"{name}|".encode() + self._random.randbytes(self._random.choice((0, 20, 200)))
        transaction.send(topic, value, key=name, partition=number)

    async def _end(self, transaction: Transaction) -> bool:
        """Commit, mostly. Return whether it is known to be committed."""
        name, chance = transaction.name, self._random.random()
        if chance < LEFT_OPEN:
            await asyncio.sleep(3 * self.timeout_s)
        elif chance < LEFT_OPEN + ABORTED:
            await transaction.flush()
            await transaction.abort(ABORT_S)
            return self._ended(name, committed=False)
        self._diary.write(f"committing {name}")
        try:
            await transaction.commit(COMMIT_S)
        except TransactionAborted as error:
            self._diary.told(error)
            return self._ended(name, committed=False)
        except TransactionOutcomeUnknown as error:
            self._diary.told(error)
            outcome = await self._client.transactions.outcome(name)
            return self._ended(name, committed=outcome.committed)
        return self._ended(name, committed=True)

    def _ended(self, name: str, *, committed: bool) -> bool:
        self._diary.write(f"ended {name} {'committed' if committed else 'aborted'}")
        return committed


async def main(target: str, role: str, name: str, seed: str, path: str) -> None:
    async with ledgermq.connect(target, timeout_s=20, attempt_timeout_s=REQUEST_S) as client:
        if role in GROUPS:
            transactor = Transactor(client, name, name, int(seed), Diary(path), role, GROUPS[role])
        else:
            transactor = Transactor(client, role, name, int(seed), Diary(path))
        await until_stopped(transactor)


async def until_stopped(transactor: Transactor) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, transactor.stopped.set)
    print(JOINS, flush=True)
    await transactor.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:6]))
