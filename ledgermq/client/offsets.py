"""Request offsets from partitions' owners: the earliest, the latest, the first at or after a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

from ledgermq.client.connection.connections import Connections
from ledgermq.client.connection.routing import AtOwners, Routing
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.messages.record import microseconds_of
from ledgermq.errors import LedgerMQError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq.protocol.status import error_from_proto

At = Literal["earliest", "latest"] | datetime


class Offsets:
    def __init__(self, connections: Connections, routing: Routing) -> None:
        self._connections = connections
        self._routing = routing

    async def find(self, wanted: Mapping[TopicPartition, At], deadline: float) -> dict[TopicPartition, int]:
        """Return every partition's offset. Raises UnknownTopic, UnknownPartition, …, Unavailable."""

        async def ask(at: BrokerApi, partitions: Sequence[TopicPartition]) -> list[int | LedgerMQError]:
            answer = await at.list_offsets(
                pb.ListOffsetsRequest(queries=[_query(each, wanted[each]) for each in partitions])
            )
            return [
                error_from_proto(result.error) if result.HasField("error") else result.offset
                for result in answer.results
            ]

        return await AtOwners(self._connections, self._routing, ask).find(list(wanted), deadline)


def _query(partition: TopicPartition, at: At) -> pb.OffsetQuery:
    query = pb.OffsetQuery(topic=partition.topic, partition=partition.partition)
    if isinstance(at, datetime):
        query.timestamp_us = microseconds_of(at)
    elif at == "earliest":
        query.earliest = True
    else:
        query.latest = True
    return query
