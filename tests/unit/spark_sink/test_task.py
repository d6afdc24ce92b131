"""What a task that sends at once has on its way is bounded, however small its batches are."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from types import SimpleNamespace
from typing import Any, Self

import pyarrow as pa
import pytest

import ledgermq
from ledgermq_spark.sink.options import SinkOptions
from ledgermq_spark.sink.rows.collecting import PART_BYTES
from ledgermq_spark.sink.task import send


class SlowBrokers:
    """In the place of a client and its producer: a batch is stored once the task waits for it."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.sent: list[int] = []
        self.on_way = 0
        self.most_on_way = 0

    async def describe_topic(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(topic_id=1, partitions=range(self.partitions), settings={"max.message.bytes": "1000"})

    def producer(self, **_: object) -> SlowBrokers:
        return self

    async def send_batch(self, topic: str, rows: pa.RecordBatch, *, partition: int) -> SlowDelivery:
        self.sent.append(partition)
        self.on_way += 1
        self.most_on_way = max(self.most_on_way, self.on_way)
        return SlowDelivery(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


class SlowDelivery:
    def __init__(self, brokers: SlowBrokers) -> None:
        self._brokers = brokers
        self.batches = [SimpleNamespace(outcome=SimpleNamespace(settled=False))]

    def __await__(self) -> Generator[Any, None, None]:
        self._brokers.on_way -= 1
        self.batches[0].outcome.settled = True
        yield


def test_small_batches_on_their_way_are_bounded_by_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = SlowBrokers(1000)
    monkeypatch.setattr(ledgermq, "connect", lambda *_, **__: brokers)
    rows = pa.record_batch({"value": pa.array([b"x"] * 1000), "partition": pa.array(range(1000))})
    sent = asyncio.run(send(SinkOptions("a:1", topic="t", buffer_bytes_max=20 * PART_BYTES), iter([rows])))
    assert sent.records == 1000
    assert sorted(brokers.sent) == list(range(1000))
    assert (brokers.on_way, brokers.most_on_way) == (0, 21)
