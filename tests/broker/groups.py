"""Make group calls as a client does, for tests in virtual time: follow NOT_OWNER, retry when the
broker requires it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ledgermq.errors import LedgerMQError, NotOwner, RetriableError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import Connection
from ledgermq.protocol.status import error_from_proto
from ledgermq_broker.groups.offsets_topic import partition_of
from ledgermq_ledger import keys
from tests.broker.cluster import Cluster

T = TypeVar("T")

PATIENCE_S = 60.0


async def ask(cluster: Cluster, call: Callable[[Connection], Awaitable[T]], first: int = 0) -> T:
    """Call any broker that answers; begins at the broker number `first`."""
    addresses = cluster.network.addresses()
    address, tries = addresses[first % len(addresses)], 0
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await call(cluster.line(address))
            except NotOwner as error:
                address = error.owner or address
                wait_s = (error.retry_after_ms or 10) / 1000
            except RetriableError as error:
                addresses = cluster.network.addresses()
                address, wait_s = addresses[tries % len(addresses)], (error.retry_after_ms or 50) / 1000
            tries += 1
            await asyncio.sleep(wait_s)


async def coordinator_of(cluster: Cluster, group: str) -> str:
    """The address of the broker that serves a group."""
    partitions = (await ask(cluster, lambda line: line.list_groups(pb.ListGroupsRequest()))).partitions
    return await cluster.owner_of(keys.OFFSETS_TOPIC, partition_of(group, partitions))


def commit_of(
    group: str, *offsets: tuple[str, int, int], member: str = "", epoch: int = 0, counter: int = 1
) -> pb.CommitOffsetsRequest:
    """`offsets`: (topic, partition, offset)."""
    commits = [pb.OffsetCommit(topic=t, partition=p, offset=o, epoch=epoch, counter=counter) for t, p, o in offsets]
    return pb.CommitOffsetsRequest(group=group, member_id=member, commits=commits)


async def commit(cluster: Cluster, request: pb.CommitOffsetsRequest) -> list[str]:
    """Error codes of its results; "" where it was taken."""
    answer = await ask(cluster, lambda line: line.commit_offsets(request))
    return [result.error.code for result in answer.results]


async def committed(cluster: Cluster, group: str, *partitions: tuple[str, int]) -> list[pb.CommittedPartition]:
    wanted = [pb.TopicPartition(topic=topic, partition=partition) for topic, partition in partitions]
    answer = await ask(
        cluster, lambda line: line.fetch_committed(pb.FetchCommittedRequest(group=group, partitions=wanted))
    )
    return list(answer.partitions)


async def committed_offset(cluster: Cluster, group: str, topic: str, partition: int) -> int | None:
    [found] = await committed(cluster, group, (topic, partition))
    if found.HasField("error"):
        raise error_from_proto(found.error)
    return found.offset if found.HasField("offset") else None


@dataclass
class Outsider:
    """Commits outside of membership, as a program that assigns partitions to itself: it goes on
    from what it has fetched.
    """

    cluster: Cluster
    group: str
    tokens: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)

    async def commit(self, *offsets: tuple[str, int, int]) -> list[str]:
        """(topic, partition, offset) each; their error codes, "" where it was taken."""
        missing = [(topic, partition) for topic, partition, _ in offsets if (topic, partition) not in self.tokens]
        if missing:
            found = await committed(self.cluster, self.group, *missing)
            self.tokens |= {(part.topic, part.partition): (part.epoch, part.counter) for part in found}
        request = pb.CommitOffsetsRequest(group=self.group)
        for topic, partition, offset in offsets:
            epoch, counter = self.tokens[topic, partition]
            self.tokens[topic, partition] = epoch, counter + 1
            request.commits.add(topic=topic, partition=partition, offset=offset, epoch=epoch, counter=counter + 1)
        return await commit(self.cluster, request)


@dataclass
class Member:
    """A member of a group that does what a client does: tell what it owns, let go at once what it
    is to let go.
    """

    cluster: Cluster
    group: str
    name: str
    topics: Sequence[str]
    owned: dict[tuple[str, int], pb.GivenPartition] = field(default_factory=dict)
    epoch: int = 0
    counter: int = 0
    more: dict[str, str | int] = field(default_factory=dict)

    async def join(self) -> None:
        await self._beat(pb.JOIN)

    async def beat(self, max_wait_ms: int = 0) -> bool:
        """One heartbeat; True: what it holds has changed."""
        before = {key: given.epoch for key, given in self.owned.items()}
        await self._beat(pb.STAY, max_wait_ms)
        return before != {key: given.epoch for key, given in self.owned.items()}

    async def leave(self) -> None:
        await self._beat(pb.LEAVE)
        self.owned.clear()

    async def commit(self, topic: str, partition: int, offset: int) -> str:
        """Its error code; "" where it was taken."""
        self.counter += 1
        epoch = self.owned[topic, partition].epoch if (topic, partition) in self.owned else 1
        request = commit_of(self.group, (topic, partition, offset), member=self.name, epoch=epoch, counter=self.counter)
        return (await commit(self.cluster, request))[0]

    async def _beat(self, step: pb.GroupStep.ValueType, max_wait_ms: int = 0) -> None:
        request = pb.GroupHeartbeatRequest(
            group=self.group,
            member_id=self.name,
            step=step,
            owned=self.owned.values(),
            max_wait_ms=max_wait_ms,
            seen_epoch=0 if step == pb.JOIN else self.epoch,
        )
        if step == pb.JOIN:
            request.subscription.CopyFrom(
                pb.GroupSubscription(topics=self.topics, session_timeout_ms=10_000, **self.more)
            )  # type: ignore[arg-type]
        answer = await ask(self.cluster, lambda line: line.group_heartbeat(request))
        self.epoch = answer.group_epoch
        if step != pb.LEAVE:
            self.owned = {(given.topic, given.partition): given for given in answer.assigned}


async def settled(members: Sequence[Member], quiet_s: float = 3.0) -> None:
    """Until no heartbeat has changed anything for any member for a while."""
    loop = asyncio.get_running_loop()
    changed_s = loop.time()
    while loop.time() - changed_s < quiet_s:
        if any([await member.beat() for member in members]):
            changed_s = loop.time()
        await asyncio.sleep(0.1)


def error_of(call: Callable[[], Awaitable[object]]) -> Awaitable[str]:
    async def run() -> str:
        try:
            await call()
        except LedgerMQError as error:
            return error.code
        return ""

    return run()


__all__ = [
    "Member",
    "ask",
    "commit",
    "commit_of",
    "committed",
    "committed_offset",
    "coordinator_of",
    "error_of",
    "settled",
]
