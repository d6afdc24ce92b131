"""Committed offsets of a group without members: the progress of a job that shares out its
partitions itself, as a Spark query does.

The group is there to be looked at: `ledgermq group describe` shows where the job is and how far
behind. One program commits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from ledgermq.client.connections import Connections
from ledgermq.client.descriptions import TopicPartition
from ledgermq.client.groups.coordinator import Coordinator
from ledgermq.client.groups.offset_store import GivenPartition, OffsetEntry
from ledgermq.client.groups.topic_store import TopicOffsetStore
from ledgermq.errors import LedgerMQError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.status import error_from_proto

PARTITIONS_MAX = 1000
"""Of one request."""


async def commit_outside(
    connections: Connections, group: str, offsets: Mapping[TopicPartition, tuple[int, int]]
) -> Mapping[TopicPartition, LedgerMQError]:
    """`offsets`: (topic id, the next one to read). Answers what was refused: CommitGoesBack,
    OffsetOutOfRange, UnknownTopic, …

    Raises InvalidGroupName, GroupNotEmpty (only members commit), Unavailable; committing again does
    no harm.
    """
    deadline = connections.deadline()
    coordinator = Coordinator(connections, group)
    store = TopicOffsetStore(coordinator, connections, "", deadline - asyncio.get_running_loop().time())
    parts = sorted(offsets)
    refused: dict[TopicPartition, LedgerMQError] = {}
    for at in range(0, len(parts), PARTITIONS_MAX):
        some = parts[at : at + PARTITIONS_MAX]
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
