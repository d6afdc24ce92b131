"""Look messages up by key and by id in some runs of level cluster, beside writes, takeovers and compaction.

    look-up missed       a message whose send was answered before the look-up began was not found
    look-up invented     another message was found than the log has at its place, or one twice

A record's key is its value, and no two records share one. So the log itself says what a look-up has to find.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ledgermq.client.consuming.message import Message
from ledgermq.client.messages.message_id import MessageId
from ledgermq.errors import LedgerMQError, OffsetOutOfRange, SearchStopped
from tests.judges.violation import Violation
from tests.simulation.cluster_clients import SimulatedClient
from tests.simulation.cluster_plan import ClusterPlan
from tests.simulation.history import FinalLog, Outcome, Partition, Produce, Produced
from tests.simulation.network import Network
from tests.simulation.world import World

TOPIC = "main"
EVERY_S = 0.15
LATEST = 30
"""Half of the look-ups are for one of the latest records that were answered, which are in no file yet."""


def looks_up(seed: int) -> bool:
    """Return whether messages are looked up in this run."""
    return random.Random(f"look-ups {seed}").random() < 0.5


@dataclass(frozen=True, slots=True)
class Stored:
    """A record whose send was answered. `offset`: as the answer says."""

    partition: Partition
    offset: int
    value: str


def _stored(send: Produce, answer: Produced) -> list[Stored]:
    """Return the records of a send; none if it was not told their offsets."""
    if answer.outcome is not Outcome.OK or answer.base_offset < 0:
        return []
    return [Stored(send.partition, answer.base_offset + row, value) for row, value in enumerate(send.values)]


@dataclass(frozen=True, slots=True)
class LookedUp:
    """`found`: (offset, value); None: the broker says that the offset is not there."""

    wanted: Stored
    by: str
    found: list[tuple[int, str]] | None


class Seeker(SimulatedClient):
    """Looks up what was stored, and now and then what was never sent."""

    def __init__(self, world: World, network: Network, plan: ClusterPlan, name: str) -> None:
        super().__init__(world, network, plan, name)
        self._stored: list[Stored] = []
        self._sends: dict[int, Produce] = {}
        self._read = 0
        self.answers: list[LookedUp] = []

    async def work(self) -> None:
        while not self.stopped.is_set():
            await asyncio.sleep(self.random.expovariate(1 / EVERY_S))
            self._read_history()
            if not self._stored:
                continue
            latest = self._stored[-LATEST:] if self.random.random() < 0.5 else self._stored
            wanted = self.random.choice(latest)
            by = self.random.choice(("key", "key from the oldest on", "id", "a key that was never sent"))
            try:
                found = await self._look_up(wanted, by)
            except SearchStopped:
                self._world.coverage.saw("a look-up stopped at its bound")
            except OffsetOutOfRange:
                self.answers.append(LookedUp(wanted, by, None))
            except LedgerMQError as error:
                self._world.judge_error(error)
            else:
                values = [(message.offset, (message.value or b"").decode()) for message in found]
                self.answers.append(LookedUp(wanted, by, values))
                self._world.coverage.saw(f"a look-up was answered: {by}")

    async def _look_up(self, wanted: Stored, by: str) -> list[Message]:
        number = wanted.partition[1]
        if by == "id":
            return await self.client.find(id=MessageId(TOPIC, number, wanted.offset)).all()
        key = f"{wanted.value} was never sent" if by == "a key that was never sent" else wanted.value
        order = "oldest" if by == "key from the oldest on" else "newest"
        timeout_s = self._plan.request_timeout_s * 3
        return await self.client.find(TOPIC, key=key, partitions=[number], order=order, timeout=timeout_s).all()

    def _read_history(self) -> None:
        topic = self.partition(TOPIC, 0)[0]
        events = self._world.history.events
        for event in events[self._read :]:
            if isinstance(event, Produce) and event.partition[0] == topic:
                self._sends[event.op] = event
            elif isinstance(event, Produced) and (send := self._sends.pop(event.op, None)) is not None:
                self._stored += _stored(send, event)
        self._read = len(events)

    def judge(self, logs: Mapping[Partition, FinalLog]) -> Iterator[Violation]:
        for answer in self.answers:
            wanted, found = answer.wanted, answer.found or []
            log = logs.get(wanted.partition)
            if log is None:
                continue
            where = f"by {answer.by}: {wanted.value!r} at offset {wanted.offset} of {wanted.partition}"
            if answer.by == "a key that was never sent":
                if found:
                    yield Violation("look-up invented", f"{where}: {found[:5]}")
                continue
            if (wanted.offset, wanted.value) not in found and wanted.offset >= log.log_start:
                yield Violation("look-up missed", f"{where}: {found[:5]}")
            wrong = [each for each in found if log.records.get(each[0], each[1]) != each[1] or each[1] != wanted.value]
            if wrong or len(set(found)) < len(found):
                yield Violation("look-up invented", f"{where}: {found[:5]}")
