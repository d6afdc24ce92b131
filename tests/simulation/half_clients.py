"""Programs with half messages in a simulated cluster: they send, decide in their own database, and die
in between; programs of the same check group answer for each other.
"""

from __future__ import annotations

import asyncio

from ledgermq.client.transactions.checks import CheckedMessage, Resolution
from ledgermq.client.transactions.half_messages import HalfMessage, HalfMessages
from ledgermq.errors import LedgerMQError, TransactionAborted, TransactionOutcomeUnknown
from tests.judges.violation import Violation
from tests.simulation.cluster_clients import PARTITIONS
from tests.simulation.half_truth import CHECK_GROUP, PREFIX
from tests.simulation.transactions_clients import OUTPUTS, TransactionalClient
from tests.simulation.transactions_truth import Sent

LATE_S_MAX = 20.0
"""So long after the healing a program may still end a message: by then its checks may be over."""


class Program(TransactionalClient):
    """One program of the check group. It sends until the cluster heals, and answers checks until it is stopped."""

    async def _session(self) -> None:
        late: list[tuple[HalfMessage, Sent, Resolution]] = []
        async with self.client.half_messages(
            CHECK_GROUP, check=self._check, request_timeout_s=self._plan.request_timeout_s
        ) as half:
            while not self.stopped.is_set():
                await asyncio.sleep(self.random.expovariate(self._plan.records_s / 2))
                if self._world.healed:
                    await asyncio.sleep(self.random.uniform(0.0, LATE_S_MAX))
                    for each in late:
                        await self._end_half(*each)
                    await self.stopped.wait()
                else:
                    await self._send_one(half, late)
                    if late and self.random.random() < 0.3:
                        await self._end_half(*late.pop(0))

    async def _send_one(self, half: HalfMessages, late: list[tuple[HalfMessage, Sent, Resolution]]) -> None:
        """`late`: messages that the program may yet end, after checks perhaps."""
        coverage = self._world.coverage
        topic, number = self.random.choice(OUTPUTS), self.random.randrange(PARTITIONS)
        name = f"{self.name}.{self._incarnation}.{self.next_value()}"
        sent = Sent(self.name, name, [PREFIX + name])
        self._shared.sent.append(sent)
        self._shared.half.append(name)
        sent.ops.append(
            self._world.history.begin_produce(
                self.name, self.partition(topic, number), tuple(sent.values), ordered=False
            )
        )
        message = await half.send(
            topic,
            sent.values[0],
            key=name,
            partition=number,
            transactional_id=name,
            timeout_s=self._own.deadline_s,
        )
        database, chance = self._shared.database, self.random.random()
        database.acknowledged.add(name)
        if chance < 0.15:
            database.silent.add(name)
            coverage.saw("a half message was left, and no program knows of it")
            if self.random.random() < 0.5:  # but its own, which may end it too late
                late.append((message, sent, self._settle(name, "commit")))
        elif chance < 0.3:
            coverage.saw("a half message was left, and its program did nothing")
        else:
            resolution = self._settle(name, self.random.choice(("commit", "commit", "rollback")))
            if chance < 0.5:
                coverage.saw("a half message was left, and its program has decided")
                late.append((message, sent, resolution))
            else:
                await self._end_half(message, sent, resolution)

    async def _end_half(self, message: HalfMessage, sent: Sent, resolution: Resolution) -> None:
        try:
            await message.resolve(resolution, self._own.deadline_s)
        except TransactionAborted:  # UNRESOLVED, which the judge looks at
            self._told(sent, committed=False)
        except TransactionOutcomeUnknown:
            self._world.coverage.saw("the end of a half message was answered: outcome unknown")
        except LedgerMQError as error:
            self._world.note(self.name, f"{resolution}: {type(error).__name__} {error.message[:100]}")
        else:
            self._told(sent, committed=resolution == "commit")

    def _check(self, message: CheckedMessage) -> Resolution:
        """A local transaction that was never begun is thereby rolled back, or may still be running."""
        name, database = message.transactional_id, self._shared.database
        self._world.coverage.saw("a half message was checked")
        if message.value != (PREFIX + name).encode():
            self._world.violations.append(Violation("another message checked", f"{name}: {message.value!r}"))
        if name in database.silent or (self.random.random() < 0.3 and not self._world.healed):
            return "unknown"
        return self._settle(name, "rollback")

    def _settle(self, name: str, wanted: Resolution) -> Resolution:
        return self._shared.database.settle(name, wanted, len(self._world.store.first))
