"""Topics that are deleted and brought back while brokers take over, clocks jump, and compactors run.

regretted   is deleted and brought back again and again, always within its grace: from each answer to a deletion
            on nothing of it goes, and at the end all of its records are there
fleeting    its grace is so short that some deletions become final: what comes back has all of its records, and
            what does not is never seen again. In half of the runs it is asked back just when it is removed for good.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from ledgermq.client.messages.descriptions import TopicDescription
from ledgermq.client.producing.producer import Producer
from ledgermq.errors import LedgerMQError, TopicBeingDeleted, TopicExists, UnknownTopic
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import Connection
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.runner import compact_root
from ledgermq_ledger.topics.topic import topic_key
from tests.judges.violation import Violation
from tests.simulation.cluster_clients import PARTITIONS, SimulatedClient, fate_of
from tests.simulation.cluster_plan import cluster_plan_of
from tests.simulation.growth_watch import Batch
from tests.simulation.history import Outcome
from tests.simulation.stored_segments import StoredSegment

REGRETTED, FLEETING = "regretted", "fleeting"
GRACE_MS = 1800 * 1000
"""Longer than a run, and less than clocks jump."""
FLEETING_MS = 2500
REMOVED_S_MAX = 4 * FLEETING_MS / 1000
SLOW_S_MAX, SLOW_FOR_S, LATE_CALL_S = 0.5, 3.0, 10.0
LATE_S = 90.0
"""A request of before the healing has arrived by then."""


def regrets(seed: int) -> bool:
    return random.Random(f"topics brought back {seed}").random() < 0.35


def comes_too_late(seed: int) -> bool:
    """Return whether the fleeting topic is asked back only when it was removed for good, and just then."""
    return regrets(seed) and random.Random(f"asked back too late {seed}").random() < 0.5


def judge_removals(batches: Iterable[Batch]) -> list[Violation]:
    """Judge by the records of `__metadata` that a topic that was removed for good stays removed (design D11)."""
    removed: set[int] = set()
    found = []
    for record in (record for batch in batches for record in batch):
        if record.state == fmt.REMOVED:
            removed.add(record.topic_id)
        elif record.topic_id in removed:
            text = f"topic {record.name} with the id {record.topic_id} came back after it was removed for good"
            found.append(Violation("removed topic came back", text))
    return found


AHEAD_US = (GRACE_MS + 600_000) * 1000


def clocks_jump(seed: int) -> bool:
    """Return whether the clocks of all brokers are ahead by more than a grace while the topic is deleted."""
    return regrets(seed) and not cluster_plan_of(seed).is_s3 and random.Random(f"clocks jump {seed}").random() < 0.5


async def send_one(client: SimulatedClient, producer: Producer, topic: str, number: int) -> set[str]:
    """Send a record, and note its fate. Return its value if it is stored."""
    value, history = client.next_value(), client._world.history
    op = history.begin_produce(client.name, client.partition(topic, number), (value,))
    try:
        result = await producer.send(topic, value, partition=number)
    except LedgerMQError as error:
        history.end_produce(op, fate_of(error), why=error.message)
        return set()
    history.end_produce(op, Outcome.OK, result.offset)
    return {value}


def outlives_its_records(seed: int) -> bool:
    """Return whether the topic stays deleted at the end until its retention has passed."""
    return regrets(seed) and random.Random(f"longer than its retention {seed}").random() < 0.5


class Regretter(SimulatedClient):
    """Deletes a topic, and brings it back within its grace."""

    _may_be_undeleted = False
    """A request to bring it back has no answer: it may still arrive, however late."""

    async def work(self) -> None:
        while not self.stopped.is_set():
            await asyncio.sleep(self.random.uniform(0.5, 4.0))
            await self._try_to_delete()
            with self._clocks_ahead():
                await asyncio.sleep(self.random.uniform(0.0, 6.0))
            await self._undelete()
        await asyncio.sleep(LATE_S)
        self._may_be_undeleted = not await self._undelete()
        if outlives_its_records(self._world.seed) and not self._may_be_undeleted and not self._world.has_failed:
            await self._outlive_its_records()
        while self._may_be_undeleted and not await self._undelete():
            await asyncio.sleep(0.5)

    async def _outlive_its_records(self) -> None:
        """Leave the topic deleted, with all well, until its records are too old for its retention: none of them goes.
        What was sent last is put into Parquet meanwhile.
        """
        world = self._world
        async with self.client.producer(delivery_timeout_s=30.0) as producer:
            for number in range(PARTITIONS):
                await send_one(self, producer, REGRETTED, number)
        await self._try_to_delete()
        await asyncio.sleep(int(self._plan.topic_settings[REGRETTED]["retention.ms"]) / 1000 + 1.0)
        sources = world.sources("compaction of what is deleted")
        for _ in range(2):  # retention judges the files of the round before
            await compact_root(world.line("compaction of what is deleted"), sources, LocalEngine(sources, run_inline))
        world.coverage.saw("a deleted topic was older than its retention")
        while not await self._undelete():
            await asyncio.sleep(0.5)

    @contextmanager
    def _clocks_ahead(self) -> Iterator[None]:
        world = self._world
        brokers = [f"b{number}" for number in range(self._plan.brokers)]
        jumps = clocks_jump(world.seed) and not world.healed
        for name in brokers if jumps else ():
            world.skew_us[name] += AHEAD_US
        yield
        for name in brokers if jumps and not world.healed else ():  # healing has set them right
            world.skew_us[name] -= AHEAD_US

    async def _try_to_delete(self) -> None:
        try:
            await self._delete()
        except LedgerMQError as error:
            self._world.note(self.name, f"delete: {type(error).__name__}: {error.message[:100]}")

    async def _delete(self) -> None:
        topic = await self.client.describe_topic(REGRETTED)
        if await self.client.delete_topic(REGRETTED) is None:
            return  # an earlier attempt has deleted it
        self._world.coverage.saw("a topic was deleted with a grace")
        if not self._may_be_undeleted:
            self._world.retention.hold(topic.topic_id, tuple(part.bundle for part in topic.partitions))

    async def _undelete(self) -> bool:
        self._world.retention.let_go(self._world.topic_ids[REGRETTED])
        before, self._may_be_undeleted = self._may_be_undeleted, True
        try:
            back = await self.client.undelete_topic(REGRETTED)
        except (UnknownTopic, TopicBeingDeleted) as error:
            self._world.violations.append(Violation("deleted within its grace", error.message))
            return True
        except LedgerMQError as error:
            self._world.note(self.name, f"undelete: {type(error).__name__}: {error.message[:100]}")
            return False
        self._may_be_undeleted = before
        self._world.coverage.saw("a topic was brought back")
        if back.topic_id != self._world.topic_ids[REGRETTED]:
            text = f"it has the id {back.topic_id}, it had {self._world.topic_ids[REGRETTED]}"
            self._world.violations.append(Violation("another topic was brought back", text))
        return True


class Waverer(SimulatedClient):
    """Deletes a topic, and tries to bring it back when its grace may be over."""

    _is_removed: asyncio.Event | None = None
    """Set once a record that removes the topic for good is put, in runs that wait for it."""

    async def work(self) -> None:
        sent: set[str] = set()
        if comes_too_late(self._world.seed):
            self._is_removed = asyncio.Event()
            self._world.store.on_metadata = self._note_removal
        topic_id = 0
        while not self.stopped.is_set():
            try:
                topic = await self._made()
                if topic.topic_id != topic_id:
                    topic_id, sent = topic.topic_id, set()
                    self._world.topic_ids[FLEETING] = topic_id
                await self._write(sent)
                if self._is_removed is not None:
                    self._is_removed.clear()
                await self.client.delete_topic(FLEETING)
                await self._waver()
                await self._bring_back(topic_id, sent)
            except LedgerMQError as error:
                self._world.note(self.name, f"{type(error).__name__}: {error.message[:100]}")
            await asyncio.sleep(self.random.uniform(0.2, 2.0))

    async def _waver(self) -> None:
        if self._is_removed is None:
            await asyncio.sleep(self.random.uniform(0.0, 2 * FLEETING_MS / 1000))
            return
        try:
            async with asyncio.timeout(REMOVED_S_MAX):
                await self._is_removed.wait()
        except TimeoutError:
            return
        self._world.coverage.saw("a topic was asked back just when it was removed for good")
        self._world.loop.in_world(self._slow_store())
        request = pb.UndeleteTopicRequest(name=FLEETING, topic_id=self._world.topic_ids[FLEETING])
        connector = self._network.connector(f"{self.name} late", LATE_CALL_S)
        lines = [connector.connect(f"b{number}") for number in range(self._plan.brokers)]
        # As a program would that has looked the topic up while it could be brought back.
        await asyncio.gather(*(self._ask_back(line, request) for line in lines))

    async def _ask_back(self, line: Connection, request: pb.UndeleteTopicRequest) -> None:
        with suppress(LedgerMQError):
            await line.undelete_topic(request)

    async def _slow_store(self) -> None:
        """Let the collection of the topic take seconds, so that the request comes before the name is free."""
        world, faults = self._world, self._world.weather.faults
        world.weather.faults = slow = replace(faults, delay_s_max=SLOW_S_MAX)
        await asyncio.sleep(SLOW_FOR_S)
        if world.weather.faults is slow:  # healing sets others
            world.weather.faults = faults

    def _note_removal(self, segment: StoredSegment) -> None:
        """Note a segment of `__metadata`, whether it will count or not."""
        assert self._is_removed is not None
        for _, key, value in segment.records():
            if key == topic_key(FLEETING) and value and fmt.TopicRecord.FromString(value).state == fmt.REMOVED:
                self._world.note(self.name, f"topic {FLEETING} is removed for good")
                self._is_removed.set()

    async def _made(self) -> TopicDescription:
        settings = {"parquet.max.lag.ms": 500, "parquet.target.bytes": 1024, "topic.delete.grace.ms": FLEETING_MS}
        try:
            return await self.client.create_topic(FLEETING, 1, settings)
        except TopicExists:
            return await self.client.undelete_topic(FLEETING)

    async def _write(self, sent: set[str]) -> None:
        async with self.client.producer(delivery_timeout_s=10.0, request_timeout_s=2.0) as producer:
            for _ in range(self.random.randrange(1, 6)):
                sent |= await send_one(self, producer, FLEETING, 0)

    async def _bring_back(self, topic_id: int, sent: set[str]) -> None:
        try:
            back = await self.client.undelete_topic(FLEETING)
        except (UnknownTopic, TopicBeingDeleted):
            self._world.coverage.saw("a grace was over")
            return
        if back.topic_id != topic_id:
            return
        end = (await self.client.list_offsets(FLEETING, "latest"))[0]
        consumer = self.client.consumer(FLEETING, start={0: 0}, request_timeout_s=2.0)
        found: set[str] = set()
        try:
            while consumer.positions()[next(iter(consumer.positions()))] < end if consumer.positions() else True:
                messages = await consumer.fetch(100, timeout=5.0)
                if not messages:
                    return  # the network is cut, or so
                found |= {message.value.decode() for message in messages if message.value is not None}
        finally:
            await consumer.close()
        self._world.coverage.saw("a topic was read after it was brought back")
        if missing := sent - found:
            text = f"topic {topic_id} is back without {len(missing)} of its records: {sorted(missing)[:5]}"
            self._world.violations.append(Violation("brought back without its records", text))
