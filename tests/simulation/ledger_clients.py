"""Clients of one ledger: an idempotent and pipelined one, a plain one, and one that queries the
end of the log.

They follow docs/design.md, Produce.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import cache
from typing import TypeVar

import pyarrow as pa
from crc32c import crc32c

from ledgermq.errors import (
    ConditionFailed,
    LedgerMQError,
    NotOwner,
    OutOfOrderSequence,
    ResourceExhausted,
    UnknownProducer,
)
from ledgermq.protocol.batches.records import SCHEMA, encode_batch
from ledgermq.protocol.limits import WINDOW_BATCHES
from ledgermq_ledger.log.segments.segment import Batch
from tests.judges.violation import Violation
from tests.simulation.history import Outcome, Partition
from tests.simulation.ledger_broker import LedgerBroker, session
from tests.simulation.world import NoAnswer, Unreachable, World

T = TypeVar("T")
TOPIC_ID = 7
CALL_TIMEOUTS_S = (0.3, 1.0, 5.0)
PATIENCE_S = 400.0


def partition_of(number: int) -> Partition:
    return ("topic", number)


class Client:
    def __init__(self, world: World, name: str, brokers: dict[str, LedgerBroker]) -> None:
        self.name = name
        self.random = random.Random(f"client {name} {world.seed}")
        self.stopped = asyncio.Event()
        self._world = world
        self._brokers = brokers
        self._favourite = ""
        self._values = 0

    def next_values(self) -> tuple[str, ...]:
        count = self.random.choice((1, 1, 2, 3))
        self._values += count
        return tuple(f"{self.name}.{self._values - count + i}" for i in range(count))

    async def ask(self, question: Callable[[LedgerBroker], Coroutine[None, None, T]]) -> T:
        """One try, at some broker that may be the owner.

        Raises NoAnswer, Unreachable, LedgerMQError.
        """
        names = [name for name, broker in self._brokers.items() if broker.serves]
        if self._favourite not in names or self.random.random() < 0.05:
            if not names:
                raise Unreachable("no broker serves")
            self._favourite = self.random.choice(names)
        broker = self._brokers[self._favourite]
        try:
            return await self._world.call(broker.process, lambda: question(broker), self.random.choice(CALL_TIMEOUTS_S))
        except (NotOwner, NoAnswer, Unreachable):
            self._favourite = ""
            raise

    async def pause(self) -> None:
        await asyncio.sleep(self.random.uniform(0.01, 1.0))

    async def _opened_slot(self, partition: int) -> int:
        while True:
            try:
                return await self.ask(lambda broker: broker.opened_slot(TOPIC_ID, partition))
            except (NoAnswer, Unreachable, LedgerMQError):
                await self.pause()


@cache
def _columns(count: int) -> tuple[pa.Array, ...]:
    """Those that are the same in all batches of `count` records: headers, timestamp, its type, tag."""
    values = ([None], [0], [0], [None])
    return tuple(pa.array(value * count, field.type) for value, field in zip(values, list(SCHEMA)[2:], strict=True))


def _encode(values: tuple[str, ...]) -> bytes:
    binary = [value.encode() for value in values]
    few = pa.array([value[-1:] for value in binary], pa.binary())  # keys, of which a topic may keep the latest record
    columns = [few, pa.array(binary, pa.binary()), *_columns(len(values))]
    return encode_batch(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))


def batch_of(values: tuple[str, ...], partition: int, producer: tuple[bytes, int, int] | None = None) -> Batch:
    data = _encode(values)
    return Batch(TOPIC_ID, partition, len(values), crc32c(data), 0, 0, data, session(*producer) if producer else None)


class PlainProducer(Client):
    """Sends each value once and takes what it is told."""

    async def run(self, partition: int) -> None:
        while not self.stopped.is_set():
            await asyncio.sleep(self.random.expovariate(2.0))
            values = self.next_values()
            batch = batch_of(values, partition)
            op = self._world.history.begin_produce(self.name, partition_of(partition), values, ordered=False)
            outcome, offset, why = Outcome.INFO, -1, ""
            try:
                offset = await self.ask(lambda broker, batch=batch: broker.append(batch))  # type: ignore[misc]
                outcome = Outcome.OK
            except (Unreachable, ResourceExhausted) as error:
                outcome, why = Outcome.FAIL, str(error)
            except (NoAnswer, LedgerMQError) as error:
                why = str(error)
            self._world.history.end_produce(op, outcome, offset, why)


class IdempotentProducer(Client):
    """Up to `window` batches on their way, counted from the oldest that is not answered; each is
    repeated until it is.
    """

    def __init__(
        self,
        world: World,
        name: str,
        brokers: dict[str, LedgerBroker],
        window: int = WINDOW_BATCHES,
        *,
        burst: int = 1,
        session_s: float | None = None,
    ) -> None:
        super().__init__(world, name, brokers)
        self._window = window
        self._burst = burst
        self._session_s = session_s

    async def run(self, partition: int) -> None:
        while not self.stopped.is_set():
            await self._session(partition)

    async def _session(self, partition: int) -> None:
        """One producer id. It ends when a batch is refused for good; what is in doubt then stays
        unknown.
        """
        producer = self.random.getrandbits(128).to_bytes(16, "big")
        opened = await self._opened_slot(partition)
        sequence = 0
        over = asyncio.Event()
        sent: deque[asyncio.Task[None]] = deque()
        deadline = asyncio.get_running_loop().time() + (self._session_s or self.random.choice((20.0, 60.0, 1000.0)))
        async with asyncio.TaskGroup() as group:
            while not over.is_set() and not self.stopped.is_set() and asyncio.get_running_loop().time() < deadline:
                values = self.next_values()
                batch = batch_of(values, partition, (producer, sequence, opened))
                sequence += len(values)
                op = self._world.history.begin_produce(self.name, partition_of(partition), values)
                sent.append(group.create_task(self._deliver(op, batch, over)))
                if len(sent) % self._burst == 0:
                    await asyncio.sleep(self.random.expovariate(4.0 / self._burst))
                while sent and (sent[0].done() or len(sent) == self._window):
                    await sent.popleft()

    async def _deliver(self, op: int, batch: Batch, over: asyncio.Event) -> None:
        give_up = asyncio.get_running_loop().time() + PATIENCE_S
        while not over.is_set() and asyncio.get_running_loop().time() < give_up:
            try:
                offset = await self.ask(lambda broker: broker.append(batch))
            except UnknownProducer as error:
                self._world.coverage.saw("a producer was not known any more")
                self._world.note(self.name, f"session over: {error.message[:80]}")
                over.set()
            except (NoAnswer, Unreachable, OutOfOrderSequence, LedgerMQError):
                await self.pause()
            else:
                self._world.history.end_produce(op, Outcome.OK, offset)
                return
        if not over.is_set():
            self._world.violations.append(
                Violation("stuck", f"{self.name}: operation {op} was refused for {PATIENCE_S:.0f} s")
            )
        over.set()
        self._world.history.end_produce(op, Outcome.INFO)


class ConditionalProducer(Client):
    """Appends only where the log ends as it was told last: never blindly, never twice, whoever else writes."""

    async def run(self, partition: int) -> None:
        end = 0
        while not self.stopped.is_set():
            producer = self.random.getrandbits(128).to_bytes(16, "big")
            opened = await self._opened_slot(partition)
            end = await self._session(partition, producer, opened, end)

    async def _session(self, partition: int, producer: bytes, opened: int, end: int) -> int:
        """Return the end that was told last."""
        sequence = 0
        deadline = asyncio.get_running_loop().time() + self.random.choice((5.0, 60.0, 1000.0))
        while not self.stopped.is_set() and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(self.random.expovariate(6.0))
            values = self.next_values()
            batch = replace(batch_of(values, partition, (producer, sequence, opened)), expect_end=end)
            op = self._world.history.begin_produce(self.name, partition_of(partition), values)
            found = await self._deliver(op, batch, partition)
            if found is None:
                return end
            is_stored, end = found
            sequence += len(values) if is_stored else 0
        return end

    async def _deliver(self, op: int, batch: Batch, partition: int) -> tuple[bool, int] | None:
        """Repeat a batch until it is answered: return whether it is stored, and where the log ends after it, or ends
        instead; None if its session is over.
        """
        give_up = asyncio.get_running_loop().time() + PATIENCE_S
        while asyncio.get_running_loop().time() < give_up:
            asked = self._world.history.ask_end(self.name, partition_of(partition))
            try:
                offset = await self.ask(lambda broker: broker.append(batch))
            except ConditionFailed as error:
                self._world.coverage.saw("a condition failed")
                self._world.history.end_produce(op, Outcome.FAIL, why=error.message)
                self._world.history.tell_end(asked, error.end)
                return False, error.end
            except UnknownProducer:
                self._world.history.end_produce(op, Outcome.INFO)
                return None
            except (NoAnswer, Unreachable, LedgerMQError):
                await self.pause()
                continue
            self._world.coverage.saw("a condition held")
            self._world.history.end_produce(op, Outcome.OK, offset)
            if offset != batch.expect_end:
                text = f"{self.name}: operation {op} is stored at {offset}, it expected {batch.expect_end}"
                self._world.violations.append(Violation("condition not kept", text))
            return True, offset + batch.record_count
        self._world.violations.append(Violation("stuck", f"{self.name}: operation {op} had no answer"))
        self._world.history.end_produce(op, Outcome.INFO)
        return None


class EndAsker(Client):
    async def run(self, partitions: int) -> None:
        """Asks for any of so many."""
        while not self.stopped.is_set():
            await asyncio.sleep(self.random.expovariate(2.0))
            partition = self.random.randrange(partitions)
            op = self._world.history.ask_end(self.name, partition_of(partition))
            try:
                end = await self.ask(lambda broker, partition=partition: broker.latest(TOPIC_ID, partition))
            except (NoAnswer, Unreachable, LedgerMQError):
                continue
            self._world.coverage.saw("the latest offset was told after a fence check")
            self._world.history.tell_end(op, end)
