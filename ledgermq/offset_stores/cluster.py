"""The default offset store: the cluster itself.

The group's coordinator keeps committed offsets in an internal topic, and fences by epoch. Members
commit through `TopicOffsetStore`. A job without members commits by `commit_outside`: it assigns its
partitions itself, as a Spark query does, and commits only so that its progress can be seen
(`ledgermq group describe`). One program commits for such a group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from ledgermq.client.connection.connections import Connections
from ledgermq.client.groups.membership.coordinator import Coordinator
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.errors import LedgerMQError, Unavailable
from ledgermq.offset_stores.contract import GivenPartition, LoadedInPart, OffsetEntry, StoredOffset
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.status import error_from_proto

PARTITIONS_PER_CALL_MAX = 1000
"""Largest number of partitions in one request of `commit_outside`."""


class TopicOffsetStore:
    """Loads and commits offsets at the group's coordinator.

    `request_timeout_s` bounds one call, retries included.
    """

    def __init__(
        self, coordinator: Coordinator, connections: Connections, member_id: str, request_timeout_s: float
    ) -> None:
        self._coordinator = coordinator
        self._connections = connections
        self._member_id = member_id
        self._request_timeout_s = request_timeout_s

    async def load(self, group: str, partitions: Sequence[GivenPartition]) -> dict[TopicPartition, StoredOffset]:
        asked = [
            pb.TopicPartition(topic=given.partition.topic, partition=given.partition.partition) for given in partitions
        ]
        request = pb.FetchCommittedRequest(group=group, partitions=asked)
        deadline = self._connections.deadline(self._request_timeout_s)
        answer = await self._coordinator.ask(lambda at: at.fetch_committed(request), deadline)
        if len(answer.partitions) != len(partitions):
            raise Unavailable(f"the coordinator answered for {len(answer.partitions)} of {len(partitions)} partitions")
        found: dict[TopicPartition, StoredOffset] = {}
        busy: dict[TopicPartition, LedgerMQError] = {}
        for given, stored in zip(partitions, answer.partitions, strict=True):
            if stored.HasField("error"):
                error = error_from_proto(stored.error)
                if not isinstance(error, Unavailable):
                    raise error
                busy[given.partition] = error  # by an open transaction, for example
            elif stored.HasField("offset") and stored.topic_id == given.topic_id:
                found[given.partition] = StoredOffset(stored.offset, stored.metadata, stored.commit_ms)
        for error in busy.values():
            raise LoadedInPart(error, found, busy.keys())
        return found

    async def commit(self, group: str, entries: Sequence[OffsetEntry]) -> Mapping[TopicPartition, LedgerMQError]:
        """Commit, and retry the partitions whose error may pass (their end is unknown at present,
        for example) until the time limit.
        """
        deadline = self._connections.deadline(self._request_timeout_s)
        backoff = self._connections.backoff()
        refused: dict[TopicPartition, LedgerMQError] = {}
        left = list(entries)
        while True:
            errors = await self._commit_once(group, left, deadline)
            refused |= {partition: error for partition, error in errors.items() if not error.retriable}
            later = {partition: error for partition, error in errors.items() if error.retriable}
            wait_s = backoff.next_s()
            if not later or asyncio.get_running_loop().time() + wait_s >= deadline:
                return refused | later
            left = [entry for entry in left if entry.given.partition in later]
            await asyncio.sleep(wait_s)

    async def _commit_once(
        self, group: str, entries: Sequence[OffsetEntry], deadline: float
    ) -> dict[TopicPartition, LedgerMQError]:
        request = pb.CommitOffsetsRequest(
            group=group, member_id=self._member_id, commits=[entry.to_proto() for entry in entries]
        )
        answer = await self._coordinator.ask(lambda at: at.commit_offsets(request), deadline)
        if len(answer.results) != len(entries):
            raise Unavailable(f"the coordinator answered for {len(answer.results)} of {len(entries)} commits")
        pairs = zip(entries, answer.results, strict=True)
        return {
            entry.given.partition: error_from_proto(result.error) for entry, result in pairs if result.HasField("error")
        }


async def commit_outside(
    connections: Connections, group: str, offsets: Mapping[TopicPartition, tuple[int, int]]
) -> Mapping[TopicPartition, LedgerMQError]:
    """Commit for a group that has no members, and return an error for each partition that was
    refused: CommitGoesBack, OffsetOutOfRange, UnknownTopic; StaleAssignment if another program commits for
    the group at the same time: commit again, the highest offset stays; …

    `offsets`: by partition the topic's id and the next offset to read. Raises InvalidGroupName,
    GroupNotEmpty (a group with members takes commits from its members only), Unavailable.
    Committing again is safe.
    """
    deadline = connections.deadline()
    coordinator = Coordinator(connections, group)
    store = TopicOffsetStore(coordinator, connections, "", deadline - asyncio.get_running_loop().time())
    parts = sorted(offsets)
    refused: dict[TopicPartition, LedgerMQError] = {}
    for at in range(0, len(parts), PARTITIONS_PER_CALL_MAX):
        some = parts[at : at + PARTITIONS_PER_CALL_MAX]
        asked = [pb.TopicPartition(topic=part.topic, partition=part.partition) for part in some]
        request = pb.FetchCommittedRequest(group=group, partitions=asked)
        answer = await coordinator.ask(lambda at, request=request: at.fetch_committed(request), deadline)  # type: ignore[misc]
        entries = []
        for part, known in zip(some, answer.partitions, strict=True):
            topic_id, offset = offsets[part]
            if known.HasField("error"):
                refused[part] = error_from_proto(known.error)
            elif known.topic_id != topic_id or not known.HasField("offset") or known.offset != offset:
                entries.append(OffsetEntry(GivenPartition(part, topic_id, known.epoch), known.counter + 1, offset))
        if entries:
            refused |= await store.commit(group, entries)
    return refused
