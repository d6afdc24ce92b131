"""Clients with transactions in a simulated cluster: they commit, abort, die, share ids; read, process, write."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ledgermq.client.client import Client
from ledgermq.client.groups.group_consumer import GroupConsumer
from ledgermq.client.groups.holding.holding import Holding
from ledgermq.client.groups.membership.staged_offsets import StagedOffsets
from ledgermq.client.groups.message import GroupMessage
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.messages.record import row_bytes, row_of
from ledgermq.client.producing.producer import Producer
from ledgermq.client.settings.producers import ProducerSettings
from ledgermq.client.settings.values import ClientSettings
from ledgermq.client.transactions.decisions import Decisions
from ledgermq.client.transactions.sending.lane import Lane
from ledgermq.client.transactions.sending.staging import Staging
from ledgermq.client.transactions.transaction import Transaction
from ledgermq.client.transactions.transactions import Transactions
from ledgermq.client.transactions.two_phase.two_phase import TwoPhase
from ledgermq.errors import (
    LedgerMQError,
    StaleAssignment,
    TransactionAborted,
    TransactionFenced,
    TransactionOutcomeUnknown,
)
from ledgermq.offset_stores.contract import OffsetEntry
from ledgermq.protocol import ledgermq_pb2 as pb
from tests.simulation.cluster_clients import PARTITIONS, SimulatedClient
from tests.simulation.cluster_plan import ClusterPlan
from tests.simulation.half_truth import LocalDatabase
from tests.simulation.history import Outcome
from tests.simulation.network import Network
from tests.simulation.once_truth import Attempts
from tests.simulation.transactions_plan import TransactionsPlan
from tests.simulation.transactions_truth import Sent, processed_as
from tests.simulation.world import World

INPUT, OUTPUTS, GROUP = "main", ("left", "right"), "processors"
STALE = 0.5
"""Share of the transactions that could stage under a former assignment, and do, in runs in which some do."""


@dataclass
class Shared:
    """What the clients of a run have in common."""

    sent: list[Sent] = field(default_factory=list)
    prepared: dict[str, Sent] = field(default_factory=dict)
    """By transactional id: branches that may be prepared, and are not known to be over."""
    lanes: list[Lane] = field(default_factory=list)
    """Of senders and members: what a thief has learned of them."""
    half: list[str] = field(default_factory=list)
    """Transactional ids of half messages."""
    database: LocalDatabase = field(default_factory=LocalDatabase)
    attempts: Attempts = field(default_factory=Attempts)
    """Of transactions of one call."""


class TransactionalClient(SimulatedClient):
    """One incarnation of a process that holds a transactional id."""

    outputs: Sequence[str] = OUTPUTS
    """Topics to which it sends."""

    def __init__(
        self,
        world: World,
        network: Network,
        plan: ClusterPlan,
        own: TransactionsPlan,
        shared: Shared,
        name: str,
        transactional_id: str,
        incarnation: int,
    ) -> None:
        super().__init__(world, network, plan, name)
        self.random = random.Random(f"transactions of {name} {incarnation} {world.seed}")
        self._own = own
        self._shared = shared
        self._id = transactional_id
        self._incarnation = incarnation
        self._clients = 0

    async def _live(self) -> None:
        self.client = self._new_client()
        while not self.stopped.is_set():
            try:
                await self._session()
            except LedgerMQError as error:
                self._world.coverage.saw(f"transactions ended: {type(error).__name__}")
                self._world.judge_error(error)
                self._world.note(self.name, f"{type(error).__name__}: {error.message[:100]}")
            await asyncio.sleep(self.random.uniform(0.1, 1.0))
        await self.client.close()
        self._world.note(self.name, "has ended")

    def _new_client(self) -> Client:
        """Return one that knows two brokers, and not yet which of them serves what."""
        brokers = [f"b{i}" for i in range(self._plan.brokers)]
        self.random.shuffle(brokers)
        settings = ClientSettings(timeout_s=15.0, attempt_timeout_s=self._plan.request_timeout_s)
        connector = self._network.connector(self.name, self._plan.request_timeout_s)
        self._clients += 1
        sources = self._world.sources(f"{self.name} {self._incarnation} {self._clients}", clock=self.name)
        return Client(connector, brokers[:2], settings, sources)

    async def _session(self) -> None:
        raise NotImplementedError

    def _transactions(self) -> Transactions:
        return self.client.transactions(
            self._id,
            timeout=self._own.timeout_ms / 1000,
            linger_ms=self._plan.linger_ms,
            compression=self._plan.compression,
            delivery_timeout_s=self._plan.delivery_timeout_s,
            request_timeout_s=self._plan.request_timeout_s,
        )

    def _note_lane(self, transactions: Transactions) -> None:
        assert transactions._lane is not None
        self._shared.lanes.append(transactions._lane)

    def _send(self, transaction: Transaction | TwoPhase, sent: Sent, topic: str, number: int, value: str) -> None:
        self._note_send(sent, topic, number, value)
        transaction.send(topic, value, key=value, partition=number)

    def _note_send(self, sent: Sent, topic: str, number: int, value: str) -> None:
        sent.values.append(value)
        op = self._world.history.begin_produce(self.name, self.partition(topic, number), (value,), ordered=False)
        sent.ops.append(op)

    async def _end(self, transaction: Transaction, sent: Sent) -> bool:
        """Commit, mostly. Return whether it is known to be committed."""
        coverage, chance = self._world.coverage, self.random.random()
        if chance < self._own.dies:
            coverage.saw("a transaction was left open")
            await asyncio.sleep(3 * self._own.timeout_ms / 1000)
        elif chance < self._own.dies + self._own.aborts:
            await transaction.abort()
            self._told(sent, committed=False)
            coverage.saw("a transaction was aborted")
            return False
        try:
            await transaction.commit(self._own.deadline_s)
        except TransactionAborted:
            self._told(sent, committed=False)
            coverage.saw("a commit was answered: aborted")
        except TransactionFenced:
            coverage.saw("a commit was answered: fenced")
            raise
        except TransactionOutcomeUnknown:
            coverage.saw("a commit was answered: outcome unknown")
            raise
        else:
            self._told(sent, committed=True)
            coverage.saw("a transaction was committed")
        return sent.told is True

    def _told(self, sent: Sent, committed: bool) -> None:
        """Note what the client was told. A commit names no offsets."""
        sent.told = committed
        for op in sent.ops:
            self._world.history.end_produce(op, Outcome.INFO if committed else Outcome.FAIL, why="aborted")


class Transactor(TransactionalClient):
    """Sends to any partitions of both outputs, all or nothing."""

    async def _session(self) -> None:
        async with self._transactions() as transactions:
            self._note_lane(transactions)
            while not self.stopped.is_set():
                sent = Sent(self.name, self._id)
                self._shared.sent.append(sent)
                transaction = transactions.begin()
                await transaction.start()
                try:
                    for _ in range(self.random.choice((1, 2, 5, 10))):
                        number = self.random.randrange(PARTITIONS)
                        value = f"{self.name}/{self._incarnation}/{self.next_value()}"
                        self._send(transaction, sent, self.random.choice(self.outputs), number, value)
                    if self.random.random() < 0.1:
                        await transaction.flush()
                        self._leave_out(transaction, sent)
                    await self._end(transaction, sent)
                finally:
                    if not transaction.closed:
                        await transaction.abort()
                await asyncio.sleep(self.random.expovariate(self._plan.records_s))

    def _leave_out(self, transaction: Transaction, sent: Sent) -> None:
        """Commit less than is staged, as the protocol allows: the last batch of a stream is not counted."""
        staging = transaction._lane.staging
        bundle = self.random.choice(sorted(staging._counts))
        stream = self.random.choice(sorted(staging._counts[bundle]))
        staging._counts[bundle][stream] -= 1
        if not staging._counts[bundle][stream]:
            del staging._counts[bundle][stream]
        if not staging._counts[bundle]:
            del staging._counts[bundle]
        sent.values.clear()  # which of them it holds is known to the truth alone
        self._world.coverage.saw("a batch was left out")


class Processor(TransactionalClient):
    """Reads the input as a member of a group; each message becomes one record in each output.

    In some runs it is now and then a zombie in one respect: it stages offsets under the first assignment of a
    partition, though it has lost the partition since, and got it again under a later epoch. The SDK never does
    so, but another client may. Only the coordinator can refuse that, because the member and its transaction live.
    """

    _first: Mapping[TopicPartition, Holding] = {}
    """How this process held each partition at first."""

    async def _session(self) -> None:
        loop = asyncio.get_running_loop()
        over = loop.time() + self.random.choice((3.0, 10.0, 1000.0))
        consumer = self.client.consumer(
            INPUT,
            group=GROUP,
            commit="manual",
            session_timeout_s=self._own.session_timeout_s,
            heartbeat_wait_s=0.5,
            close_timeout_s=3.0,
            request_timeout_s=self._plan.request_timeout_s,
        )
        try:
            async with self._transactions() as transactions:
                self._note_lane(transactions)
                while not self.stopped.is_set() and (loop.time() < over or self._world.healed):
                    messages = await consumer.fetch(self.random.choice((1, 5, 50)), timeout=1.0)
                    if messages and not await self._process(transactions, consumer, messages):
                        return  # what it was handed is read again from the committed offset
        finally:
            await self._close(consumer)

    async def _process(
        self, transactions: Transactions, consumer: GroupConsumer, messages: Sequence[GroupMessage]
    ) -> bool:
        sent = Sent(self.name, self._id)
        self._shared.sent.append(sent)
        transaction = transactions.begin(reading=consumer)
        await transaction.start()
        try:
            for message in messages:
                for output in OUTPUTS:
                    place = processed_as(output, message.partition, message.offset)
                    value = f"{place}/{self._incarnation}.{self.next_value()}"
                    self._send(transaction, sent, output, message.partition, value)
            await self._stage(transaction, consumer, messages)
            return await self._end(transaction, sent)
        finally:
            if not transaction.closed:
                await transaction.abort()

    async def _stage(self, transaction: Transaction, consumer: GroupConsumer, messages: Sequence[GroupMessage]) -> None:
        offsets = consumer.member.transactions
        assert offsets is not None
        stale = self._stale(offsets, messages) if self._own.stages_stale else []
        if stale and not self._world.healed and self.random.random() < STALE:
            self._world.coverage.saw("offsets were staged under a former assignment")
            await transaction.stage_entries(offsets, stale)
        else:
            await transaction.send_offsets(consumer, messages)

    def _stale(self, offsets: StagedOffsets, messages: Sequence[GroupMessage]) -> list[OffsetEntry]:
        """Return the offsets behind the messages, under the first assignments of partitions that were given again."""
        try:
            wishes = offsets._commits.wishes_of(messages, "")
        except StaleAssignment:
            return []  # the SDK refuses them by itself
        self._first = {holding.partition: holding for holding in wishes} | self._first
        firsts = {holding: self._first[holding.partition] for holding in wishes}
        return [first.next_entry(*wishes[now]) for now, first in firsts.items() if first.given.epoch != now.given.epoch]

    async def _close(self, consumer: GroupConsumer) -> None:
        try:
            await consumer.close()
        except LedgerMQError as error:
            self._world.note(self.name, f"close: {type(error).__name__} {error.message[:100]}")


class Thief(TransactionalClient):
    """Stages under the producer ids of others, beside a transactional id of its own, as if the ids had leaked.

    It may delay the others for a moment, and changes nothing of what they are told.
    """

    async def _session(self) -> None:
        own = await Decisions(self.client._connections, self._id).init(0, self.client._connections.deadline())
        while not self.stopped.is_set():
            await asyncio.sleep(self.random.expovariate(self._plan.records_s / 2))
            if self._shared.lanes:
                lane = self.random.choice(self._shared.lanes[-4:])
                await self._stage(
                    pb.TransactionRef(
                        transactional_id=self._id,
                        coordinator=own.coordinator,
                        producer_id=lane.identity.producer_id,
                        epoch=lane.identity.epoch,
                        number=lane._number + self.random.choice((0, 1, 100)),
                    )
                )

    async def _stage(self, reference: pb.TransactionRef) -> None:
        staging = Staging()
        staging.begin(reference)
        producer = Producer(self.client._context, ProducerSettings(delivery_timeout_s=2.0), staging)
        value, now_us = f"{self.name}/{self._incarnation}/{self.next_value()}", self.client._sources.now_us()
        row = row_of(value, None, None, None, None, now_us, None)
        try:
            await producer.add_row(self.random.choice(self.outputs), row, row_bytes(row), 0)
            self._world.coverage.saw("a thief has staged")
        except LedgerMQError as error:
            self._world.judge_error(error)
            self._world.coverage.saw("a thief was refused")
        finally:
            await producer.abort()
