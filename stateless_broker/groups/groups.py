"""Serve the groups of a cluster in one broker: find a group's coordinator, and route calls to it.

A group lives in one partition of `__consumer_offsets`, by its name; its coordinator is the owner of
that partition's bundle. Any other broker answers NotOwner and names that owner. Coordinators are
opened with their bundles, not by requests, so that sessions and retention times expire even without
requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from ledger.keys import PartitionId
from ledger.root.two_clocks import TwoClocks
from ledger.topics.catalog import Topic
from ledgermq.errors import LedgerMQError, NotOwner, UnknownGroup, UnknownPartition
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq.sources import Sources
from offsets.coordinator import GroupCoordinator
from offsets.limits import GroupLimits
from offsets.names import check_group_name
from stateless_broker.at_controller import AtController
from stateless_broker.bundle.owner import BundleOwner
from stateless_broker.controller import Controller
from stateless_broker.groups.ends import PartitionEnds
from stateless_broker.groups.offsets_topic import CatalogView, OffsetsTopic, partition_of
from stateless_broker.groups.partition import PartitionCoordinator
from stateless_broker.groups.term import CoordinatorTerm, TermParts
from stateless_broker.metadata import Metadata
from stateless_broker.ownership import Ownership
from stateless_broker.settings import BrokerSettings

A = TypeVar("A")


@dataclass(slots=True)
class GroupLag:
    """`records`: the number of records between the group's committed offsets and the ends of the
    topic's partitions.
    """

    group: str
    topic: str
    members: int
    records: int = 0


class Groups:
    """`address`: the address of this broker."""

    def __init__(self, address: str, topic: OffsetsTopic, ownership: Ownership, parts: TermParts) -> None:
        self._address = address
        self._topic = topic
        self._ownership = ownership
        self._parts = parts
        self._terms: dict[int, CoordinatorTerm] = {}
        self._closing: set[asyncio.Task[None]] = set()

    # The calls

    async def group_heartbeat(self, request: pb.GroupHeartbeatRequest) -> pb.GroupHeartbeatResponse:
        return await self._at_coordinator(request.group, lambda found: found.heartbeat(request))

    async def commit_offsets(self, request: pb.CommitOffsetsRequest) -> pb.CommitOffsetsResponse:
        if not request.member_id:  # the coordinator knows a member's partitions because it assigned them
            await self._topic.know((commit.topic, commit.partition) for commit in request.commits)
        return await self._at_coordinator(request.group, lambda found: found.commit(request))

    async def fetch_committed(self, request: pb.FetchCommittedRequest) -> pb.FetchCommittedResponse:
        await self._topic.know((asked.topic, asked.partition) for asked in request.partitions)
        return await self._at_coordinator(request.group, lambda found: found.committed(request))

    async def reset_offsets(self, request: pb.ResetOffsetsRequest) -> pb.ResetOffsetsResponse:
        await self._topic.know((reset.topic, reset.partition) for reset in request.resets)
        return await self._at_coordinator(request.group, lambda found: found.reset(request))

    async def describe_group(self, request: pb.DescribeGroupRequest) -> pb.DescribeGroupResponse:
        group = await self._at_coordinator(request.group, lambda found: found.describe(request.group), must_exist=True)
        return pb.DescribeGroupResponse(group=group, coordinator=self._address)

    async def delete_group(self, request: pb.DeleteGroupRequest) -> pb.DeleteGroupResponse:
        return await self._at_coordinator(request.group, lambda found: found.delete(request.group), must_exist=True)

    async def list_groups(self, request: pb.ListGroupsRequest) -> pb.ListGroupsResponse:
        topic = await self._topic.find()
        if topic is None:
            return pb.ListGroupsResponse()
        if request.partition >= topic.partitions:
            raise UnknownPartition(f"{topic.name} has partitions 0 to {topic.partitions - 1}, not {request.partition}")
        groups = await self._at_partition(topic, request.partition, lambda found: found.groups())
        return pb.ListGroupsResponse(groups=groups, partitions=topic.partitions)

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
        return await self._at_partition(topic, partition_of(group, topic.partitions), call)

    async def _at_partition(
        self, topic: Topic, partition: int, call: Callable[[PartitionCoordinator], Awaitable[A]]
    ) -> A:
        bundle = topic.bundles[partition]
        owner = await self._ownership.owner(bundle)
        try:
            return await call(await self._term(owner, topic).coordinator(partition))
        except NotOwner as error:
            if error.owner or error.retry_after_ms:
                raise
            raise await self._ownership.redirect(bundle) from error

    async def lags(self, partitions_max: int) -> Sequence[GroupLag]:
        """Return how many records the groups that this broker coordinates are behind, by topic.
        Sends requests to other brokers, never to the store.

        At most `partitions_max` committed partitions count. Removed topics, and partitions whose
        owner does not answer, are left out.
        """
        coordinators = [found for term in self._terms.values() for found in term.ready.values()]
        entries = list(islice((entry for found in coordinators for entry in found.committed_now()), partitions_max))
        ends = await self._parts.ends.known([*{wanted for _, wanted, _ in entries}])
        rows: dict[tuple[str, str], GroupLag] = {}
        for group, wanted, offset in entries:
            end = ends.get(PartitionId(wanted.topic_id, wanted.partition))
            if end is not None:
                row = rows.setdefault(
                    (group.name, wanted.topic), GroupLag(group.name, wanted.topic, len(group.members))
                )
                row.records += max(0, end - offset)
        return [*rows.values()]

    # The terms

    def ownership_changed(self) -> None:
        """Open the terms of bundles that are owned now, and end all others."""
        topic = self._topic.known
        opened = self._ownership.opened
        for bundle, term in list(self._terms.items()):
            if opened.get(bundle) is not term.owner:
                self._end(bundle)
            else:
                term.resume()
        if topic is not None:
            for bundle in set(topic.bundles) & opened.keys():
                self._term(opened[bundle], topic)

    def catalog_changed(self) -> None:
        self.ownership_changed()  # the topic itself may be new
        for term in self._terms.values():
            term.tick()

    def refused(self) -> dict[int, LedgerMQError]:
        """Return the partitions of `__consumer_offsets` that this broker coordinates and cannot
        read, with the reason; their groups are not served.
        """
        return {partition: error for term in self._terms.values() for partition, error in sorted(term.refused.items())}

    async def close(self) -> None:
        """Close all terms; leave no task behind."""
        for bundle in list(self._terms):
            self._end(bundle)
        await self._topic.close()
        if self._closing:
            await asyncio.wait(self._closing)

    def _term(self, owner: BundleOwner, topic: Topic) -> CoordinatorTerm:
        term = self._terms.get(owner.bundle)
        if term is None or term.owner is not owner:
            self._end(owner.bundle)
            term = self._terms[owner.bundle] = CoordinatorTerm(owner, topic, self._parts)
        return term

    def _end(self, bundle: int) -> None:
        term = self._terms.pop(bundle, None)
        if term is not None:
            closing = asyncio.create_task(term.close(), name=f"close groups of bundle {bundle}")
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)


def open_groups(
    address: str,
    settings: BrokerSettings,
    ownership: Ownership,
    metadata: Metadata,
    controller: Controller,
    at_controller: AtController,
    sources: Sources,
    clocks: TwoClocks,
    broker: Callable[[str], BrokerApi],
    rack_of: Callable[[int], str],
) -> Groups:
    """Compose the groups of a broker.

    `broker(address)`: the broker at this address, which may be this one. `rack_of(bundle)`: the
    rack of its owner, "" if it has none.
    """
    limits = GroupLimits(
        members_max=settings.group_members_max,
        session_timeout_ms=settings.group_session_timeout_ms,
        retention_ms=settings.offsets_retention_ms,
    )

    def asked(bundle: int, named: str) -> tuple[str, BrokerApi]:
        whom = named or ownership.address_of(bundle) or address
        return whom, broker(whom)

    parts = TermParts(
        core=lambda: GroupCoordinator(limits, CatalogView(lambda: metadata.catalog, rack_of)),
        ends=PartitionEnds(lambda: metadata.catalog, asked),
        sources=sources,
        clocks=clocks,
        damaged_retry_s=lambda: ownership.times.damaged_retry_s,
    )
    return Groups(address, OffsetsTopic(metadata, controller, at_controller), ownership, parts)
