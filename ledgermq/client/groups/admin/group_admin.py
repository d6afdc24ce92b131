"""Administration of consumer groups: list, describe, reset, delete.

Each call goes to the groups' coordinators.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Literal

from ledgermq.client.admin.brokers.reports import Brokers
from ledgermq.client.connection.connections import Connections
from ledgermq.client.context import ClientContext
from ledgermq.client.groups.admin.descriptions import (
    GroupDescription,
    GroupLag,
    GroupSummary,
    group_description,
    group_summary,
)
from ledgermq.client.groups.admin.resets import Bounds, Like, PlannedReset, Where, check_where, plan
from ledgermq.client.groups.lag import Lag, Lags
from ledgermq.client.groups.membership.coordinator import Coordinator
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.errors import (
    DeadlineExceeded,
    LedgerMQError,
    Unauthorized,
    Unavailable,
    UnknownGroup,
    UnknownTopic,
)
from ledgermq.offset_stores.cluster import commit_outside
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import Connection
from ledgermq.protocol.status import error_from_proto


async def listed_groups(connections: Connections, topic: str = "") -> list[tuple[pb.GroupInfo, bool]]:
    """Return all groups of the cluster, by name; with `topic`, those that have offsets of it, or a member which names
    it. True beside a group: its offsets of the topic are there; a broker of an earlier release lists all without.

    Raises Unauthorized (the caller may not describe the topic), Unavailable.
    """
    deadline = connections.deadline()
    found: list[tuple[pb.GroupInfo, bool]] = []
    partition, partitions = 0, 1
    while partition < partitions:
        request = pb.ListGroupsRequest(partition=partition, topic=topic)
        answer = await Coordinator(connections, f"(partition {partition})").ask(
            lambda at, request=request: at.list_groups(request),  # type: ignore[misc]
            deadline,
        )
        found += ((info, answer.of_topic) for info in answer.groups)
        partition, partitions = partition + 1, answer.partitions
    return sorted(found, key=lambda each: each[0].group)


class GroupAdmin:
    """Administration of consumer groups, as `client.groups`. Every call ends within the client's
    `timeout_s`.
    """

    def __init__(self, context: ClientContext) -> None:
        self._connections = context.connections
        self._sources = context.sources
        self._routing = context.routing
        self._offsets = context.offsets
        self._lags = Lags(context)
        self._brokers = Brokers(context)

    async def list(self) -> list[GroupSummary]:
        """Return all groups of the cluster, by name.

        Raises Unavailable when a coordinator cannot be reached.
        """
        return [group_summary(info) for info, _ in await listed_groups(self._connections)]

    async def describe(self, group: str) -> GroupDescription:
        """Return a group's members and committed offsets. Raises InvalidGroupName, UnknownGroup,
        Unavailable.
        """
        request = pb.DescribeGroupRequest(group=group)
        answer = await Coordinator(self._connections, group).ask(
            lambda at: at.describe_group(request), self._connections.deadline()
        )
        return group_description(answer)

    async def lags(
        self, *, topic: str = "", group: str = "", after: str = "", limit: int = 0
    ) -> builtins.list[GroupLag]:
        """Return how far all groups are behind, by group and topic.

        That is one call of each broker, however many groups there are. Coordinators answer by what they have seen a
        second ago, or ten times as long ago as a look takes. Of each broker 10,000 partitions count.

        `topic`, `group`: only these. `limit`: a page of so many groups, 0 for all; `after`: the group with which the
        page before ended. Raises Unavailable while a broker does not answer, and InvalidRequest if a broker of an
        earlier release runs, which it names.
        """
        request = pb.ListLagsRequest(topic=topic, group=group, after=after, limit=limit)
        answers = await self._brokers.each(self._connections.deadline(), lambda at: at.list_lags(request))
        found = {(info.group, info.topic): info for answer in answers for info in answer.lags}
        chosen = {*sorted({name for name, _ in found})[: limit or None]}
        return [
            GroupLag(info.group, info.topic, info.records, info.partitions, info.members, info.stuck_s)
            for (name, _), info in sorted(found.items())
            if name in chosen
        ]

    async def lag(self, group: str) -> dict[TopicPartition, Lag]:
        """Return the lag of every partition that has a committed offset, unless its topic was
        deleted since.
        """
        described = await self.describe(group)
        return await self.lag_of(described)

    async def lag_of(self, described: GroupDescription) -> dict[TopicPartition, Lag]:
        """Return the lag of a group that was described before."""
        deadline = self._connections.deadline()
        living = await self._topic_ids({at.topic for at in described.committed}, deadline)
        committed = {
            at: known.stored.offset
            for at, known in described.committed.items()
            if living.get(at.topic) == known.topic_id
        }
        return await self._lags.find(committed, deadline)

    async def plan_reset(
        self, group: str, where: Where, topics: Iterable[str] = (), partitions: Iterable[TopicPartition] = ()
    ) -> Sequence[PlannedReset]:
        """Return what `reset` would change, without changing it.

        `where`: see `ledgermq.client.groups.admin.resets`. Without `topics` and `partitions`, it
        applies to all partitions for which the group has committed offsets. Raises InvalidConfig,
        OffsetOutOfRange, UnknownTopic, UnknownGroup (if no topic or partition is given),
        Unavailable, InvalidRequest (no partition to reset).
        """
        check_where(where)
        deadline = self._connections.deadline()
        named_topics, named_partitions = list(topics), list(partitions)
        only_group_says = not named_topics and not named_partitions and not isinstance(where, Like)
        committed = await self._committed(group, must_exist=only_group_says)
        other = await self._committed(where.group, must_exist=True) if isinstance(where, Like) else {}
        wanted = await self._wanted(named_topics, named_partitions, [*committed, *other], deadline)
        bounds = await self._bounds(wanted, where, deadline)
        return plan(where, bounds, _of_living(committed, bounds), _of_living(other, bounds))

    async def reset(self, group: str, planned: Sequence[PlannedReset]) -> Mapping[TopicPartition, LedgerMQError]:
        """Set committed offsets as planned. Running members continue from the new offsets. A
        partition in which a transaction is open is retried, until the client's `timeout_s`.

        Return an error for each partition that failed; raises Unavailable, …
        """
        deadline = self._connections.deadline()
        backoff = self._connections.backoff()
        refused: dict[TopicPartition, LedgerMQError] = {}
        left = list(planned)
        while True:
            errors = await self._reset_once(group, left, deadline)
            refused |= {partition: error for partition, error in errors.items() if not error.retriable}
            later = {partition: error for partition, error in errors.items() if error.retriable}
            wait_s = backoff.next_s()
            if not later or asyncio.get_running_loop().time() + wait_s >= deadline:
                return refused | later
            left = [change for change in left if change.partition in later]
            await asyncio.sleep(wait_s)

    async def _reset_once(
        self, group: str, planned: Sequence[PlannedReset], deadline: float
    ) -> dict[TopicPartition, LedgerMQError]:
        resets = [
            pb.OffsetReset(
                topic=p.partition.topic, topic_id=p.topic_id, partition=p.partition.partition, offset=p.after
            )
            for p in planned
        ]
        request = pb.ResetOffsetsRequest(group=group, resets=resets, nonce=self._sources.new_id())
        answer = await Coordinator(self._connections, group).ask(lambda at: at.reset_offsets(request), deadline)
        pairs = zip(planned, answer.results, strict=True)
        return {
            change.partition: error_from_proto(result.error) for change, result in pairs if result.HasField("error")
        }

    async def commit(
        self, group: str, offsets: Mapping[TopicPartition, tuple[int, int]]
    ) -> Mapping[TopicPartition, LedgerMQError]:
        """Commit the progress of a job that is not a member of any group; `describe` shows it.
        `offsets`: (topic id, next offset to read) by partition.

        Return an error for each partition that was refused: CommitGoesBack, OffsetOutOfRange, UnknownTopic, …;
        StaleAssignment if another program commits for the group at the same time (commit again: the highest
        offset stays). Raises InvalidGroupName, GroupNotEmpty (only members may commit),
        Unavailable.
        """
        return await commit_outside(self._connections, group, offsets)

    async def delete(self, group: str) -> None:
        """Delete a group with all its committed offsets. Raises UnknownGroup, GroupNotEmpty,
        Unavailable.

        UnknownGroup also means: an attempt had no answer, and before the next one another program had begun a group
        of this name, or had used this one. That group stays as it is.
        """
        deadline = self._connections.deadline()
        epoch, lost = await self._epoch_of(group, deadline), False

        async def delete(at: Connection) -> None:
            nonlocal lost
            try:
                await at.delete_group(pb.DeleteGroupRequest(group=group, epoch=epoch))
            except (Unavailable, DeadlineExceeded):
                lost = True
                raise

        while True:
            try:
                await Coordinator(self._connections, group).ask(delete, deadline)
                return
            except UnknownGroup:
                try:
                    now = await self._epoch_of(group, deadline) if epoch else 0
                except UnknownGroup:
                    now = 0
                if lost and not now:
                    return  # an attempt without an answer has deleted it
                if lost or not now:
                    raise
                epoch = now  # it was used since it was looked at

    async def _epoch_of(self, group: str, deadline: float) -> int:
        """Return the epoch of the group that has the name now; 0 if the caller may delete it, and not see it. Raises
        InvalidGroupName, UnknownGroup, Unavailable.
        """
        request = pb.DescribeGroupRequest(group=group)
        try:
            answer = await Coordinator(self._connections, group).ask(lambda at: at.describe_group(request), deadline)
        except Unauthorized:
            return 0
        return answer.group.epoch

    async def _committed(self, group: str, *, must_exist: bool = False) -> dict[TopicPartition, tuple[int, int]]:
        """Return (topic id, offset) of each partition."""
        try:
            described = await self.describe(group)
        except UnknownGroup:
            if must_exist:
                raise
            return {}
        return {at: (known.topic_id, known.stored.offset) for at, known in described.committed.items()}

    async def _wanted(
        self,
        topics: Iterable[str],
        partitions: Iterable[TopicPartition],
        known: Iterable[TopicPartition],
        deadline: float,
    ) -> set[TopicPartition]:
        chosen = {TopicPartition(*partition) for partition in partitions}
        for topic in topics:
            route = await self._routing.refresh(topic, deadline)
            chosen |= {TopicPartition(topic, number) for number in range(route.partitions)}
        if chosen:
            return chosen
        living = await self._topic_ids({at.topic for at in known}, deadline)
        return {at for at in known if at.topic in living}

    async def _bounds(self, wanted: set[TopicPartition], where: Where, deadline: float) -> dict[TopicPartition, Bounds]:
        ids = {
            topic: (await self._routing.refresh(topic, deadline)).topic_id
            for topic in dict.fromkeys(at.topic for at in wanted)
        }

        async def find(at: Literal["earliest", "latest"] | datetime) -> dict[TopicPartition, int]:
            return await self._offsets.find(dict.fromkeys(wanted, at), deadline)

        starts, ends = await find("earliest"), await find("latest")
        times = await find(where) if isinstance(where, datetime) else {}
        return {at: Bounds(ids[at.topic], starts[at], ends[at], times.get(at)) for at in wanted}

    async def _topic_ids(self, topics: set[str], deadline: float) -> dict[str, int]:
        """Return the ids of the topics that still exist."""
        found: dict[str, int] = {}
        for topic in sorted(topics):
            try:
                found[topic] = (await self._routing.refresh(topic, deadline)).topic_id
            except UnknownTopic:
                continue
        return found


def _of_living(
    committed: Mapping[TopicPartition, tuple[int, int]], bounds: Mapping[TopicPartition, Bounds]
) -> dict[TopicPartition, int]:
    """Drop offsets that were committed for an earlier topic of the same name."""
    return {
        at: offset for at, (topic_id, offset) in committed.items() if at in bounds and bounds[at].topic_id == topic_id
    }
