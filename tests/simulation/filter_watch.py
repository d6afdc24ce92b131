"""Watch consumers with filters: each gets exactly what reading everything, and leaving out the rest, would give.

filter differs     between the begin of a session and its position, a passing record did not come, or another came
stuck              after the healing, a consumer with a filter does not get to the end

A record's tag follows from its value, so the log itself says what passes.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Mapping

from ledgermq.client.consuming.consumer import Consumer
from ledgermq.errors import LedgerMQError
from ledgermq.filters.functions import FilterFunction, FilterMessage
from tests.judges.violation import Violation
from tests.simulation.cluster_clients import SimulatedClient
from tests.simulation.cluster_plan import ClusterPlan
from tests.simulation.history import FinalLog, Partition
from tests.simulation.network import Network
from tests.simulation.tags import TAGS, tag_of
from tests.simulation.watch import PLACE
from tests.simulation.world import World

TOPIC = "main"
END_S = 600.0


def keeps_rare(message: FilterMessage) -> bool:
    """Keep the records of the rarest tag; refuse to judge some others."""
    assert message.value is not None
    if message.tag is None:
        raise ValueError("no tag")
    return message.tag == TAGS[0]


FUNCTIONS: Mapping[str, FilterFunction] = {"rare": keeps_rare}
FILTERS: Mapping[str, Callable[[str | None], bool]] = {
    TAGS[0]: lambda tag: tag == TAGS[0],
    f"{TAGS[0]} || {TAGS[1]}": lambda tag: tag in TAGS[:2],
    "TAGS IS NULL": lambda tag: tag is None,
    "FUNCTION('rare')": lambda tag: tag == TAGS[0],
}
"""By filter, whether a tag passes."""


class FilteringReader(SimulatedClient):
    """Reads a topic by a filter, session after session, each from where the last one stopped or from the beginning."""

    def __init__(self, world: World, network: Network, plan: ClusterPlan, name: str) -> None:
        super().__init__(world, network, plan, name)
        self.filter = random.Random(f"filter {name} {world.seed}").choice(sorted(FILTERS))
        self.sessions: list[Session] = []
        self._positions: dict[Partition, int] = {}

    async def work(self) -> None:
        while not self.stopped.is_set():
            await self._session(self.random.choice((2.0, 10.0, 1000.0)))
            if self.random.random() < 0.3:
                self._positions.clear()

    async def read_to_the_end(self) -> str:
        """Read on until everything was passed; return where it hangs, or nothing."""
        consumer = self._consumer()
        session = self._begin(consumer)
        hangs = "it does not know the ends"
        try:
            async with asyncio.timeout(END_S):
                ends = None
                while ends is None:
                    try:
                        ends = await consumer.end_offsets()
                    except LedgerMQError:
                        await asyncio.sleep(0.5)
                while missing := [str(at) for at, end in ends.items() if consumer.positions()[at] < end]:
                    hangs = f"{self.filter}: {missing}, {consumer.last_error}"
                    await self._poll(consumer, session)
        except TimeoutError:
            return hangs
        finally:
            await consumer.close()
        return ""

    def _consumer(self) -> Consumer:
        start = {self._named(partition): offset for partition, offset in self._positions.items()}
        return self.client.consumer(
            TOPIC,
            start=start or "earliest",
            filter=self.filter,
            request_timeout_s=self._plan.request_timeout_s,
            direct_reads=PLACE if self._plan.direct_reads else "",
        )

    @staticmethod
    def _named(partition: Partition) -> tuple[str, int]:
        return TOPIC, partition[1]

    def _begin(self, consumer: Consumer) -> Session:
        self.sessions.append(session := Session(self.filter, dict(self._positions)))
        return session

    async def _session(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        over = loop.time() + seconds
        consumer = self._consumer()
        session = self._begin(consumer)
        try:
            while not self.stopped.is_set() and loop.time() < over:
                await self._poll(consumer, session)
        finally:
            await consumer.close()

    async def _poll(self, consumer: Consumer, session: Session) -> None:
        try:
            messages = await consumer.fetch(self.random.choice((1, 10, 500)), timeout=1.0)
        except LedgerMQError as error:
            self._world.judge_error(error)
            await asyncio.sleep(0.2)
            return
        for message in messages:
            assert message.value is not None
            partition = self.partition(message.topic, message.partition)
            session.got[partition].append((message.offset, message.value.decode()))
        self._positions = {
            self.partition(at.topic, at.partition): offset for at, offset in consumer.positions().items()
        }
        session.positions = dict(self._positions)
        if messages:
            self._world.coverage.saw("a filter let messages pass")
        counts = consumer.filter_counts
        self._world.coverage.saw("a broker left out what a filter leaves out", counts.by_brokers)
        self._world.coverage.saw("a filter function failed on a record", counts.failed)


class Session:
    """What one consumer with a filter got. `begins`: its positions at the begin, by partition; 0 where it has none."""

    def __init__(self, text: str, begins: dict[Partition, int]) -> None:
        self.text = text
        self.begins = begins
        self.positions: dict[Partition, int] = {}
        self.got: defaultdict[Partition, list[tuple[int, str]]] = defaultdict(list)

    def judge(self, logs: Mapping[Partition, FinalLog]) -> list[Violation]:
        """Compare with the log."""
        found = []
        for partition, position in self.positions.items():
            begin = self.begins.get(partition, 0)
            records = logs[partition].records if partition in logs else {}
            expected = [
                (offset, value)
                for offset, value in sorted(records.items())
                if begin <= offset < position and FILTERS[self.text](tag_of(value))
            ]
            got = self.got[partition]
            if got != expected:
                missing, more = sorted({*expected} - {*got})[:3], sorted({*got} - {*expected})[:3]
                text = f"{partition} from {begin} to {position} by {self.text!r}: missing {missing}, more {more}"
                found.append(Violation("filter differs", text))
        return found
