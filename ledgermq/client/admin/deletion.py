"""Delete records on demand: request of each partition's owner that its log begins later.

A repeated call has no further effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from ledgermq.client.connection.routing import AtOwners
from ledgermq.client.context import ClientContext
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.messages.record import microseconds_of
from ledgermq.errors import InvalidRequest, LedgerMQError, UnknownPartition
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq.protocol.status import error_from_proto

Before = int | Literal["end"] | datetime


@dataclass(frozen=True, slots=True)
class DeletedRecords:
    """`log_start`: the first offset that is kept. `records`: number of records that this call
    deletes.
    """

    log_start_before: int
    log_start: int

    @property
    def records(self) -> int:
        return self.log_start - self.log_start_before


class Deletion:
    def __init__(self, context: ClientContext) -> None:
        self._context = context

    async def delete(
        self, topic: str, befores: Mapping[int, Before], *, dry_run: bool, deadline: float
    ) -> dict[int, DeletedRecords]:
        """Return the result by partition. Raises OffsetOutOfRange, LegalHold, UnknownTopic,
        UnknownPartition, InvalidRequest, Unavailable.
        """
        wanted = {partition: _wanted(partition, before) for partition, before in befores.items()}

        async def ask(at: BrokerApi, partitions: Sequence[TopicPartition]) -> list[DeletedRecords | LedgerMQError]:
            chosen = [wanted[each.partition] for each in partitions]
            answer = await at.delete_records(pb.DeleteRecordsRequest(topic=topic, partitions=chosen, dry_run=dry_run))
            return [_deleted_from(result) for result in answer.results]

        owners = AtOwners(self._context.connections, self._context.routing, ask)
        found = await owners.find([TopicPartition(topic, partition) for partition in befores], deadline)
        return {partition: found[TopicPartition(topic, partition)] for partition in befores}


def chosen_befores(
    before: Before | Mapping[int, Before], partitions: Iterable[int] | None, count: int
) -> dict[int, Before]:
    """Return where deletion ends in each chosen partition. Raises InvalidRequest,
    UnknownPartition.
    """
    if isinstance(before, Mapping):
        if partitions is not None:
            raise InvalidRequest("give either partitions, or `before` as a place for each partition")
        befores = dict(before)
    else:
        befores = dict.fromkeys(range(count) if partitions is None else partitions, before)
        if isinstance(before, int) and len(befores) > 1:
            raise InvalidRequest(
                f"offset {before} means a different record in each of {len(befores)} partitions: choose one partition"
            )
    if not befores:
        raise InvalidRequest("no partition is chosen")
    for partition in befores:
        if type(partition) is not int or not 0 <= partition < count:
            raise UnknownPartition(f"the topic has partitions 0 to {count - 1}, not {partition!r}")
    return befores


def _wanted(partition: int, before: Before) -> pb.RecordsToDelete:
    if isinstance(before, datetime):
        return pb.RecordsToDelete(partition=partition, timestamp_us=microseconds_of(before))
    if before == "end":
        return pb.RecordsToDelete(partition=partition, end=True)
    if type(before) is not int or not 0 <= before < 2**63:
        raise InvalidRequest(f"records are deleted before an offset, a datetime or 'end', not {before!r}")
    return pb.RecordsToDelete(partition=partition, offset=before)


def _deleted_from(result: pb.DeletedRecords) -> DeletedRecords | LedgerMQError:
    return (
        error_from_proto(result.error)
        if result.HasField("error")
        else DeletedRecords(result.log_start_before, result.log_start)
    )
