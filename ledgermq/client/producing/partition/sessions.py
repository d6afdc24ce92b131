"""Producer sessions: the identity under which a producer numbers the batches of one partition, and
the calls to brokers that open one.

A session begins at the end slot that the partition's owner names before the first batch is sent
(design P4). A producer opens its own sessions when it needs them (`open_new_sessions`).

A *resumed* producer outlives its process: it continues, with the same sequences, where another
process stopped. Processes that write the same batches in the same order under the same identity
store each batch once, however often they restart. So the identity, and the slots at which it was
opened, are decided and stored before the first batch is sent; after a crash `open_sessions` returns
how far each partition came. When such a session ends, no other replaces it: under another
numbering, batches that may be stored would be stored again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from ledgermq.client.connection.routing import AtOwners
from ledgermq.client.context import ClientContext
from ledgermq.client.messages.broker_clock import reported_us
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.errors import LedgerMQError, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq.protocol.status import error_from_proto


@dataclass(slots=True)
class Session:
    """`id`: of the producer. `opened_slot`: the end slot that the owner named before the first
    batch was sent. `next_sequence`: of the next record to be numbered.
    """

    id: bytes
    opened_slot: int
    epoch: int = 0
    next_sequence: int = 0

    def number(self, record_count: int) -> int:
        """Return the sequence of the next batch, and count it: sequences count records."""
        sequence = self.next_sequence
        self.next_sequence += record_count
        return sequence


@dataclass(slots=True)
class BatchNumbers(Session):
    """A session whose sequences count batches."""

    def number(self, record_count: int) -> int:
        sequence = self.next_sequence
        self.next_sequence += 1
        return sequence


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """One Arrow IPC message of the record schema for one partition, with the fields of its header."""

    data: bytes
    crc: int
    record_count: int
    timestamp_min_us: int
    timestamp_max_us: int


async def open_new_sessions(
    context: ClientContext,
    owner: str,
    partitions: Sequence[TopicPartition],
    deadline: float,
    kind: type[Session] = Session,
) -> list[Session | LedgerMQError]:
    """Open a new session for each partition at a broker. Return the sessions, or the broker's
    errors, in the order of the partitions. Each session has another producer id.

    The broker's time becomes the client's. `partitions`: at most PARTITIONS_PER_CALL_MAX. Raises what the call raises.
    """
    request = _request(partitions)
    asked_s = asyncio.get_running_loop().time()
    answer = await context.connections.ask_at(owner, lambda at: at.open_producer(request), deadline)
    context.clock.learn(answer.now_us, asked_s)
    if len(answer.partitions) != len(partitions):
        raise Unavailable(f"{owner} answered for {len(answer.partitions)} partitions, not {len(partitions)}")
    return [
        error_from_proto(opened.error)
        if opened.HasField("error")
        else kind(context.sources.new_id(), opened.opened_slot)
        for opened in answer.partitions
    ]


async def ask_time(context: ClientContext, deadline: float) -> None:
    """Ask a broker for its time again. Where none answers, what is known stays."""

    async def ask(at: BrokerApi) -> None:
        asked_s = asyncio.get_running_loop().time()
        context.clock.learn(await reported_us(at), asked_s)

    with suppress(LedgerMQError):
        await context.connections.ask(ask, deadline)


async def open_sessions(
    context: ClientContext, producer_id: bytes, partitions: Sequence[TopicPartition], deadline: float
) -> dict[TopicPartition, Session]:
    """Return a producer's sessions as brokers remember them now: `opened_slot` for one that has
    not sent a batch yet, `next_sequence` after what is stored.

    `next_sequence` may be too low while a broker loses its partitions. The session then ends with
    OutOfOrderSequence, and the caller calls this again. Raises UnknownTopic, UnknownPartition,
    Unavailable.
    """

    async def ask(at: BrokerApi, asked: Sequence[TopicPartition]) -> list[Session | LedgerMQError]:
        answer = await at.open_producer(_request(asked, producer_id))
        return [
            error_from_proto(opened.error)
            if opened.HasField("error")
            else Session(producer_id, opened.opened_slot, next_sequence=opened.next_sequence)
            for opened in answer.partitions
        ]

    return await AtOwners(context.connections, context.routing, ask).find(partitions, deadline)


def _request(partitions: Sequence[TopicPartition], producer_id: bytes = b"") -> pb.OpenProducerRequest:
    wanted = [pb.TopicPartition(topic=each.topic, partition=each.partition) for each in partitions]
    return pb.OpenProducerRequest(partitions=wanted, producer_id=producer_id)
