"""Have the partitions of topics for one producer alone: ask their owners for them, renew the leases, give them back.

    mode                      another exclusive producer has a partition
    exclusive                 PartitionHeld
    wait_for_exclusive        wait until it leaves, or its lease is over
    exclusive_with_fencing    take the partition from it

The first partition of a topic is asked for alone, and the others when it is held. So of two producers that ask at
the same time, one gets all. A producer that was refused gives back what it has got. One that lost a partition gives
back the others of the topic, and never has the topic again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from ledgermq.client.connection.routing import AtOwners
from ledgermq.client.context import ClientContext
from ledgermq.client.messages.descriptions import PartitionHolder, TopicPartition
from ledgermq.client.producing.delivery import again
from ledgermq.client.producing.partition.sessions import Session
from ledgermq.client.settings.producers import AccessMode
from ledgermq.errors import LedgerMQError, PartitionHeld, ProducerFenced, Unavailable, UnknownTopic
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq.protocol.naming.exclusive_ids import exclusive_id
from ledgermq.protocol.status import error_from_proto
from ledgermq.runtime.process.log import get_log
from ledgermq.runtime.tasks import retrieve_error

R = TypeVar("R", pb.PartitionHolder, pb.ReleasedPartition)

LOOK_S = 1.0
"""How often a producer that waits looks whether the partition is free."""
RACE_S = 0.1
"""Longest pause after a claim that came too late."""
RENEWALS = 3
"""Renewals within one lease."""
RELEASE_S = 5.0
"""Longest time for giving partitions back; where that fails, their leases end."""

RENEWAL_S_MIN = 0.1

_log = get_log("ledgermq.producer")


class _Topic:
    """`id`: of the producer in this topic. `held`: partitions. `lost`: why it has none and never has again."""

    def __init__(self, producer_id: bytes) -> None:
        self.id = producer_id
        self.topic_id = 0
        self.held: set[int] = set()
        self.lost: ProducerFenced | None = None
        self.acquiring: asyncio.Task[None] | None = None


class Exclusive:
    """`name`: of the producer, for errors and lists."""

    def __init__(self, context: ClientContext, mode: AccessMode, name: str, *, auto_create: bool) -> None:
        self._context = context
        self._mode = mode
        self._name = name
        self._auto_create = auto_create
        self._topics: dict[str, _Topic] = {}
        self._lease_s = 0.0
        self._any_held = asyncio.Event()

    def holds(self, topic: str) -> bool:
        """Return whether the producer has partitions of the topic. It may have been fenced since it last asked."""
        return topic in self._topics and bool(self._topics[topic].held)

    def session(self, at: TopicPartition, opened: Session, epoch: int) -> Session:
        """Return the session with the producer's id. `epoch`: higher than those of its sessions there before."""
        return replace(opened, id=self._topics[at.topic].id, epoch=epoch)

    async def acquire(self, name: str, partition: int | None = None) -> None:
        """Wait until the producer has all partitions of the topic for itself; `partition`: this one suffices.

        Raises PartitionHeld, ProducerFenced, and the errors of the calls. A call that is cancelled goes on.
        """
        topic, route = self._topics.get(name), self._context.routing.known(name)
        if topic is None or (route is not None and topic.topic_id not in (0, route.topic_id)):  # another topic now
            topic = self._topics[name] = _Topic(exclusive_id(self._context.sources.new_id()))
        if topic.lost is not None:
            raise again(topic.lost)
        if partition in topic.held:
            return
        task = topic.acquiring
        if task is None:
            task = topic.acquiring = asyncio.create_task(self._acquire(name, topic), name=f"acquire {name}")
            task.add_done_callback(retrieve_error)
        try:
            await asyncio.shield(task)
        except LedgerMQError as error:
            raise again(error) from error
        except asyncio.CancelledError:
            if task.cancelled():
                raise Unavailable("the producer was closed") from None
            raise

    async def run(self) -> None:
        """Renew the leases, until cancelled."""
        while True:
            await self._any_held.wait()
            await asyncio.sleep(max(RENEWAL_S_MIN, self._lease_s / RENEWALS))
            for name, topic in list(self._topics.items()):
                if topic.held:
                    await self._renew(name, topic)

    async def close(self) -> None:
        """Give all partitions back. Where an owner does not answer in time, its leases end."""
        for name, topic in list(self._topics.items()):
            if topic.acquiring is not None:
                topic.acquiring.cancel()
                await asyncio.wait([topic.acquiring])
            await self._give_back(name, topic)
        self._topics.clear()

    async def _acquire(self, name: str, topic: _Topic) -> None:
        try:
            deadline = self._context.connections.deadline()
            route = await self._context.routing.route(name, deadline, auto_create=self._auto_create)
            topic.topic_id = route.topic_id
            wanted = [TopicPartition(name, number) for number in range(route.partitions) if number not in topic.held]
            had = bool(topic.held)
            try:
                await self._take(topic, wanted[:1])
                await self._take(topic, wanted[1:])
                if topic.lost is not None:
                    raise again(topic.lost)
            except LedgerMQError:
                if not had:
                    await self._give_back(name, topic)
                    topic.id = exclusive_id(self._context.sources.new_id())
                raise
            _log.info("exclusive producer %r has topic %s", self._name, name)
        finally:
            topic.acquiring = None

    async def _take(self, topic: _Topic, wanted: Sequence[TopicPartition]) -> None:
        while wanted:
            seen = await self._ask(topic, dict.fromkeys(wanted))
            others = {at: holder for at, holder in seen.items() if not holder.is_caller}
            blocked = {at: holder for at, holder in others.items() if holder.is_held and holder.lease_ms > 0}
            if blocked and self._mode == "wait_for_exclusive":
                lease_s = min(holder.lease_ms for holder in blocked.values()) / 1000
                await asyncio.sleep(min(lease_s, LOOK_S * (0.5 + self._context.sources.random.random() / 2)))
                continue
            if blocked and self._mode == "exclusive":
                at, holder = min(blocked.items())
                raise PartitionHeld(f"{at}: {_named(holder.name)} has the partition for itself")
            wanted = list(others)
            if wanted:
                claimed = await self._ask(topic, {at: holder.number for at, holder in others.items()})
                wanted = [at for at, holder in claimed.items() if not holder.is_caller]
            if wanted:  # another one was faster
                await asyncio.sleep(RACE_S * self._context.sources.random.random())

    async def _renew(self, name: str, topic: _Topic) -> None:
        try:
            found = await self._ask(topic, {TopicPartition(name, number): None for number in sorted(topic.held)})
        except UnknownTopic:
            self._topics.pop(name, None)  # it was removed
            return
        except LedgerMQError as error:
            _log.warning("the leases of exclusive producer %r in topic %s are not renewed: %s", self._name, name, error)
            return
        for at, holder in found.items():
            if not holder.is_caller and topic.lost is None:
                by = f" to {_named(holder.name)}" if holder.is_held else ""
                topic.lost = ProducerFenced(f"exclusive producer {self._name!r} lost {at}{by}")
                _log.warning("%s", topic.lost)
        if topic.lost is not None:
            await self._give_back(name, topic)

    async def _ask(
        self, topic: _Topic, wanted: dict[TopicPartition, int | None]
    ) -> dict[TopicPartition, pb.PartitionHolder]:
        """Ask the owners, with the numbers by which partitions are wanted; None: only look, or renew."""

        found = await _holders_at(
            self._context,
            {at: _wanted(topic, at, number) for at, number in wanted.items()},
            self._context.connections.deadline(),
            producer_id=topic.id,
            name=self._name,
            fences=self._mode == "exclusive_with_fencing",
        )
        for place, holder in found.items():
            if holder.is_caller:
                topic.held.add(place.partition)
                self._lease_s = holder.lease_ms / 1000
                self._any_held.set()
        return found

    async def _give_back(self, name: str, topic: _Topic) -> None:
        places = [TopicPartition(name, number) for number in sorted(topic.held)]
        topic.held.clear()

        async def ask(at: BrokerApi, asked: Sequence[TopicPartition]) -> list[pb.ReleasedPartition | LedgerMQError]:
            request = pb.ReleasePartitionsRequest(
                producer_id=topic.id, partitions=[_wanted(topic, each, None) for each in asked]
            )
            return [_result(released) for released in (await at.release_partitions(request)).partitions]

        connections = self._context.connections
        with suppress(LedgerMQError):
            await AtOwners(connections, self._context.routing, ask).find(places, connections.deadline(RELEASE_S))


