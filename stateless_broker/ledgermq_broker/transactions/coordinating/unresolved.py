"""Copy unresolved half messages to the topic `<check group>.unresolved`, where operators find them.

The copy is stored once, although several coordinators may attempt it: it is produced in a producer
session that has the id and the epoch of the transaction, with sequences from 0. Staged batches are
dropped only after the copy was acknowledged (X19). So if nothing is staged any longer, the next
sequence of the session shows whether the copy is stored.

A ledger forgets a session after as many other producers as it remembers. An attempt after that stores the
copy again, with the same content; the client passes over it (`ledgermq.client.operating.unresolved`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pyarrow as pa

from ledgermq.errors import DataDamaged, TopicExists, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq.protocol.batches.records import HEADERS, decode_batch
from ledgermq.protocol.naming import unresolved as names
from ledgermq.protocol.status import error_from_proto
from ledgermq_broker.internal.bundle_calls import BundleCalls
from ledgermq_broker.metadata.at_controller import AtController
from ledgermq_broker.metadata.controller import Controller
from ledgermq_broker.metadata.followed import Metadata
from ledgermq_broker.paths.values import Value, produce_frame
from ledgermq_broker.transactions.state.checks import describe, unresolved_topic
from ledgermq_broker.transactions.state.types import Part, Transaction
from ledgermq_ledger.topics.topic import Topic

PARTITION = 0
SETTINGS = {"max.message.bytes": str(32 * 1024 * 1024)}
"""A copy has more headers than its message, so the topic allows the largest records."""

ReadStaged = Callable[[Transaction, Part, int], Awaitable[pb.ReadStagedResponse]]
"""Read what is staged of a part, without a number of batches at its beginning."""


class UnresolvedTopics:
    """Finds the topics, and creates each at its first use, with one partition. Users may read and delete
    them.
    """

    def __init__(self, metadata: Metadata, at_controller: AtController, controller: Controller) -> None:
        self._metadata = metadata
        self._at_controller = at_controller
        self._controller = controller

    async def find_or_create(self, name: str) -> Topic:
        """Return the topic. Raises TopicBeingDeleted, Unavailable, NotOwner, DeadlineExceeded."""
        if name not in self._metadata.catalog.topics_by_name:
            await self._metadata.catch_up()
        if name not in self._metadata.catalog.topics_by_name:
            await self._create(name)
        if name not in self._metadata.catalog.topics_by_name:
            raise Unavailable(
                f"topic {name} was created, but this broker has not read it yet; retry", retry_after_ms=200
            )
        return self._metadata.catalog.living(name)

    async def _create(self, name: str) -> None:
        async def here() -> pb.CreateTopicResponse:
            await self._controller.create_topic(name, 1, SETTINGS)
            return pb.CreateTopicResponse()

        wish = pb.CreateTopicRequest(name=name, partitions=1, settings=SETTINGS)
        try:
            await self._at_controller.run(wish, here, lambda line, passed: line.create_topic(passed))
        except TopicExists:
            await self._metadata.catch_up()


class UnresolvedCopies:
    def __init__(
        self, topic: Callable[[str], Awaitable[Topic]], calls: BundleCalls, read: ReadStaged, now_us: Callable[[], int]
    ) -> None:
        self._topic = topic
        self._calls = calls
        self._read = read
        self._now_us = now_us

    async def store(self, transaction: Transaction, part: Part, group: str, checks: int) -> None:
        """Store the copy; return when it is durable.

        Raises DataDamaged if the half message is lost; Unavailable and other errors that pass with time.
        """
        topic = await self._topic(unresolved_topic(group))
        opened = await self._opened(topic, transaction)
        sequence = skip = 0
        while True:
            staged = await self._read(transaction, part, skip)
            if not staged.batches and not opened.next_sequence:
                raise DataDamaged(
                    f"{describe(transaction)} is UNRESOLVED, but nothing of it is staged in bundle {part.bundle}, and "
                    f"topic {topic.name} has no copy of it; restore the bundle's ledger, or give up its part with "
                    "`ledgermq transaction give-up`"
                )
            for batch in staged.batches:
                if sequence >= opened.next_sequence:
                    session = pb.ProducerSession(
                        id=transaction.producer_id,
                        epoch=transaction.epoch,
                        sequence=sequence,
                        opened_slot=opened.opened_slot,
                    )
                    await self._produce(topic, batch, session, _headers(transaction, batch, checks))
                sequence += batch.record_count
            skip += len(staged.batches)
            if not staged.left:
                return

    async def _opened(self, topic: Topic, transaction: Transaction) -> pb.OpenedPartition:
        request = pb.OpenProducerRequest(producer_id=transaction.producer_id)
        request.partitions.add(topic=topic.name, partition=PARTITION)

        async def ask(broker: BrokerApi) -> pb.OpenedPartition:
            [opened] = (await broker.open_producer(request)).partitions
            if opened.HasField("error"):
                raise error_from_proto(opened.error)
            return opened

        return await self._calls.at(topic.bundles[PARTITION], ask)

    async def _produce(
        self, topic: Topic, batch: pb.StagedData, session: pb.ProducerSession, headers: list[tuple[str, bytes]]
    ) -> None:
        rows = _with_headers(decode_batch(batch.data), headers)
        value = Value(topic.name, PARTITION, rows, topic.id, session)
        frame = produce_frame([value], self._now_us(), compression="lz4")

        async def produce(broker: BrokerApi) -> None:
            [result] = (await broker.produce_once(frame)).results
            if result.HasField("error"):
                raise error_from_proto(result.error)

        await self._calls.at(topic.bundles[PARTITION], produce)


def _headers(transaction: Transaction, batch: pb.StagedData, checks: int) -> list[tuple[str, bytes]]:
    """Return the headers that name the copy's origin. The copy has the timestamp of the message."""
    named = {
        names.ID: transaction.transactional_id,
        names.TOPIC: batch.topic,
        names.PARTITION: str(batch.partition),
        names.CHECKS: str(checks),
    }
    return [(name, value.encode()) for name, value in named.items()]


def _with_headers(rows: pa.RecordBatch, more: list[tuple[str, bytes]]) -> pa.RecordBatch:
    added = [{"key": name, "value": value} for name, value in more]
    headers = [[*(row or ()), *added] for row in rows.column("headers").to_pylist()]
    at = rows.schema.get_field_index("headers")
    return rows.set_column(at, rows.schema.field(at), pa.array(headers, HEADERS))
