"""Queue groups without a member: list, describe, reset, delete, lease and answer. Each call goes to the owners of the
partitions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from ledgermq.client.admin.topics import Admin
from ledgermq.client.connection.coordinator import Coordinator
from ledgermq.client.connection.routing import AtOwners
from ledgermq.client.consuming.start import Start
from ledgermq.client.context import ClientContext
from ledgermq.client.groups.assignment import check_group
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.queues.leases.answering import Answering, LeaseAnswer, LeaseResult
from ledgermq.client.queues.leases.leasing import LeasedMessage, QueueLeasing
from ledgermq.client.settings.values import QueueSettings
from ledgermq.errors import InvalidRequest, LedgerMQError, Unauthorized, UnknownGroup
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq.protocol.status import error_from_proto
from ledgermq.runtime.tasks import all_of

CALLS_AT_ONCE = 8

Where = int | datetime | Literal["earliest", "latest"]


@dataclass(frozen=True, slots=True)
class QueueMember:
    """`leased`: messages that it has. `lease_s`: until the first of their leases ends."""

    member_id: str
    leased: int
    lease_s: float


@dataclass(frozen=True, slots=True)
class QueuePartition:
    """A partition of a queue group, at this moment. All messages below `start` are finished, and none from
    `end` on was delivered. `waiting`: messages that were given back with a delay. `finished`: between `start`
    and `end`. `backlog`: messages that are not finished.
    """

    partition: TopicPartition
    start: int
    end: int
    high_watermark: int
    leased: int
    waiting: int
    finished: int
    members: tuple[QueueMember, ...] = ()

    @property
    def backlog(self) -> int:
        return max(0, self.high_watermark - self.start - self.finished)


@dataclass(frozen=True, slots=True)
class QueueDescription:
    """A queue group. `partitions`: sorted by topic and number."""

    group: str
    partitions: tuple[QueuePartition, ...]

    @property
    def backlog(self) -> int:
        return sum(each.backlog for each in self.partitions)

    @property
    def leased(self) -> int:
        return sum(each.leased for each in self.partitions)


class QueueAdmin:
    """Administration of queue groups, as `client.queues`; leases and answers of programs that keep no member. Every
    call ends within the client's `timeout_s`, and `lease` within its `wait` besides.
    """

    def __init__(self, context: ClientContext, admin: Admin, leasing: QueueLeasing) -> None:
        self._context = context
        self._admin = admin
        self._leasing = leasing
        self._answering = Answering(context, admin)

    async def lease(
        self,
        topics: str | Iterable[str],
        group: str,
        *,
        max_records: int = 50,
        wait: float = 3.0,
        start: Start = "earliest",
        lease_s: float = 30.0,
        attempts_max: int = 5,
        dead_letters: bool = True,
        filter: str = "",  # noqa: A002  the name of the setting
        caller: str = "",
    ) -> Sequence[LeasedMessage]:
        """Lease messages of a queue group, without a member that stays; none if there are none within `wait` seconds.

            for leased in await client.queues.lease("jobs", "workers", max_records=50):
                work(leased.message)
                await client.queues.answer([LeaseAnswer(leased.handle)])

        Each message comes with a handle, by which any process may answer (`answer`) as long as its lease lasts. What is
        not answered comes again. `start` and the settings are those of `client.queue`; all callers of a group need the
        same `filter`. `caller`: a name that `answer` has to give, too; "": any.

        Raises FilterConflict if the group is read with another filter; UnknownTopic, InvalidGroupName, InvalidRequest,
        InvalidConfig, Unauthorized, CorruptFrame, DataDamaged, Unavailable.
        """
        settings = QueueSettings(lease_s=lease_s, attempts_max=attempts_max, dead_letters=dead_letters, filter=filter)
        return await self._leasing.lease(topics, group, max_records, float(wait), start, settings, caller)

    async def answer(self, answers: Iterable[LeaseAnswer], *, caller: str = "") -> Sequence[LeaseResult]:
        """Say what became of leased messages; return for each answer, in order, whether it counts. At most 2,000.

        An answer that came too late does not count, and is no error. `caller`: refuse handles that were leased for
        another one; "": any. Raises InvalidRequest, before anything is sent, if a handle or an answer is none. Errors
        of brokers are in the results: the other answers count.
        """
        return await self._answering.answer(answers, caller)

    async def list(self) -> Sequence[QueueDescription]:
        """Return all queue groups of the cluster, by name, without their members.

        Raises Unavailable if a bundle does not answer.
        """
        return await self._found(pb.ListSharesRequest())

    async def describe(self, group: str) -> QueueDescription:
        """Return a group's partitions, with the members that have messages. Raises InvalidGroupName,
        UnknownGroup, Unavailable.
        """
        found = await self._found(pb.ListSharesRequest(group=check_group(group), members=True))
        if not found:
            raise UnknownGroup(f"no queue group {group!r} has begun: `ledgermq queue list` shows those that have")
        return found[0]

    async def reset(
        self, group: str, topic: str, where: Where, partitions: Iterable[int] | None = None
    ) -> Mapping[TopicPartition, int]:
        """Let a group begin again at an offset, a time, or an end of the topic; return the offsets. All leases
        end: messages from there on come again, those before it do not. Members go on.

        `partitions`: all, if None. An offset below the log start becomes the log start. Raises
        OffsetOutOfRange (above the end), UnknownTopic, UnknownPartition, InvalidGroupName, Unavailable.
        """
        check_group(group)
        wanted = await self._partitions(topic, partitions)
        if isinstance(where, int):
            offsets = dict.fromkeys(wanted, where)
        else:
            offsets = await self._context.offsets.find(
                dict.fromkeys(wanted, where), self._context.connections.deadline()
            )
        return await self._reset(group, topic, offsets)

    async def delete(self, group: str, topic: str, partitions: Iterable[int] | None = None) -> None:
        """Forget a group in a topic: a member that comes later begins again, by its `start`.

        Raises UnknownTopic, UnknownPartition, InvalidGroupName, Unavailable.
        """
        check_group(group)
        await self._reset(group, topic, dict.fromkeys(await self._partitions(topic, partitions), None))

    async def _partitions(self, topic: str, partitions: Iterable[int] | None) -> Sequence[TopicPartition]:
        route = await self._context.routing.refresh(topic, self._context.connections.deadline())
        chosen = range(route.partitions) if partitions is None else sorted(set(partitions))
        if not chosen:
            raise InvalidRequest("no partition is named")
        return [TopicPartition(topic, partition) for partition in chosen]

    async def _reset(
        self, group: str, topic: str, offsets: Mapping[TopicPartition, int | None]
    ) -> Mapping[TopicPartition, int]:
        nonce, begun = self._context.sources.new_id(), await self._begun(group, topic)

        async def ask(at: BrokerApi, partitions: Sequence[TopicPartition]) -> Sequence[int | LedgerMQError]:
            request = pb.ResetSharesRequest(group=group, nonce=nonce)
            for each in partitions:
                wanted = request.resets.add(topic=each.topic, partition=each.partition, begun=begun.get(each, b""))
                if (offset := offsets[each]) is not None:
                    wanted.offset = offset
            found = await at.reset_shares(request)
            return [error_from_proto(each.error) if each.HasField("error") else each.offset for each in found.results]

        connections = self._context.connections
        return await AtOwners(connections, self._context.routing, ask).find([*offsets], connections.deadline())

    async def _begun(self, group: str, topic: str) -> Mapping[TopicPartition, bytes]:
        """Return the names of what has begun, so that no attempt changes a later group; nothing if the caller may
        change it, and not see it. Raises UnknownTopic, Unavailable.
        """
        try:
            described = await self._admin.describe_topic(topic)
        except Unauthorized:
            return {}
        found = await self._infos(pb.ListSharesRequest(group=group), {each.bundle for each in described.partitions})
        return {TopicPartition(topic, each.partition): each.begun for each in found if each.topic == topic}

    async def _found(self, request: pb.ListSharesRequest) -> Sequence[QueueDescription]:
        bundles = {each.bundle for each in (await self._admin.describe_cluster()).bundles if each.bundle}
        groups: dict[str, list[QueuePartition]] = {}
        for info in await self._infos(request, bundles):
            if info.topic:
                groups.setdefault(info.group, []).append(_partition_of(info))
        return [
            QueueDescription(group, tuple(sorted(groups[group], key=lambda each: each.partition)))
            for group in sorted(groups)
        ]

    async def _infos(self, request: pb.ListSharesRequest, bundles: Collection[int]) -> Sequence[pb.ShareInfo]:
        deadline = self._context.connections.deadline()

        async def ask(bundle: int) -> pb.ListSharesResponse:
            wanted = pb.ListSharesRequest()
            wanted.CopyFrom(request)
            wanted.bundle = bundle
            owner = Coordinator(self._context.connections, f"bundle {bundle}")
            return await owner.ask(lambda at: at.list_shares(wanted), deadline)

        return [info for answer in await all_of(map(ask, sorted(bundles)), CALLS_AT_ONCE) for info in answer.shares]


def _partition_of(info: pb.ShareInfo) -> QueuePartition:
    return QueuePartition(
        TopicPartition(info.topic, info.partition),
        info.start,
        info.end,
        info.high_watermark,
        info.leased,
        info.waiting,
        info.finished,
        tuple(QueueMember(each.member_id, each.leased, each.lease_ms / 1000) for each in info.members),
    )
