"""Clients of timed messages in a simulated cluster: senders, those that recall, and one that looks where it
may not.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from ledgermq.client.client import Client
from ledgermq.client.delayed import RecallOutcome
from ledgermq.client.messages.handles import handle_of, request_of
from ledgermq.client.producing.delivery import Delivery
from ledgermq.client.producing.producer import Producer
from ledgermq.client.settings.values import ClientSettings
from ledgermq.client.transactions.transaction import Transaction
from ledgermq.client.transactions.two_phase.two_phase import TwoPhase
from ledgermq.errors import InvalidRecord, LedgerMQError, ResourceExhausted, TopicExists, UnknownTopic
from ledgermq_ledger import keys
from tests.judges.violation import Violation
from tests.simulation.branch_clients import Manager
from tests.simulation.cluster_clients import PARTITIONS, SimulatedClient, fate_of
from tests.simulation.cluster_plan import ClusterPlan
from tests.simulation.history import Outcome
from tests.simulation.network import Network
from tests.simulation.timers_plan import SECOND_US, TimersPlan, ahead_s_of
from tests.simulation.timers_rows import PREFIX, Recall, Sent
from tests.simulation.transactions_clients import TransactionalClient, Transactor
from tests.simulation.transactions_truth import Sent as SentTogether
from tests.simulation.world import World

TOPICS = ("main", "brief", "timed")
TEMPORARY = "temp"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HORIZON_S = 366 * 86400.0


@dataclass
class Shared:
    """What the clients of a run have in common. `stored`: those with a handle, in the order of their answers."""

    sent: list[Sent] = field(default_factory=list)
    stored: list[Sent] = field(default_factory=list)


class TimersClient(SimulatedClient):
    """One incarnation of a process."""

    def __init__(
        self,
        world: World,
        network: Network,
        plan: ClusterPlan,
        own: TimersPlan,
        shared: Shared,
        name: str,
        incarnation: int = 0,
    ) -> None:
        super().__init__(world, network, plan, name)
        self.random = random.Random(f"timers of {name} {incarnation} {world.seed}")
        self._own = own
        self._shared = shared
        self._incarnation = incarnation

    async def _live(self) -> None:
        brokers = [f"b{i}" for i in range(self._plan.brokers)]
        self.random.shuffle(brokers)
        settings = ClientSettings(timeout_s=15.0, attempt_timeout_s=self._plan.request_timeout_s)
        connector = self._network.connector(self.name, self._plan.request_timeout_s)
        sources = self._world.sources(f"{self.name} {self._incarnation}", clock=self.name)
        self.client = Client(connector, brokers[:2], settings, sources)
        await self.work()
        try:
            await self.client.close()
        except LedgerMQError as error:
            self._world.note(self.name, f"close: {error.message[:100]}")
        self._world.note(self.name, "has ended")

    def store_now_us(self) -> int:
        """The store's time, which the client itself does not know."""
        return self._world.store.now_us()

    def stored_objects(self) -> int:
        return len(self._world.store.first)

    def _producer(self) -> Producer:
        return self.client.producer(
            linger_ms=self._plan.linger_ms,
            compression=self._plan.compression,
            delivery_timeout_s=self._plan.delivery_timeout_s,
            request_timeout_s=self._plan.request_timeout_s,
        )

    def _send(self, producer: Producer, topic: str, number: int) -> tuple[Sent, Delivery] | None:
        """Send one message, mostly timed, that is due whenever; None: it was refused at once."""
        value = f"{PREFIX}{self.name}/{self._incarnation}/{self.next_value()}"
        partition = self.partition(topic, number)
        ahead_s = self._draw_ahead_s()
        op = self._world.history.begin_produce(self.name, partition, (value,), ordered=False)
        sent = Sent(value, partition, op)
        self._shared.sent.append(sent)
        try:
            if ahead_s >= 0 and self.random.random() < 0.3:
                delivery = producer.send(topic, value, key=value, partition=number, delay=ahead_s)
            else:
                due = EPOCH + timedelta(microseconds=self.store_now_us() + round(ahead_s * SECOND_US))
                delivery = producer.send(topic, value, key=value, partition=number, deliver_at=due)
        except (ResourceExhausted, InvalidRecord) as error:
            self._world.coverage.saw(f"a timed send was refused at once: {error.code}")
            self._told(sent, Outcome.FAIL, error.message)
            return None
        return sent, delivery

    def _draw_ahead_s(self) -> float:
        if self.random.random() < 0.01:
            return HORIZON_S * self.random.choice((3, 1)) + 3600.0  # refused
        return ahead_s_of(self.random, self._own, self.store_now_us())

    async def _await(self, sent: Sent, delivery: Delivery) -> bool:
        """Return whether it is stored."""
        try:
            result = await delivery
        except LedgerMQError as error:
            self._world.coverage.saw(f"a timed send failed: {type(error).__name__}")
            self._world.judge_error(error)
            self._told(sent, fate_of(error), error.message)
            return False
        assert result.handle is not None, result
        sent.due_us, sent.handle = result.timestamp_us, result.handle
        self._told(sent, Outcome.OK)
        self._shared.stored.append(sent)
        return True

    def _told(self, sent: Sent, outcome: Outcome, why: str = "") -> None:
        """Note the fate. An acknowledgement names no offset in the topic."""
        sent.told, sent.told_moment = outcome, self.stored_objects()
        self._world.history.end_produce(sent.op, Outcome.FAIL if outcome is Outcome.FAIL else Outcome.INFO, why=why)

    async def _recall(self, sent: Sent) -> None:
        try:
            outcome = await self.client.recall(sent.handle)
        except UnknownTopic:
            self._world.coverage.saw("a recall was refused: its topic was removed")
            return
        except LedgerMQError as error:
            self._world.coverage.saw(f"a recall failed: {type(error).__name__}")
            self._world.judge_error(error)
            self._world.note(self.name, f"recall of {sent.value}: {type(error).__name__} {error.message[:100]}")
            return
        self._world.note(self.name, f"recall of {sent.value}: {outcome}")
        if any(told.outcome is RecallOutcome.RECALLED for told in sent.recalls):
            self._world.coverage.saw(f"a repeated recall was told: {outcome}")
        sent.recalls.append(Recall(outcome, self.stored_objects(), self.store_now_us()))


