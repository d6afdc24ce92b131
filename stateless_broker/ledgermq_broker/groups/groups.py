"""Serve the groups of a cluster in one broker: find a group's coordinator, and route calls to it.

A group lives in one partition of `__consumer_offsets`, by its name; its coordinator is the owner of
that partition's bundle (`ledgermq_broker.internal.terms`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TypeVar

from ledgermq.errors import NotOwner, Unavailable, UnknownGroup, UnknownPartition
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.naming.names import DEAD_LETTER_SUFFIX, RETRY_SUFFIX
from ledgermq.runtime.tasks import end, retrieve_error, shared
from ledgermq_broker.cluster.heartbeat import CLASSIC_GROUPS, KAFKA_MEMBERS
from ledgermq_broker.groups.ends import PartitionEnds
from ledgermq_broker.groups.lags import PARTITIONS_MAX, GroupLag, StuckOffsets, lag_infos, lag_page
from ledgermq_broker.groups.offsets_topic import CatalogView, partition_of
from ledgermq_broker.groups.partition import PartitionCoordinator
from ledgermq_broker.internal.core import CoreKind
from ledgermq_broker.internal.feature import BrokerParts, Feature, Gauge, Serving, refused
from ledgermq_broker.internal.terms import InternalTerms
from ledgermq_broker.internal.topic import InternalTopic
from ledgermq_broker.metadata.followed import Metadata
from ledgermq_broker.metadata.topic_changes import TopicSpec
from ledgermq_ledger import keys
from ledgermq_ledger.keys import PartitionId
from ledgermq_offsets.classic.both_kinds import BothKinds
from ledgermq_offsets.classic.values import ClassicLimits
from ledgermq_offsets.limits import GroupLimits
from ledgermq_offsets.names import check_group_name
from ledgermq_offsets.served_offsets import EndWanted
from ledgermq_offsets.state.group import Group

A = TypeVar("A")
R = TypeVar(
    "R",
    pb.CommitOffsetsResponse,
    pb.CommitForGenerationResponse,
    pb.ResetOffsetsResponse,
    pb.StageOffsetsResponse,
)

LAGS_AGE_S = 1.0
"""Requests within this time get the same lags."""
LAGS_PAUSES = 10
"""So many times as long as a look at lags takes, no other one begins: requests cannot make it a load."""

ENTRIES_A_TURN = 1000
"""Committed offsets that a look reads before other work has its turn: about two milliseconds."""

GroupKind = CoreKind[BothKinds, PartitionCoordinator]


@dataclass(frozen=True, slots=True)
class GroupFailures:
    """Numbers of records that were ever put into the group's retry topic and its dead-letter topic."""

    group: str
    retries: int
    dead_letters: int


