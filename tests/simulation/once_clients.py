"""Programs of a simulated cluster that repeat a transaction of one call: cut anywhere, by two processes at a time, and
now and then with other contents under the same id.

All attempts of one piece of work have equal contents. What is stored is told apart: an interceptor, which is no part
of the contents, appends the attempt to each value. Only runs with `repeats` have these clients.
"""

from __future__ import annotations

import asyncio
import random

from ledgermq.client.messages.record import Outgoing, Record
from ledgermq.client.transactions.once import SentOnce
from ledgermq.errors import LedgerMQError, TransactionAborted, TransactionIdReused
from tests.simulation.cluster_clients import PARTITIONS
from tests.simulation.once_truth import Attempt
from tests.simulation.transactions_clients import TransactionalClient
from tests.simulation.transactions_truth import Sent

WORKS = 12
"""Pieces of work of one run, each with an id of its own."""
OTHER = 0.15
"""Share of the attempts that use the id of a piece of work for other contents."""


class Repeater(TransactionalClient):
    """One incarnation of a process that works off all pieces, beside another one that does the same."""

    async def _session(self) -> None:
        for number in self.random.sample(range(WORKS), WORKS):
            while not self.stopped.is_set():
                contents = 0 if self._world.healed or self.random.random() >= OTHER else 1
                ended = await self._attempt(f"work.{number}", contents)
                await asyncio.sleep(self.random.expovariate(self._plan.records_s))
                if ended and self.random.random() < 0.6:
                    break

    async def _attempt(self, work: str, contents: int) -> bool:
        """Return whether the call has told what became of it."""
        r = random.Random(f"contents {work} {contents} {self._world.seed}")
        name = f"{self.name}/{self._incarnation}/{self.next_value()}"
        attempt = Attempt(work, contents, Sent(self.name, f"once.{work}"))
        self._shared.sent.append(attempt.sent)
        self._shared.attempts.all.append(attempt)
        records = []
        for at in range(r.randint(1, 4)):
            topic, number = r.choice(self.outputs), r.randrange(PARTITIONS)
            base = f"{work}.{contents}.{at}"
            self._note_send(attempt.sent, topic, number, f"{base}/{name}")
            records.append((topic, Record(base, key=base, partition=number)))

        def told_apart(record: Outgoing) -> Outgoing:
            return record._replace(value=f"{record.value}/{name}")

        call = asyncio.ensure_future(
            self.client.transactions.send_once(
                attempt.sent.transactional_id,
                records,
                open_max=self._own.timeout_ms / 1000,
                kept="7d",
                interceptors=[told_apart],
                linger_ms=self._plan.linger_ms,
                request_timeout_s=self._plan.request_timeout_s,
            )
        )
        try:
            if self.random.random() < 0.4 and not self._world.healed:
                await asyncio.wait([call], timeout=self.random.choice((0.01, 0.1, 0.5, 2.0)))
                if not call.done():
                    self._world.coverage.saw("a repeatable call was cut")
            else:
                await asyncio.wait([call])
        finally:
            call.cancel()
            await asyncio.wait([call])
        return self._took(attempt, call)

    def _took(self, attempt: Attempt, call: asyncio.Future[SentOnce]) -> bool:
        saw = self._world.coverage.saw
        if call.cancelled():
            return False
        error = call.exception()
        if error is None:
            attempt.repeated = call.result().repeated
            saw("a repeatable call was told: " + ("repeated" if attempt.repeated else "committed"))
            self._told(attempt.sent, committed=not attempt.repeated)
            return True
        if not isinstance(error, LedgerMQError):
            raise error
        self._world.judge_error(error)
        saw(f"a repeatable call was told: {type(error).__name__}")
        if isinstance(error, TransactionIdReused):
            attempt.reused = True
        if isinstance(error, TransactionIdReused | TransactionAborted):
            self._told(attempt.sent, committed=False)
        return attempt.reused
