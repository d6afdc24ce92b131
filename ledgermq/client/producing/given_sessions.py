"""A producer whose identity outlives its process: it goes on, with the same sequences, where
another process stopped.

Whoever writes the same batches in the same order under the same identity stores each of them once,
however often it begins again. So the identity and the slots at which it was opened are decided and
kept before the first batch is sent (`open_sessions`); after a crash `open_sessions` says how far
each partition came. When a session ends here nothing takes its place: another numbering would store
again what may be stored. Each batch comes with its sequence; where one is given up unsent, whatever
for, none behind it is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ledgermq.client.at_owners import AtOwners
from ledgermq.client.connections import Connections
from ledgermq.client.descriptions import TopicPartition
from ledgermq.client.producing.partition_queue import Failure, PartitionQueue, Session
from ledgermq.client.routing import Routing
from ledgermq.errors import LedgerMQError, OutcomeUnknown
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq.protocol.status import error_from_proto


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """One Arrow IPC message of the record schema for one partition, with what its header says of
    it.
    """

    data: bytes
    crc: int
    record_count: int
    timestamp_min_us: int
    timestamp_max_us: int


PARTITIONS_PER_CALL_MAX = 4096


async def open_sessions(
    connections: Connections,
    routing: Routing,
    producer_id: bytes,
    partitions: Sequence[TopicPartition],
    deadline: float,
) -> dict[TopicPartition, Session]:
    """As brokers know the producer now: `opened_slot` for one that has not sent anything yet,
    `next_sequence` of what is stored.

    `next_sequence` may be too low while a broker loses its partitions; then the session ends by
    OutOfOrderSequence, and this is asked again. Raises UnknownTopic, UnknownPartition, Unavailable.
    """

    async def ask(at: BrokerApi, asked: Sequence[TopicPartition]) -> list[Session | LedgerMQError]:
        wanted = [pb.TopicPartition(topic=each.topic, partition=each.partition) for each in asked]
        answer = await at.open_producer(pb.OpenProducerRequest(partitions=wanted, producer_id=producer_id))
        return [
            error_from_proto(opened.error)
            if opened.HasField("error")
            else Session(producer_id, opened.opened_slot, next_sequence=opened.next_sequence)
            for opened in answer.partitions
        ]

    owners = AtOwners(connections, routing, ask)
    found: dict[TopicPartition, Session] = {}
    for first in range(0, len(partitions), PARTITIONS_PER_CALL_MAX):
        found |= await owners.find(partitions[first : first + PARTITIONS_PER_CALL_MAX], deadline)
    return found


class GivenSessions:
    """Hands out each partition's session once."""

    def __init__(self, sessions: Mapping[TopicPartition, Session]) -> None:
        self._sessions = {partition: replace(session) for partition, session in sessions.items()}
        self.changed: Callable[[], None] = lambda: None
        self.settle: Callable[[list[Failure]], None] = lambda failures: None

    def open(self, queues: Sequence[PartitionQueue]) -> None:
        for queue in queues:
            session = self._sessions.pop(TopicPartition(queue.topic, queue.partition), None)
            if session is not None:
                queue.opened(session)
            else:
                text = f"the given session of {queue.topic}/{queue.partition} has ended: {queue.last_error}"
                self.settle(queue.abandon(queue.last_error or OutcomeUnknown(text)))
        if queues:
            self.changed()
