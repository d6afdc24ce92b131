"""Level *ids*: one ledger as in level *ledger*, and producers that send a few ids again and again, under no
session: only the ids keep a message from being stored twice.

The judge knows the segments that were valid. An id stands in a partition again only when its time is over,
by the times in segments. Whoever was told of a duplicate finds a message with this id at the offset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ledgermq.errors import DuplicateMessage, LedgerMQError, ResourceExhausted
from ledgermq.protocol.naming.message_ids import NO_ID, hash_of, split_ids
from ledgermq_ledger.keys import PartitionId
from tests.judges.violation import Violation
from tests.simulation.history import FinalLog, Outcome, Partition
from tests.simulation.ledger_broker import BUNDLE, IDS_WINDOW_US, LedgerBroker
from tests.simulation.ledger_clients import Client, batch_of, partition_of
from tests.simulation.ledger_run import PARTITIONS, LedgerRun
from tests.simulation.world import NoAnswer, Unreachable, World

NAMES = 6
ATTEMPTS = 8


@dataclass(frozen=True, slots=True)
class Told:
    """A producer was told that a message with this id is stored at the offset."""

    client: str
    partition: Partition
    offset: int
    name: str


class NamingProducer(Client):
    """Sends small batches whose values end with their id; repeats a batch that has no answer, and sends what is
    left of one with duplicates.
    """

    def __init__(self, world: World, name: str, brokers: dict[str, LedgerBroker]) -> None:
        super().__init__(world, name, brokers)
        self.told: list[Told] = []

    async def run(self, partition: int) -> None:
        while not self.stopped.is_set():
            await asyncio.sleep(self.random.expovariate(3.0))
            values = tuple(f"{value}={self.random.randrange(NAMES)}" for value in self.next_values()[:2])
            at = partition_of(partition)
            ops = [
                self._world.history.begin_produce(self.name, at, (value,), once=False, ordered=False)
                for value in values
            ]
            await self._deliver(dict(zip(values, ops, strict=True)), partition)

    async def _deliver(self, left: dict[str, int], partition: int) -> None:
        """Send values until each has an answer, or for some attempts. `left`: the operation of each."""
        for _ in range(ATTEMPTS):
            if not left:
                return
            values = tuple(left)
            ids = b"".join(hash_of(name_of(value).encode()) for value in values)
            batch = replace(batch_of(values, partition), ids=ids)
            try:
                base = await self.ask(lambda broker, batch=batch: broker.append(batch))  # type: ignore[misc]
            except DuplicateMessage as found:
                for row, offset in found.stored:
                    self.told.append(Told(self.name, partition_of(partition), offset, name_of(values[row])))
                for row, _ in (*found.stored, *found.repeated):
                    self._world.history.end_produce(left.pop(values[row]), Outcome.INFO, why="a duplicate")
            except (NoAnswer, Unreachable, LedgerMQError) as error:
                if isinstance(error, ResourceExhausted) and "ids of messages" in error.message:
                    self._world.coverage.saw("ids found no room")
                await self.pause()
            else:
                for row, op in enumerate(left.values()):
                    self._world.history.end_produce(op, Outcome.OK, base + row)
                return
        for op in left.values():
            self._world.history.end_produce(op, Outcome.INFO, why="given up")


def name_of(value: str) -> str:
    return value.rpartition("=")[2]


class IdsRun(LedgerRun):
    def _start_clients(self) -> None:
        super()._start_clients()
        self._naming = [NamingProducer(self.world, f"naming{number}", self.brokers) for number in range(3)]
        for number, client in enumerate(self._naming):
            self._clients.append(client)
            self._work.append(self.world.loop.in_world(client.run(number % PARTITIONS)))

    def _judge(self, logs: dict[Partition, FinalLog]) -> Iterator[Violation]:
        yield from super()._judge(logs)
        for told in (told for client in self._naming for told in client.told):
            stored = logs.get(told.partition, FinalLog({})).records.get(told.offset)
            if stored is None or name_of(stored) != told.name:
                text = f"{told.client} was told that id {told.name} is at {told.partition} {told.offset}: {stored!r}"
                yield Violation("false duplicate", text)
        yield from self._judge_windows()

    def _judge_windows(self) -> Iterator[Violation]:
        until_us: dict[tuple[PartitionId, bytes], int] = {}
        for segment in self.world.store.history(BUNDLE):
            for entry in segment.index.batches if segment.valid else ():
                key = PartitionId(entry.topic_id, entry.partition)
                now_us = entry.ids_until_us - IDS_WINDOW_US
                for message_id in split_ids(entry.message_ids):
                    if message_id == NO_ID:
                        continue
                    if now_us < until_us.get((key, message_id), now_us):
                        text = f"slot {segment.index.slot}: {key} has an id again before its window is over"
                        yield Violation("duplicate in the window", text)
                    elif (key, message_id) in until_us:
                        self.world.coverage.saw("an id was stored again after its window")
                    until_us[key, message_id] = entry.ids_until_us
