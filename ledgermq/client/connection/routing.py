"""Find the brokers that own partitions: the client's cache of topics and owners, and calls that
need the owners of several partitions (`AtOwners`). Only a cache: brokers decide, and redirect.

Invariants: a topic is looked up once at a time, however many callers need it. An answer replaces
the whole entry of its topic, except that an owner learned from a redirect is kept until the next
answer. The size is bounded by the topics that the program names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar, cast, get_args

from ledgermq.client.connection.connections import Connections
from ledgermq.client.messages.descriptions import TopicPartition, check_topic_text
from ledgermq.client.messages.expiry import TopicTtl, ttl_in_force
from ledgermq.errors import (
    InvalidRequest,
    LedgerMQError,
    NotOwner,
    ResourceExhausted,
    RetriableError,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi, Connection
from ledgermq.protocol.batches.record_rules import TimestampBounds
from ledgermq.protocol.batches.records import Compression
from ledgermq.protocol.levels import levels_of
from ledgermq.protocol.limits import PARTITIONS_PER_CALL_MAX, RECORD_BYTES_MAX
from ledgermq.protocol.status import error_from_proto
from ledgermq.runtime.tasks import all_of, end, retrieve_error, shared

UNKNOWN_TOPIC_GRACE_S = 5.0
"""A broker may not know a topic yet that another broker has described to the client: its refusal
of records or reads counts only after this time.
"""

UNKNOWN_TOPIC_ASK_S = 1.0
"""A topic that no broker has described yet may have been created a moment ago: look it up again
for this time before raising UnknownTopic. It is shorter, because a program with a wrong name waits
for it.
"""

SUSPICION_S = 2.0
"""A broker that has not answered for this time is suspected of standing still: query another one
about the present owner of its partitions. A stopped process keeps its connections open, so only
its silence reveals it.
"""
QUERY_AGAIN_S = 0.5
QUERY_AGAIN_PART = 0.25

RECORD_BYTES_MAX_DEFAULT = 1024 * 1024
RACKS_MAX = 1000
"""Brokers whose racks are remembered. Brokers come and go under new addresses."""


@dataclass(frozen=True, slots=True)
class TopicRoute:
    name: str
    topic_id: int
    partitions: int
    settings: Mapping[str, str]
    learned_at_s: float
    ttl: TopicTtl | None = None
    """The times to live that are in force; None: neither is set."""

    @property
    def record_bytes_max(self) -> int:
        """Largest record that the topic takes: key, value and headers."""
        given = self.settings.get("max.message.bytes", "")
        return min(int(given), RECORD_BYTES_MAX) if given.isdecimal() else RECORD_BYTES_MAX_DEFAULT

    @property
    def levels(self) -> int:
        """Return the number of levels of priority; 1: the topic has none."""
        return levels_of(self.settings)

    @property
    def timestamp_bounds(self) -> TimestampBounds | None:
        """Return how far timestamps may be from the time of their append; None: any time."""
        bounds = TimestampBounds.of(self.settings)
        return bounds if bounds.is_set else None

    @property
    def is_keyed(self) -> bool:
        """Return whether each record needs a key."""
        return self.settings.get("cleanup.policy", "").startswith("compact")

    @property
    def deduplicates(self) -> bool:
        """Return whether the topic recognizes messages by their ids."""
        return self.settings.get("dedup.window.ms", "0") != "0"

    @property
    def compression(self) -> Compression | None:
        """Compression for producers; None: the producer chooses (also if a newer broker names an
        unknown one).
        """
        wanted = self.settings.get("compression.type")
        return cast(Compression, wanted) if wanted in get_args(Compression) else None


class Routing:
    """`rack`: in which the program runs, "" if it has not said one."""

    def __init__(self, connections: Connections, age_s_max: float, rack: str = "") -> None:
        self._connections = connections
        self.age_s_max = age_s_max
        self.rack = rack
        self.changes = 0
        """How often owners, or their racks, may have changed."""
        self._racks: dict[str, str] = {}
        """By address of the broker. Brokers of earlier releases name none."""
        self._topics: dict[str, TopicRoute] = {}
        self._owners: dict[tuple[str, int], str] = {}
        self._bundles: dict[tuple[str, int], int] = {}
        self._asking: dict[str, asyncio.Task[TopicRoute]] = {}

    def known(self, topic: str) -> TopicRoute | None:
        return self._topics.get(topic)

    def ttl_of(self, topic: str) -> TopicTtl | None:
        """Return the topic's times to live, as they are known; None: it sets none, or is not known."""
        route = self._topics.get(topic)
        return None if route is None else route.ttl

    def levels_of(self, topic: str) -> int:
        """Return the topic's number of levels of priority; 1: it has none, or is not known yet."""
        route = self._topics.get(topic)
        return 1 if route is None else route.levels

    def is_old(self, route: TopicRoute) -> bool:
        return asyncio.get_running_loop().time() - route.learned_at_s > self.age_s_max

    def owner(self, topic: str, partition: int) -> str | None:
        """Return the address of the broker to send to; None: not known at present."""
        return self._owners.get((topic, partition))

    def rack_of(self, topic: str, partition: int) -> str:
        """Return the rack of the broker to send to; "" if it is not known, as from brokers of earlier releases."""
        return self._racks.get(self._owners.get((topic, partition), ""), "")

    def bundle(self, topic: str, partition: int) -> int:
        """Return the bundle that the partition was in at the last look; 0: not known."""
        return self._bundles.get((topic, partition), 0)

    def redirected(self, topic: str, partition: int, owner: str | None, *, refused_by: str) -> None:
        """Note that the broker at `refused_by` does not own the partition; `owner` is its hint, if
        it gave one.
        """
        self.changes += 1
        if owner and owner != refused_by:
            self._connections.learn(owner)
            self._owners[(topic, partition)] = owner
        elif self._owners.get((topic, partition)) == refused_by:
            del self._owners[(topic, partition)]

    def unreachable(self, address: str) -> None:
        """Send nothing to that broker before an answer or a redirect names it again."""
        self.changes += 1
        for partition in [partition for partition, owner in self._owners.items() if owner == address]:
            del self._owners[partition]

    def forget(self, topic: str) -> None:
        self.changes += 1
        self._topics.pop(topic, None)
        for known in (self._owners, self._bundles):
            for partition in [partition for partition in known if partition[0] == topic]:
                del known[partition]

    async def route(self, topic: str, deadline: float, *, auto_create: bool = False) -> TopicRoute:
        """Return the cached route, or look it up at brokers.

        Raises UnknownTopic, InvalidTopicName, Unavailable.
        """
        found = self._topics.get(topic)
        return found if found is not None else await self.refresh(topic, deadline, auto_create=auto_create)

    async def refresh(
        self, topic: str, deadline: float, *, auto_create: bool = False, avoid: str | None = None
    ) -> TopicRoute:
        """Look up the topic now, at broker `avoid` last; callers at the same time share one
        look-up, each until its own deadline.
        """
        check_topic_text(topic)
        loop = asyncio.get_running_loop()
        while (task := self._asking.get(topic)) is not None:
            try:
                async with asyncio.timeout_at(deadline):
                    return await shared(task, "a look-up")
            except TimeoutError:
                raise Unavailable(f"no broker has described topic {topic!r} in time") from None
            except RetriableError:
                if loop.time() >= deadline:
                    raise
                self._asked(topic, task)  # another caller had less time: look again, and not at what has ended
        task = loop.create_task(self._ask(topic, deadline, auto_create, avoid))
        self._asking[topic] = task
        task.add_done_callback(lambda done: self._asked(topic, done))
        return await shared(task, "a look-up")

    def _asked(self, topic: str, task: asyncio.Task[TopicRoute]) -> None:
        if self._asking.get(topic) is task:
            del self._asking[topic]
        retrieve_error(task)

    async def _ask(self, topic: str, deadline: float, auto_create: bool, avoid: str | None) -> TopicRoute:
        request = pb.DescribeTopicsRequest(topics=[topic], auto_create=auto_create)
        grace = min(deadline, self._connections.deadline(UNKNOWN_TOPIC_ASK_S))
        backoff = self._connections.backoff()

        async def describe(connection: Connection) -> pb.TopicInfo:
            response = await connection.describe_topics(request)
            for info in response.topics:
                if info.HasField("error"):
                    raise error_from_proto(info.error)
                if info.name == topic and info.partitions:
                    return info
            raise UnknownTopic(f"topic {topic!r} does not exist")

        while True:
            try:
                return self.learn(await self._connections.ask(describe, deadline, avoid=avoid))
            except UnknownTopic:
                if not await backoff.pause(deadline=grace):
                    self.forget(topic)
                    raise

    def learn(self, info: pb.TopicInfo) -> TopicRoute:
        """Apply a broker's description of a topic.

        A description of an older topic of the name comes from a broker that lags: while the cached
        route is new, it is kept.
        """
        known = self._topics.get(info.name)
        if known is not None and known.topic_id > info.topic_id and not self.is_old(known):
            return known
        route = TopicRoute(
            info.name,
            info.topic_id,
            len(info.partitions),
            dict(info.settings),
            asyncio.get_running_loop().time(),
            ttl_in_force(info.message_ttl_ms, info.message_ttl_ms_max),
        )
        if known is not None and known.topic_id != info.topic_id:
            self.forget(info.name)
        self._topics[info.name] = route
        self.changes += 1
        if len(self._racks) > RACKS_MAX:
            self._racks = {}
        self._racks.update(info.racks)
        for partition, part in enumerate(info.partitions):
            self._bundles[(info.name, partition)] = part.bundle
            if part.owner:
                self._connections.learn(part.owner)
                self._owners[(info.name, partition)] = part.owner
        return route

    async def close(self) -> None:
        await end(*self._asking.values())