class TimedSender(TimersClient):
    """Sends batches of mixed due times to all topics; recalls some messages as soon as they are acknowledged."""

    async def work(self) -> None:
        producer = self._producer()
        async with asyncio.TaskGroup() as group:
            while not self.stopped.is_set():
                topic, number = self.random.choice(TOPICS), self.random.randrange(PARTITIONS)
                for _ in range(self.random.randint(1, self._own.batch)):
                    begun = self._send(producer, topic, number)
                    if begun is not None:
                        group.create_task(self._follow(*begun))
                await asyncio.sleep(self.random.expovariate(self._plan.records_s / 2))

    async def _follow(self, sent: Sent, delivery: Delivery) -> None:
        if await self._await(sent, delivery) and self.random.random() < 0.05:
            await self._recall(sent)


class Recaller(TimersClient):
    """Recalls messages of all senders: the latest, one that is due about now, one that was recalled before."""

    async def work(self) -> None:
        while not self.stopped.is_set():
            await asyncio.sleep(self.random.expovariate(self._own.recalls_s))
            if self._shared.stored:
                await self._recall(self._choose())
                if self.random.random() < 0.3:
                    await self._recall_as_another(self._choose())

    async def _recall_as_another(self, sent: Sent) -> None:
        """Recall it as a message of another topic of its bundle: it stays."""
        request = request_of(sent.handle)
        try:
            topics = {name: await self.client.describe_topic(name) for name in TOPICS}
            own = topics.pop(request.topic, None)
            places = [
                (found, part.partition)
                for found in topics.values()
                for part in found.partitions
                if own is not None and part.bundle == own.partitions[request.partition].bundle
            ]
            if not places:
                return
            found, request.partition = self.random.choice(places)
            request.topic, request.topic_id = found.name, found.topic_id
            outcome = await self.client.recall(handle_of(request))
        except LedgerMQError as error:
            self._world.coverage.saw(f"a recall by a guess failed: {type(error).__name__}")
            self._world.judge_error(error)
            return
        self._world.coverage.saw(f"a recall by a guess was told: {outcome}")

    def _choose(self) -> Sent:
        stored, r = self._shared.stored, self.random
        kind = r.random()
        if kind < 0.3:
            return r.choice(stored[-5:])
        if kind < 0.7:
            now_us = self.store_now_us()
            return min(stored, key=lambda sent: abs(sent.due_us - now_us - 100_000))
        if kind < 0.9 and (again := [sent for sent in stored if sent.recalls]):
            return r.choice(again)
        return r.choice(stored)


