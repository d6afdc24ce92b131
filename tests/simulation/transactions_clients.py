"""Clients with transactions in a simulated cluster: they commit, abort, die, share ids; read, process, write."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from ledgermq.client.client import Client
from ledgermq.client.groups.group_consumer import GroupConsumer
from ledgermq.client.groups.holding import Holding
from ledgermq.client.groups.message import GroupMessage
from ledgermq.client.groups.staged_offsets import StagedOffsets
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
from ledgermq.client.transactions.two_phase import TwoPhase
from ledgermq.client.transactions.xid import transactional_id_of
from ledgermq.errors import (
    InvalidRequest,
    LedgerMQError,
    StaleAssignment,
    TransactionAborted,
    TransactionFenced,
    TransactionOutcomeUnknown,
    TransactionUnknown,
)
from ledgermq.offset_stores.contract import OffsetEntry
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.transactions.state.limits import TransactionLimits
from tests.judges.violation import Violation
from tests.simulation.cluster_clients import PARTITIONS, SimulatedClient
from tests.simulation.cluster_plan import ClusterPlan
from tests.simulation.half_truth import LocalDatabase
from tests.simulation.history import Outcome
from tests.simulation.network import Network
from tests.simulation.transactions_truth import Sent, processed_as
from tests.simulation.world import World

INPUT, OUTPUTS, GROUP = "main", ("left", "right"), "processors"
PREPARED_MAX = 5
"""Branches that wait for their end, of all managers."""
STALE = 0.5
"""Share of the transactions that could stage under a former assignment, and do, in runs in which some do."""
REST_S = 4.0
"""So long some of them are left alone: their bundles ask about them meanwhile."""


@dataclass(frozen=True, slots=True)
class TransactionsPlan:
    timeout_ms: int
    deadline_s: float
    """of one commit"""
    processors: int
    session_timeout_s: float
    aborts: float
    dies: float
    """share of the transactions that are left open, as by a process that stands still"""
    limits: TransactionLimits
    carry_slots: int
    outlives: bool
    """Now and then a broker stands still until another has claimed its bundles."""
    stages_stale: bool
    """Processors now and then stage offsets under an assignment of before they lost a partition and got it again."""
    twins: bool
    """Two programs at a time use one xid."""
    thief: bool
    """A program that has learned producer ids of others stages under them."""
    far_clocks: bool
    """When all has healed, the clocks of the brokers are a day ahead for some seconds."""


def transactions_plan_of(seed: int) -> TransactionsPlan:
    r = random.Random(f"transactions plan {seed}")
    half = random.Random(f"half messages plan {seed}")
    return TransactionsPlan(
        timeout_ms=r.choice((1000, 3000, 10_000)),
        deadline_s=r.choice((2.0, 10.0, 30.0)),
        processors=r.randint(1, 3),
        session_timeout_s=r.choice((2.0, 5.0)),
        aborts=r.choice((0.0, 0.2)),
        dies=r.choice((0.0, 0.1)),
        limits=TransactionLimits(
            chunk_bytes=r.choice((1, 500, 4 * 1024 * 1024)),
            ask_after_ms=r.choice((500, 2000)),
            carry_after_ms=r.choice((100, 1000, 300_000)),
            expiry_ms=r.choice((60_000, 7 * 24 * 3_600_000)),
            expiry_look_ms=1000,
            note_asked_ms=500,
            log_start_ms=r.choice((200, 5000)),
            check_after_ms=half.choice((300, 2000)),
            check_every_ms=half.choice((200, 1000)),
            checks_max=half.choice((2, 3, 15)),
            half_expiry_ms=half.choice((1000, 120_000)),
        ),
        carry_slots=r.choice((1, 20)),
        outlives=r.random() < 0.5,
        stages_stale=random.Random(f"stale stages plan {seed}").random() < 0.5,
        twins=random.Random(f"twins plan {seed}").random() < 0.4,
        thief=random.Random(f"thief plan {seed}").random() < 0.4,
        far_clocks=random.Random(f"far clocks plan {seed}").random() < 0.3,
    )


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


class Manager(TransactionalClient):
    """Prepares branches of two-phase transactions, and leaves them to the resolver."""

    _xids = 0

    async def _session(self) -> None:
        while not self.stopped.is_set():
            await asyncio.sleep(self.random.expovariate(self._plan.records_s))
            if len(self._shared.prepared) < PREPARED_MAX:
                async with self.client.transactions.two_phase(timeout=self._own.timeout_ms / 1000) as branch:
                    await self._prepare(branch)

    async def _prepare(self, branch: TwoPhase) -> None:
        self._xids += 1
        xid = branch.xid(1, f"{self.name}.{self._incarnation}", str(self._xids))
        sent = Sent(self.name, transactional_id_of(xid))
        self._shared.sent.append(sent)
        self._shared.prepared[sent.transactional_id] = sent
        await branch.tpc_begin(xid)
        try:
            for _ in range(self.random.choice((1, 3))):
                number = self.random.randrange(PARTITIONS)
                value = f"{self.name}/{self._incarnation}/{self.next_value()}"
                self._send(branch, sent, self.random.choice(self.outputs), number, value)
            await branch.tpc_prepare(self._own.deadline_s)
            sent.rests_until_s = asyncio.get_running_loop().time() + self.random.choice((0.0, 0.0, REST_S))
            sent.prepared = True
            self._world.coverage.saw("a branch was prepared")
        except TransactionOutcomeUnknown:
            sent.rollback_asked = True
            with suppress(LedgerMQError):
                await branch.tpc_rollback()
            raise


class Twins(TransactionalClient):
    """Two programs that use one xid at the same time. At most one of them may be told that its transaction is
    prepared or committed, and then the records of that one are visible.
    """

    _xids = 0

    async def _session(self) -> None:
        while not self.stopped.is_set():
            await asyncio.sleep(self.random.expovariate(self._plan.records_s / 2))
            if len(self._shared.prepared) < PREPARED_MAX:
                self._xids += 1
                async with self._new_client() as second:
                    ends = [self._program(client, place) for place, client in enumerate((self.client, second))]
                    for ended in await asyncio.gather(*ends, return_exceptions=True):
                        if isinstance(ended, LedgerMQError):
                            self._world.judge_error(ended)
                        elif ended is not None:
                            raise ended

    async def _program(self, client: Client, place: int) -> None:
        async with client.transactions.two_phase(timeout=self._own.timeout_ms / 1000) as branch:
            xid = branch.xid(2, f"{self.name}.{self._incarnation}", str(self._xids))
            await asyncio.sleep(self.random.choice((0.0, 0.0, 0.05)))
            try:
                await branch.tpc_begin(xid)
            except InvalidRequest:
                self._world.coverage.saw("a twin was refused")
                return
            sent = Sent(f"{self.name}.{place}", transactional_id_of(xid))
            self._shared.sent.append(sent)
            value = f"{self.name}/{self._incarnation}/{self._xids}/{place}"
            self._send(branch, sent, self.outputs[place], self.random.randrange(PARTITIONS), value)
            if self.random.random() < 0.5:
                await self._commit(branch, sent)
            else:
                await self._prepare(branch, sent)

    async def _commit(self, branch: TwoPhase, sent: Sent) -> None:
        try:
            await branch.tpc_commit(timeout_s=self._own.deadline_s)
        except (TransactionAborted, TransactionFenced):
            self._told(sent, committed=False)
        else:
            self._told(sent, committed=True)
            self._world.coverage.saw("a twin was committed")

    async def _prepare(self, branch: TwoPhase, sent: Sent) -> None:
        self._shared.prepared[sent.transactional_id] = sent
        try:
            await branch.tpc_prepare(self._own.deadline_s)
        except TransactionOutcomeUnknown:
            sent.rollback_asked = True
            raise
        sent.prepared = True
        self._world.coverage.saw("a twin was prepared")


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


class Resolver(TransactionalClient):
    """Ends branches that others have prepared, by their names; one that was not prepared is rolled back.

    Each time it is a program that has just started, and may first meet a former coordinator.
    """

    async def _session(self) -> None:
        async with self._new_client() as client, client.transactions.two_phase() as branch:
            while not self.stopped.is_set():
                await asyncio.sleep(self.random.expovariate(self._plan.records_s))
                now_s = asyncio.get_running_loop().time()
                if due := sorted(name for name, sent in self._shared.prepared.items() if sent.rests_until_s <= now_s):
                    await self._resolve(branch, self.random.choice(due))
                    return
                if self._world.healed:
                    for xid in await branch.tpc_recover():
                        await self._recover(branch, transactional_id_of(xid))

    async def _resolve(self, branch: TwoPhase, name: str) -> None:
        sent = self._shared.prepared[name]
        was_promised = sent.promised
        try:
            if self.random.random() < 0.7:
                await branch.tpc_commit(name, timeout_s=self._own.deadline_s)
                self._told(sent, committed=True)
                self._world.coverage.saw("a prepared branch was committed")
            else:
                await self._roll_back(branch, name, sent)
                self._world.coverage.saw("a prepared branch was rolled back")
        except TransactionAborted:
            self._told(sent, committed=False)
        except TransactionOutcomeUnknown:
            return
        except (InvalidRequest, TransactionUnknown) as error:
            if was_promised and sent.promised:
                self._world.violations.append(Violation("broken promise", f"{name} is prepared; answered: {error!r}"))
            elif not await self._is_given_up(branch, name, sent, error):
                return
        self._shared.prepared.pop(name, None)

    async def _recover(self, branch: TwoPhase, name: str) -> None:
        """Roll back what was prepared after it was taken for unknown."""
        if name not in self._shared.prepared:
            sent = next(sent for sent in self._shared.sent if sent.transactional_id == name)
            await self._roll_back(branch, name, sent)

    async def _is_given_up(self, branch: TwoPhase, name: str, sent: Sent, refusal: LedgerMQError) -> bool:
        """Decide what to do with a branch that is not prepared, or not known, at least not yet."""
        if isinstance(refusal, TransactionUnknown):
            return self._world.healed  # until then it may still be begun
        if not self._world.healed and self.random.random() < 0.5:
            return False
        await self._roll_back(branch, name, sent)
        return True

    async def _roll_back(self, branch: TwoPhase, name: str, sent: Sent) -> None:
        sent.rollback_asked = True
        await branch.tpc_rollback(name, timeout_s=self._own.deadline_s)
        self._told(sent, committed=False)
