"""Records that are produced through the published ports all the while something is broken, and the
proof that each is there once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

import ledgermq
from ledgermq import Producer
from tests.worlds.consumed import read_values

PARTITIONS = 4
PAUSE_S = 0.01
MORE_S_MAX = 180.0


class Traffic:
    """`sent`: values by partition in their order, all of which are acknowledged once `traffic_on`
    has ended.
    """

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.sent: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
        self.acked = 0
        self.ended = asyncio.Event()
        self._more = asyncio.Condition()

    async def produce(self, producer: Producer) -> None:
        """Until `ended`. Raises what any record failed with."""
        async with asyncio.TaskGroup() as group:
            for number in count():
                if self.ended.is_set():
                    break
                partition, value = number % PARTITIONS, b"%d" % number
                delivery = producer.send(self.topic, value, partition=partition)
                place = len(self.sent[partition])
                self.sent[partition].append(value)
                group.create_task(self._acknowledged(delivery, partition, place))
                await asyncio.sleep(PAUSE_S)

    async def more(self, records: int = 200) -> None:
        """Until so many more are acknowledged."""
        wanted = self.acked + records
        async with asyncio.timeout(MORE_S_MAX), self._more:
            await self._more.wait_for(lambda: self.acked >= wanted)

    async def _acknowledged(self, delivery: ledgermq.Delivery, partition: int, place: int) -> None:
        result = await delivery
        assert (result.partition, result.offset) == (partition, place), (
            "an offset has two values, or one was stored twice"
        )
        async with self._more:
            self.acked += 1
            self._more.notify_all()


@asynccontextmanager
async def traffic_on(target: str, topic: str) -> AsyncIterator[Traffic]:
    """Everything that was sent is acknowledged at the end, and read exactly once, in order."""
    traffic = Traffic(topic)
    async with ledgermq.connect(target) as client:
        await client.create_topic(topic, PARTITIONS, {"parquet.max.lag.ms": 1000})
        async with client.producer() as producer, asyncio.TaskGroup() as group:
            group.create_task(traffic.produce(producer))
            await traffic.more(50)
            yield traffic
            traffic.ended.set()
        assert await read_values(client, topic) == traffic.sent