async def find_holders(context: ClientContext, topic: str) -> list[PartitionHolder]:
    """Return the partitions of a topic that exclusive producers have. Raises UnknownTopic, Unavailable."""
    deadline = context.connections.deadline()
    route = await context.routing.refresh(topic, deadline)
    places = [TopicPartition(topic, number) for number in range(route.partitions)]
    wanted = {at: pb.WantedPartition(topic=at.topic, partition=at.partition) for at in places}
    found = await _holders_at(context, wanted, deadline)
    return [
        PartitionHolder(place.partition, holder.name, holder.lease_ms / 1000, holder.number)
        for place in places
        if (holder := found[place]).is_held
    ]


async def _holders_at(
    context: ClientContext, wanted: Mapping[TopicPartition, pb.WantedPartition], deadline: float, **caller: Any
) -> dict[TopicPartition, pb.PartitionHolder]:
    """Ask the owners of partitions who has them. `caller`: the other fields of the request; without them it only
    looks.
    """

    async def ask(at: BrokerApi, asked: Sequence[TopicPartition]) -> list[pb.PartitionHolder | LedgerMQError]:
        request = pb.HoldPartitionsRequest(partitions=[wanted[each] for each in asked], **caller)
        return [_result(holder) for holder in (await at.hold_partitions(request)).holders]

    return await AtOwners(context.connections, context.routing, ask).find(list(wanted), deadline)


def _wanted(topic: _Topic, at: TopicPartition, number: int | None) -> pb.WantedPartition:
    return pb.WantedPartition(topic=at.topic, partition=at.partition, topic_id=topic.topic_id, number=number)


def _result(answer: R) -> R | LedgerMQError:
    return error_from_proto(answer.error) if answer.HasField("error") else answer


def _named(name: str) -> str:
    return f"exclusive producer {name!r}" if name else "another exclusive producer"
