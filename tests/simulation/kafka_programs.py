"""What every simulated program has that speaks the Kafka protocol: lines to brokers, what it knows of leaders and
coordinators, and calls that it repeats.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import find_coordinator_request as fc
from ledgermq_broker.kafka.wire.generated import metadata_request as m
from ledgermq_broker.kafka.wire.messages import FIND_COORDINATOR, METADATA, Api
from tests.simulation.cluster_clients import SimulatedClient
from tests.simulation.cluster_plan import ClusterPlan
from tests.simulation.kafka_lines import KafkaLine, LineBroke, Ports
from tests.simulation.kafka_plan import KafkaPlan
from tests.simulation.kafka_share_truth import SharesTruth
from tests.simulation.kafka_truth import Readers
from tests.simulation.transactions_truth import Sent

GROUPS, TRANSACTIONS = 0, 1
"""Kinds of coordinators."""
INPUT, OUTPUTS = "main", ("left", "right")
AGAIN = frozenset(
    {
        Code.NOT_COORDINATOR,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.LEADER_NOT_AVAILABLE,
        Code.REQUEST_TIMED_OUT,
        Code.NOT_ENOUGH_REPLICAS,
        Code.KAFKA_STORAGE_ERROR,
        Code.CONCURRENT_TRANSACTIONS,
        Code.UNSTABLE_OFFSET_COMMIT,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Codes on which a client asks again."""
Place = tuple[str, int]


class Stopped(Exception):
    """The program has nothing more to do."""


@dataclass
class Shared:
    """What the programs of a run have in common."""

    sent: list[Sent] = field(default_factory=list)
    readers: Readers = field(default_factory=Readers)
    shares: SharesTruth = field(default_factory=SharesTruth)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the end of a transaction was stored, in ambush."""
    about_to_begin: set[str] = field(default_factory=set)
    """Members of KIP-848 that were given what they have not begun with."""


class KafkaProgram(SimulatedClient):
    """One incarnation of a process."""

    def __init__(
        self, ports: Ports, plan: ClusterPlan, own: KafkaPlan, shared: Shared, name: str, incarnation: int
    ) -> None:
        super().__init__(ports.world, ports.network, plan, name)
        self.label = f"{name}.{incarnation}"
        self.random = random.Random(f"kafka {self.label} {ports.world.seed}")
        self.world = ports.world
        self.own, self.shared = own, shared
        self._ports = ports
        self._lines: dict[tuple[str, str], KafkaLine] = {}
        self._leaders: dict[Place, str] = {}
        self._coordinators: dict[tuple[int, str], str] = {}
        self.topics_by_id: dict[bytes, str] = {}
        self.timeout_s = min(10.0, plan.request_timeout_s)

    async def _live(self) -> None:
        await self.work()
        for line in self._lines.values():
            line.close()
        self.world.note(self.name, "has ended")

    def next_value(self) -> str:
        self._values += 1
        return f"{self.label}/{self._values}"

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def line(self, broker: str, purpose: str = "", *, outlives: bool = False) -> KafkaLine:
        known = self._lines.get((broker, purpose))
        if known is None or known.is_over:
            known = KafkaLine(self._ports, self.name, self.process, broker, outlives=outlives)
            self._lines[broker, purpose] = known
        return known

    async def ask(
        self, broker: str, api: Api, version: int, request: Any, purpose: str = "", timeout_s: float = 0.0
    ) -> Any:
        """Raises LineBroke."""
        line = self.line(broker, purpose)
        return await line.answer(api, version, line.send(api, version, request), timeout_s or self.timeout_s)

    async def pause(self) -> None:
        await asyncio.sleep(self.random.uniform(0.05, 0.4))

    def any_broker(self) -> str:
        return f"b{self.random.randrange(self._plan.brokers)}"

    # Who serves what

    async def leader(self, place: Place) -> str:
        while place not in self._leaders:
            await self._refresh()
            if place not in self._leaders:
                await self.pause()
        return self._leaders[place]

    def forget_leader(self, place: Place) -> None:
        self._leaders.pop(place, None)

    async def _refresh(self) -> None:
        wanted = [m.MetadataRequestTopic(name=topic) for topic in (INPUT, *OUTPUTS)]
        request = m.MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        try:
            answer = await self.ask(self.any_broker(), METADATA, 12, request)
        except LineBroke:
            return
        hosts = {broker.node_id: broker.host for broker in answer.brokers}
        for topic in answer.topics:
            if not topic.error_code:
                self.topics_by_id[topic.topic_id] = topic.name
            for part in topic.partitions:
                if part.leader_id in hosts:
                    self._leaders[topic.name, part.partition_index] = hosts[part.leader_id]

    async def _find(self, kind: int, name: str) -> str | None:
        request = fc.FindCoordinatorRequest(key_type=kind, coordinator_keys=[name])
        try:
            [found] = (await self.ask(self.any_broker(), FIND_COORDINATOR, 4, request)).coordinators
        except LineBroke:
            return None
        return None if found.error_code else found.host

    async def at_coordinator(
        self,
        kind: int,
        name: str,
        api: Api,
        version: int,
        request: Any,
        *,
        timeout_s: float = 0.0,
        tries: int = 0,
        purpose: str = "",
    ) -> Any:
        """Ask until the answer is no "try again"; after so many tries, raise LineBroke. `purpose`: of the line."""
        key, purpose = (kind, name), purpose or f"{kind} {name}"
        for number in range(1, 1_000_000):
            broker = self._coordinators.get(key) or await self._find(kind, name)
            if broker is not None:
                self._coordinators[key] = broker
                try:
                    answer = await self.ask(broker, api, version, request, purpose, timeout_s)
                    if not AGAIN & set(codes_of(answer)):
                        return answer
                except LineBroke:
                    pass
                self._coordinators.pop(key, None)
            if number == tries:
                break
            await self.pause()
        raise LineBroke


def codes_of(answer: Any) -> Sequence[int]:
    """Return all codes of an answer that has one or more."""
    found = [answer.error_code] if hasattr(answer, "error_code") else []
    for topic in getattr(answer, "topics", None) or getattr(answer, "results_by_topic_v3_and_below", None) or ():
        parts = getattr(topic, "partitions", None) or getattr(topic, "results_by_partition", None) or ()
        found += [getattr(part, "error_code", 0) or getattr(part, "partition_error_code", 0) for part in parts]
    for group in getattr(answer, "groups", None) or ():
        found += codes_of(group)
    return found