class Groups(Serving[PartitionCoordinator]):
    """`address`: the address of this broker. `topic`: `__consumer_offsets`. `check_classic()` raises Unavailable while
    a broker is present that cannot read records of classic groups, `check_kafka()` while one is that does not know
    members which speak the Kafka protocol.
    """

    def __init__(
        self,
        address: str,
        topic: InternalTopic,
        metadata: Metadata,
        terms: InternalTerms,
        kind: GroupKind,
        ends: PartitionEnds,
        check_classic: Callable[[], None] = lambda: None,
        check_kafka: Callable[[], None] = lambda: None,
    ) -> None:
        self._check_classic = check_classic
        self._check_kafka = check_kafka
        self._address = address
        super().__init__(topic, terms, kind)
        self._metadata = metadata
        self._ends = ends
        self._on_busy: Callable[[int], None] = _ignore
        self._stuck = StuckOffsets()
        self._look: asyncio.Task[Sequence[GroupLag]] | None = None
        self._looked_s = float("-inf")
        self._look_took_s = 0.0

    def when_busy(self, call: Callable[[int], None]) -> None:
        """Call this with the bundle of a group when an answer has to wait for the end of a
        transaction.
        """
        self._on_busy = call

    # The calls

    async def group_heartbeat(self, request: pb.GroupHeartbeatRequest) -> pb.GroupHeartbeatResponse:
        if request.HasField("kafka") and request.step == pb.JOIN:
            self._check_kafka()
        return await self._at_coordinator(request.group, lambda found: found.heartbeat(request))

    async def commit_offsets(self, request: pb.CommitOffsetsRequest) -> pb.CommitOffsetsResponse:
        if not request.member_id:  # the coordinator knows a member's partitions because it assigned them
            await self._metadata.know((commit.topic, commit.partition) for commit in request.commits)
        return await self._at_coordinator(request.group, lambda found: self._watched(found, found.commit(request)))

    async def fetch_committed(self, request: pb.FetchCommittedRequest) -> pb.FetchCommittedResponse:
        await self._metadata.know((asked.topic, asked.partition) for asked in request.partitions)

        async def read(found: PartitionCoordinator) -> pb.FetchCommittedResponse:
            answer = await found.committed(request)
            self._note_busy(found, (part.error.code for part in answer.partitions))
            return answer

        return await self._at_coordinator(request.group, read)

    async def reset_offsets(self, request: pb.ResetOffsetsRequest) -> pb.ResetOffsetsResponse:
        await self._metadata.know((reset.topic, reset.partition) for reset in request.resets)
        return await self._at_coordinator(request.group, lambda found: self._watched(found, found.reset(request)))

    async def stage_in_transaction(
        self, request: pb.StageOffsetsRequest, check_open: Callable[[int], None]
    ) -> pb.StageOffsetsResponse:
        """Stage offsets of a transaction. `check_open(bundle)` raises TransactionAborted if the
        transaction is over in that bundle.
        """
        await self._metadata.know((commit.topic, commit.partition) for commit in request.commits)
        return await self._at_coordinator(
            request.group,
            lambda found: self._watched(found, found.stage_offsets(request, partial(check_open, found.bundle))),
        )

    async def bundle_of(self, group: str) -> int:
        """Return the bundle in which a group lives."""
        topic = await self._topic.find_or_create()
        return topic.bundles[partition_of(check_group_name(group), topic.partitions)]

    async def describe_group(self, request: pb.DescribeGroupRequest) -> pb.DescribeGroupResponse:
        group = await self._at_coordinator(request.group, lambda found: found.describe(request.group), must_exist=True)
        return pb.DescribeGroupResponse(group=group, coordinator=self._address)

    async def delete_group(self, request: pb.DeleteGroupRequest) -> pb.DeleteGroupResponse:
        return await self._at_coordinator(
            request.group, lambda found: found.delete(request.group, request.epoch), must_exist=True
        )

    # Members that use the Kafka protocol

    async def find_coordinator(self, request: pb.FindCoordinatorRequest) -> pb.FindCoordinatorResponse:
        """Return the address of a group's coordinator, once it serves groups. Raises Unavailable."""

        async def here(found: PartitionCoordinator) -> str:
            return self._address

        try:
            address = await self._at_coordinator(request.group, here)
        except NotOwner as error:
            if not error.owner:
                raise
            address = error.owner
        return pb.FindCoordinatorResponse(address=address)

    async def join_classic_group(self, request: pb.JoinClassicGroupRequest) -> pb.JoinClassicGroupResponse:
        self._check_classic()
        return await self._at_coordinator(request.group, lambda found: found.classic.join(request))

    async def sync_classic_group(self, request: pb.SyncClassicGroupRequest) -> pb.SyncClassicGroupResponse:
        return await self._at_coordinator(request.group, lambda found: found.classic.sync(request))

    async def classic_heartbeat(self, request: pb.ClassicHeartbeatRequest) -> pb.ClassicHeartbeatResponse:
        return await self._at_coordinator(request.group, lambda found: found.classic.heartbeat(request))

    async def leave_classic_group(self, request: pb.LeaveClassicGroupRequest) -> pb.LeaveClassicGroupResponse:
        return await self._at_coordinator(request.group, lambda found: found.classic.leave(request))

    async def commit_for_generation(self, request: pb.CommitForGenerationRequest) -> pb.CommitForGenerationResponse:
        await self._metadata.know((commit.topic, commit.partition) for commit in request.commits)
        return await self._at_coordinator(
            request.group, lambda found: self._watched(found, found.classic.commit(request))
        )

    async def list_groups(self, request: pb.ListGroupsRequest) -> pb.ListGroupsResponse:
        topic = await self._topic.find()
        if topic is None:
            return pb.ListGroupsResponse()
        if request.partition >= topic.partitions:
            raise UnknownPartition(f"{topic.name} has partitions 0 to {topic.partitions - 1}, not {request.partition}")
        groups = await self._terms.call(self._kind, topic, request.partition, lambda at: at.groups(request.topic))
        return pb.ListGroupsResponse(groups=groups, partitions=topic.partitions, of_topic=bool(request.topic))

    async def _watched(self, found: PartitionCoordinator, call: Awaitable[R]) -> R:
        answer = await call
        self._note_busy(found, (result.error.code for result in answer.results))
        return answer

    def _note_busy(self, found: PartitionCoordinator, codes: Iterable[str]) -> None:
        """Note whether a partition waits for a transaction; codes for other reasons do no harm."""
        if Unavailable.code in codes:
            self._on_busy(found.bundle)

    async def _at_coordinator(
        self, group: str, call: Callable[[PartitionCoordinator], Awaitable[A]], *, must_exist: bool = False
    ) -> A:
        """Return the group's coordinator. `must_exist`: if the topic does not exist, neither does
        the group, and neither is created.
        """
        check_group_name(group)
        topic = await self._topic.find() if must_exist else await self._topic.find_or_create()
        if topic is None:
            raise UnknownGroup(f"there is no group {group!r}")
        return await self._terms.call(self._kind, topic, partition_of(group, topic.partitions), call)

    async def lags(self, partitions_max: int) -> Sequence[GroupLag]:
        """Return how many records the groups that this broker coordinates are behind, by topic.
        Sends requests to other brokers, never to the store.

        At most `partitions_max` committed partitions count. Removed topics, and partitions whose
        owner does not answer, are left out.
        """
        entries: list[tuple[Group, EndWanted, int]] = []
        for coordinator in self._terms.ready(self._kind):
            before = len(entries)
            entries += islice(coordinator.committed_now(), partitions_max - before)
            if len(entries) // ENTRIES_A_TURN > before // ENTRIES_A_TURN:
                await asyncio.sleep(0)
        ends = await self._ends.known([*{wanted for _, wanted, _ in entries}])
        rows: dict[tuple[str, str], GroupLag] = {}
        for at, (group, wanted, offset) in enumerate(entries, 1):
            if at % ENTRIES_A_TURN == 0:
                await asyncio.sleep(0)
            end = ends.get(PartitionId(wanted.topic_id, wanted.partition))
            if end is not None:
                row = rows.setdefault(
                    (group.name, wanted.topic), GroupLag(group.name, wanted.topic, group.member_count)
                )
                row.partitions += 1
                row.records += max(0, end - offset)
                if end > offset:
                    row.behind[wanted.partition] = offset
        self._stuck.note(rows.values(), asyncio.get_running_loop().time())
        return [*rows.values()]

    async def list_lags(self, request: pb.ListLagsRequest) -> pb.ListLagsResponse:
        """Return how far the groups that this broker coordinates are behind, by its last look, which is recent.

        Callers share a look, and it goes on when they leave. Otherwise requests that are cancelled early would begin
        one look after the other, and no pause would follow.
        """
        pause_s = max(LAGS_AGE_S, LAGS_PAUSES * self._look_took_s)
        is_due = asyncio.get_running_loop().time() - self._looked_s >= pause_s
        if self._look is None or (self._look.done() and (is_due or self._look.cancelled() or self._look.exception())):
            self._look = asyncio.create_task(self._look_at_lags(), name="look at lags")
            self._look.add_done_callback(retrieve_error)
        rows = await shared(self._look, "a look at lags")
        return lag_page(lag_infos(rows, request), request.limit)

    async def _look_at_lags(self) -> Sequence[GroupLag]:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        found = await self.lags(PARTITIONS_MAX)
        self._looked_s = loop.time()
        self._look_took_s = self._looked_s - began_s
        return found

    async def close(self) -> None:
        await end(self._look)
        await super().close()

    async def slowest_commits(self, request: pb.SlowestCommitsRequest) -> pb.SlowestCommitsResponse:
        """Return the lowest offset that a group has committed in each partition of these topics, by the groups
        that this broker coordinates.
        """
        wanted, slowest = frozenset(request.topic_ids), dict[PartitionId, tuple[int, str]]()
        coordinators = self._terms.ready(self._kind)
        for found in coordinators:
            for key, offset, group in found.commits_in(wanted):
                slowest[key] = min((offset, group), slowest.get(key, (offset, group)))
        return pb.SlowestCommitsResponse(
            commits=[
                pb.SlowestCommit(topic_id=key.topic_id, partition=key.partition, offset=offset, group=group)
                for key, (offset, group) in sorted(slowest.items())
            ],
            coordinated=sorted(found.number for found in coordinators),
        )

    async def failures(self, groups_max: int) -> Sequence[GroupFailures]:
        """Return how many messages the groups that this broker coordinates have moved to their retry and
        dead-letter topics; of at most `groups_max` groups. Sends requests to other brokers, never to the
        store. A group is left out while an end is not known.
        """
        coordinators = self._terms.ready(self._kind)
        names = {group.name for found in coordinators for group, _, _ in found.committed_now()}
        wanted = {
            name: (self._partitions(name + RETRY_SUFFIX), self._partitions(name + DEAD_LETTER_SUFFIX)) for name in names
        }
        chosen = [name for name in sorted(names) if any(wanted[name])][:groups_max]
        known = await self._ends.known([at for name in chosen for each in wanted[name] for at in each])
        found = []
        for name in chosen:
            ends = [[known.get(PartitionId(at.topic_id, at.partition), -1) for at in each] for each in wanted[name]]
            if all(end >= 0 for each in ends for end in each):
                found.append(GroupFailures(name, *map(sum, ends)))
        return found

    def _partitions(self, topic: str) -> Sequence[EndWanted]:
        """Return the partitions of a topic; none if it does not exist."""
        found = self._metadata.catalog.topics_by_name.get(topic)
        if found is None or not found.living:
            return ()
        return [EndWanted(topic, found.id, number) for number in range(found.partitions)]