A = TypeVar("A")

Ask = Callable[[BrokerApi, Sequence[TopicPartition]], Awaitable[Sequence[A | LedgerMQError]]]
"""Send one request to one broker, and return an answer or an error for each partition, in their
order.
"""


class AtOwners(Generic[A]):
    """Sends a request to the owners of partitions, one per owner for all of its partitions, until
    every partition has an answer. One request names PARTITIONS_PER_CALL_MAX partitions at most.

    Redirects and dead brokers are followed until the deadline. An owner that does not answer delays
    no other.
    """

    def __init__(self, connections: Connections, routing: Routing, ask: Ask[A]) -> None:
        self._connections = connections
        self._routing = routing
        self._ask_one = ask

    async def find(self, wanted: Sequence[TopicPartition], deadline: float) -> dict[TopicPartition, A]:
        """Return every partition's answer.

        Raises UnknownPartition, the first other error that no retry cures, and Unavailable.
        """
        await self._check_partitions(wanted, deadline)
        found: dict[TopicPartition, A] = {}
        backoff = self._connections.backoff()
        while True:
            missing = [partition for partition in wanted if partition not in found]
            if not missing:
                return found
            missing = missing[:PARTITIONS_PER_CALL_MAX]
            last = await self._round(missing, found, deadline)
            if last is None:
                continue
            if not await backoff.pause(last.retry_after_ms, deadline):
                names = ", ".join(str(partition) for partition in missing if partition not in found)
                raise Unavailable(f"no answer in time for {names}: {last}") from last
            for topic in dict.fromkeys(partition.topic for partition in missing if partition not in found):
                if any(self._routing.owner(*partition) is None for partition in missing if partition.topic == topic):
                    await self._routing.refresh(topic, deadline)

    async def _check_partitions(self, wanted: Sequence[TopicPartition], deadline: float) -> None:
        """Raise UnknownPartition for a partition that the topic does not have: the call would look
        for its owner until the deadline.

        The topic may have grown since the partition was looked up.
        """
        for topic, partition in wanted:
            if partition >= (await self._routing.route(topic, deadline)).partitions:
                count = (await self._routing.refresh(topic, deadline)).partitions
                if partition >= count:
                    raise UnknownPartition(f"topic {topic!r} has partitions 0 to {count - 1}, not {partition}")

    async def _round(
        self, missing: Sequence[TopicPartition], found: dict[TopicPartition, A], deadline: float
    ) -> LedgerMQError | None:
        """Send one request to each owner, all at the same time.

        Return the last error that a retry may cure.
        """
        by_owner: dict[str, list[TopicPartition]] = {}
        last: LedgerMQError | None = None
        for partition in missing:
            await self._routing.route(partition.topic, deadline)
            if (owner := self._routing.owner(*partition)) is not None:
                by_owner.setdefault(owner, []).append(partition)
            else:
                last = Unavailable(f"no broker owns {partition} at present")
        errors = await all_of(self._ask(*one, found, deadline) for one in by_owner.items())
        return next((error for error in errors if error is not None), last)

    async def _ask(
        self, owner: str, partitions: list[TopicPartition], found: dict[TopicPartition, A], deadline: float
    ) -> LedgerMQError | None:
        try:
            results = await self._connections.ask_at(owner, lambda at: self._ask_one(at, partitions), deadline)
            if len(results) != len(partitions):
                raise Unavailable(f"{owner} answered for {len(results)} of {len(partitions)} partitions")
        except InvalidRequest:
            raise
        except LedgerMQError as error:
            if not error.retriable:
                raise
            if not isinstance(error, ResourceExhausted):
                self._routing.unreachable(owner)
            return error
        last: LedgerMQError | None = None
        for asked, result in zip(partitions, results, strict=True):
            if not isinstance(result, LedgerMQError):
                found[asked] = result
                continue
            last = result
            if not last.retriable:
                raise last
            # A broker that cannot serve the partition may be a former owner.
            named = last.owner if isinstance(last, NotOwner) else None
            self._routing.redirected(asked.topic, asked.partition, named, refused_by=owner)
        return last


def ask_at_s(waits_since_s: float, asked_s: float) -> float:
    """Return when a caller that waits for a broker queries another one. `asked_s`: when other
    brokers were last queried.

    The first query comes after two seconds without an answer, the next after half a second or a
    quarter of the wait: the longer the wait, the rarer they become.
    """
    if asked_s < waits_since_s:
        return waits_since_s + SUSPICION_S
    return asked_s + max(QUERY_AGAIN_S, QUERY_AGAIN_PART * (asked_s - waits_since_s))
