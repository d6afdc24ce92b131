"""The default offset store: the cluster's own topic, kept by the group's coordinator, which also
fences by epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from ledgermq.client.connections import Connections
from ledgermq.client.descriptions import TopicPartition
from ledgermq.client.groups.coordinator import Coordinator
from ledgermq.client.groups.offset_store import GivenPartition, OffsetEntry, StoredOffset
from ledgermq.errors import LedgerMQError, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.status import error_from_proto


class TopicOffsetStore:
    """`request_timeout_s`: of one call, retries included."""

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
        for given, stored in zip(partitions, answer.partitions, strict=True):
            if stored.HasField("error"):
                raise error_from_proto(stored.error)
            if stored.HasField("offset") and stored.topic_id == given.topic_id:
                found[given.partition] = StoredOffset(stored.offset, stored.metadata, stored.commit_ms)
        return found

    async def commit(self, group: str, entries: Sequence[OffsetEntry]) -> Mapping[TopicPartition, LedgerMQError]:
        """What a retry may cure for some partitions (their end is not known at present, say) is
        retried for these until the time is up.
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
            group=group, member_id=self._member_id, commits=[_commit(entry) for entry in entries]
        )
        answer = await self._coordinator.ask(lambda at: at.commit_offsets(request), deadline)
        if len(answer.results) != len(entries):
            raise Unavailable(f"the coordinator answered for {len(answer.results)} of {len(entries)} commits")
        pairs = zip(entries, answer.results, strict=True)
        return {
            entry.given.partition: error_from_proto(result.error) for entry, result in pairs if result.HasField("error")
        }


def _commit(entry: OffsetEntry) -> pb.OffsetCommit:
    topic, partition = entry.given.partition
    return pb.OffsetCommit(
        topic=topic,
        topic_id=entry.given.topic_id,
        partition=partition,
        epoch=entry.given.epoch,
        counter=entry.counter,
        offset=entry.offset,
        metadata=entry.metadata,
    )
