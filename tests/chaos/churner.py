"""Create a topic, write it, read everything back, delete it, and start again under the same name:
no old record may ever appear.
"""

from __future__ import annotations

import asyncio
import random

import ledgermq
from ledgermq.client.messages.descriptions import TopicDescription
from ledgermq.errors import LedgerMQError, OutcomeUnknown, TopicExists, UnknownTopic
from tests.chaos.workload import DELIVERY_S, READ_S, REQUEST_S, Workload, name_of
from tests.judges.violation import Violation
from tests.simulation.history import Gone, Outcome, Partition, Poll

PARTITIONS = 2
SETTINGS = {"parquet.target.bytes": 4096, "parquet.max.lag.ms": 1000}


class Churner:
    """Each topic of the name is another one in the history: its name carries its id."""

    def __init__(self, work: Workload, topic: str) -> None:
        self._work = work
        self._topic = topic
        self._random = random.Random(f"{topic} {work.seed}")
        self._number = 0
        self._gone: set[int] = set()

    async def run(self) -> None:
        async with self._work.connect() as client:
            while not self._work.stopped.is_set():
                made = await self._create(client)
                if made is None:
                    return
                if made.topic_id in self._gone:
                    text = f"{self._topic} has id {made.topic_id}, which was deleted"
                    self._work.violations.append(Violation("read after removal", text))
                history_name = f"{self._topic}#{made.topic_id}"
                for _ in range(self._random.randint(0, 3)):
                    await self._read_back(client, history_name, await self._fill(client, history_name))
                    await asyncio.sleep(self._random.expovariate(0.5))
                await self._delete(client, made.topic_id)

    async def _create(self, client: ledgermq.Client) -> TopicDescription | None:
        """None: the work was stopped before the name was free."""
        while not self._work.stopped.is_set():
            try:
                try:
                    made = await client.create_topic(self._topic, PARTITIONS, SETTINGS)
                except TopicExists:  # an earlier attempt, which was not answered
                    made = await client.describe_topic(self._topic)
            except LedgerMQError as error:
                self._work.told("creating", error)
                await asyncio.sleep(0.5)
            else:
                self._work.measures.events["topic created"] += 1
                return made
        return None

    async def _fill(self, client: ledgermq.Client, history_name: str) -> dict[Partition, int]:
        """By partition: the end of what was acknowledged."""
        ends: dict[Partition, int] = {}
        producer = client.producer(delivery_timeout_s=DELIVERY_S, request_timeout_s=REQUEST_S)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._random.randint(1, 40)):
                    group.create_task(self._send(producer, (history_name, self._random.randrange(PARTITIONS)), ends))
        finally:
            await producer.abort()
        return ends

    async def _send(self, producer: ledgermq.Producer, partition: Partition, ends: dict[Partition, int]) -> None:
        self._number += 1
        name = f"{self._topic}.{self._number}"
        op = self._work.history.begin_produce(partition[0], partition, (name,), ordered=False)
        try:
            result = await producer.send(self._topic, f"{name}|".encode(), partition=partition[1])
        except LedgerMQError as error:
            self._work.told("a send to a topic that comes and goes", error)
            self._work.history.end_produce(
                op, Outcome.INFO if isinstance(error, OutcomeUnknown) else Outcome.FAIL, why=error.message
            )
        else:
            self._work.history.end_produce(op, Outcome.OK, result.offset)
            ends[partition] = max(ends.get(partition, 0), result.offset + 1)

    async def _read_back(self, client: ledgermq.Client, history_name: str, ends: dict[Partition, int]) -> None:
        """From the earliest to the end of what was acknowledged."""
        self._number += 1
        reader = f"{history_name} reader {self._number}"
        consumer = client.consumer(self._topic, request_timeout_s=READ_S)
        at: dict[Partition, int] = {}
        try:
            while any(at.get(partition, 0) < end for partition, end in ends.items()):
                try:
                    messages = await consumer.fetch(500, timeout=1.0)
                except LedgerMQError as error:
                    self._work.told("a reader of a topic that comes and goes", error)
                    await asyncio.sleep(0.3)
                    continue
                for message in messages:
                    partition = (history_name, message.partition)
                    at[partition] = message.offset + 1
                    self._work.history.add(Poll(reader, partition, ((message.offset, name_of(message.value)),)))
        finally:
            await consumer.close()

    async def _delete(self, client: ledgermq.Client, topic_id: int) -> None:
        while True:
            try:
                await client.delete_topic(self._topic, now=True)
            except UnknownTopic:  # an earlier attempt, which was not answered
                pass
            except LedgerMQError as error:
                self._work.told("deleting", error)
                await asyncio.sleep(0.5)
                continue
            self._work.history.add(Gone(f"{self._topic}#{topic_id}"))
            self._gone.add(topic_id)
            self._work.measures.events["topic deleted"] += 1
            return