def _ignore(bundle: int) -> None:
    """Used while no transactions are served."""


def open_groups(parts: BrokerParts) -> Groups:
    """Build the groups of a broker, and add them to its internal topics."""
    metadata, settings = parts.metadata, parts.settings()
    limits = replace(
        parts.limits_of(GroupLimits),
        members_max=settings.group_members_max,
        session_timeout_ms=settings.group_session_timeout_ms,
        retention_ms=settings.offsets_retention_ms,
    )
    classic = replace(parts.limits_of(ClassicLimits), members_max=settings.group_members_max)
    ends = PartitionEnds(lambda: metadata.catalog, parts.asked)

    def new_id(name: str) -> str:
        return f"{name[:100]}-{parts.context.sources.random.getrandbits(128):032x}"

    kind = CoreKind(
        keys.OFFSETS_TOPIC,
        lambda partition: BothKinds(limits, CatalogView(lambda: metadata.catalog, parts.rack_of), classic, new_id),
        lambda core, opening: PartitionCoordinator(core, opening, parts.clocks, ends),
    )
    parts.terms.add(kind)
    checks = (partial(parts.controller.require, feature) for feature in (CLASSIC_GROUPS, KAFKA_MEMBERS))
    return Groups(parts.address, parts.topic(keys.OFFSETS_TOPIC), metadata, parts.terms, kind, ends, *checks)


def gauges(groups: Groups | None) -> Iterator[Gauge]:
    """Yield the values for metrics that are read at each scrape. The lag of groups is sampled instead."""
    yield refused(
        "ledgermq_refused_group_partitions",
        "Partitions of __consumer_offsets whose records cannot be read: their groups are not served; the label"
        " says why",
        groups,
    )


GROUPS = Feature(
    "groups",
    (TopicSpec(keys.OFFSETS_TOPIC, spread=lambda limits: limits.offsets_partitions),),
    open_groups,
    gauges=gauges,
)
"""Groups are spread over the partitions by their names, so the number of these never changes."""