class TimersChurner(TimersClient):
    """Creates a topic, sends timed messages to it, recalls some, removes it, and begins again under its name."""

    async def work(self) -> None:
        while not self.stopped.is_set():
            try:
                await self._generation()
            except LedgerMQError as error:
                self._world.note(self.name, f"{type(error).__name__}: {error.message[:100]}")
            await asyncio.sleep(self.random.uniform(0.1, 2.0))

    async def _generation(self) -> None:
        topic = TEMPORARY
        try:
            made = await self.client.create_topic(topic, 2, {"parquet.max.lag.ms": 500, "parquet.target.bytes": 1024})
            self._world.coverage.saw("a topic was created")
        except TopicExists:
            made = await self.client.describe_topic(topic)
        before = self._world.topic_ids.get(topic, made.topic_id)
        if before != made.topic_id:
            self._world.freed.add(before)
        self._world.topic_ids[topic] = made.topic_id
        producer = self._producer()
        begun = [self._send(producer, topic, self.random.randrange(2)) for _ in range(self.random.randrange(30))]
        stored = [each[0] for each in begun if each is not None and await self._await(*each)]
        await asyncio.sleep(self.random.uniform(0, 2.0))
        for sent in self.random.sample(stored, min(2, len(stored))):
            await self._recall(sent)
        await producer.abort()
        try:
            await self.client.delete_topic(topic)
            self._world.coverage.saw("a topic was deleted")
        except UnknownTopic:
            self._world.coverage.saw("a topic was deleted twice")


class _Delaying(TransactionalClient):
    """Most records of its transactions are timed messages."""

    outputs = TOPICS

    def __init__(self, timers: TimersPlan, *about: Any) -> None:
        super().__init__(*about)
        self._timers = timers

    def _send(
        self, transaction: Transaction | TwoPhase, sent: SentTogether, topic: str, number: int, value: str
    ) -> None:
        if self.random.random() < 0.3:
            super()._send(transaction, sent, topic, number, value)
            return
        value, now_us = f"{PREFIX}{value}", self._world.store.now_us()
        ahead_s = ahead_s_of(self.random, self._timers, now_us)
        self._note_send(sent, topic, number, value)
        if ahead_s >= 0 and self.random.random() < 0.3:
            transaction.send(topic, value, key=value, partition=number, delay=ahead_s)
        else:
            due = EPOCH + timedelta(microseconds=now_us + round(ahead_s * SECOND_US))
            transaction.send(topic, value, key=value, partition=number, deliver_at=due)


class TimedTransactor(_Delaying, Transactor):
    """Sends timed messages and others, all or nothing."""


class TimedManager(_Delaying, Manager):
    """Prepares branches with timed messages."""


class Looker(TimersClient):
    """Tries to read hidden topics, and lists what waits."""

    async def work(self) -> None:
        while not self.stopped.is_set():
            await asyncio.sleep(self.random.uniform(1.0, 5.0))
            await self._look(self.random.choice((keys.DELAYED_TOPIC, keys.DELAYED_FAR_TOPIC)))
            await self._list()

    async def _look(self, topic: str) -> None:
        try:
            ends = await self.client.list_offsets(topic, "earliest")
        except LedgerMQError as error:
            self._world.coverage.saw(f"offsets of a hidden topic were asked for: {error.code}")
        else:
            self._report(f"was told offsets of {topic}: {ends}")
        consumer = self.client.consumer(topic, start="earliest", request_timeout_s=self._plan.request_timeout_s)
        try:
            if messages := await consumer.fetch(10, timeout=1.0):
                self._report(f"was given {messages[0]} of {topic}")
        except LedgerMQError as error:
            self._world.coverage.saw(f"a hidden topic was read: {error.code}")
        finally:
            await consumer.close()

    async def _list(self) -> None:
        try:
            found = await self.client.list_delayed(messages_max=self.random.choice((0, 3, 100)))
        except LedgerMQError as error:
            self._world.judge_error(error)
            return
        self._world.coverage.saw("waiting messages were listed", len(found.messages))
        for bundle in found.bundles:
            if bundle.delivered_to is not None and bundle.delivered_to > EPOCH + timedelta(
                microseconds=self.store_now_us()
            ):
                self._report(f"was told that {bundle} had delivered what is not due yet")

    def _report(self, text: str) -> None:
        self._world.violations.append(Violation("hidden data shown", f"{self.name} {text}"))
