"""Records for a topic whose partitions are not known yet: they wait, in order, for the brokers'
answer.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pyarrow as pa

from ledgermq.client.producing.batch import Batch
from ledgermq.client.producing.delivery import BatchResult, Delivery, Outcome, Refused, SendResult
from ledgermq.client.producing.topic_queues import TopicQueues
from ledgermq.client.record import ROW_OVERHEAD_BYTES, Row
from ledgermq.errors import InvalidConfig, LedgerMQError


class BatchDelivery:
    """Await it for the `BatchResult`s, one for each run of rows that travels together.

    Raises the first error among them.
    """

    def __init__(self, routed: Outcome) -> None:
        self._routed = routed
        self.batches: list[Batch] = []

    def __await__(self) -> Generator[Any, None, list[BatchResult]]:
        return self._result().__await__()

    async def _result(self) -> list[BatchResult]:
        await self._routed.wait()
        self._routed.raise_error()
        for batch in self.batches:
            await batch.outcome.wait()
        for batch in self.batches:
            batch.outcome.raise_error()
        return [
            BatchResult(batch.topic, batch.partition, batch.base_offset, batch.record_count) for batch in self.batches
        ]


class Unrouted:
    """The place of records until they have a better one. `release(bytes)` gives back what a refused
    record held; `note(outcome)` keeps a failure for the next flush."""

    def __init__(self, topic: str, release: Callable[[int], None], note: Callable[[Outcome], None]) -> None:
        self.topic = topic
        self.outcome = Outcome()
        self._release = release
        self._note = note
        self._enter: list[Callable[[TopicQueues], None]] = []
        self._held_bytes = 0
        self._arrow: list[Outcome] = []

    @property
    def record_count(self) -> int:
        """An Arrow batch counts as one."""
        return len(self._enter)

    def result(self, row: int) -> SendResult:
        raise AssertionError(f"row {row} is not in a batch yet")

    def add(self, row: Row, size: int, partition: int | None) -> Delivery:
        delivery = Delivery(self, 0)
        held = size + ROW_OVERHEAD_BYTES
        self._held_bytes += held

        def enter(topic: TopicQueues) -> None:
            try:
                moved = topic.add(row, size, partition)
            except Exception as error:  # a user's partitioner may raise anything
                delivery.place = Refused(typed(error))
                self._note(delivery.place.outcome)
                self._release(held)
            else:
                delivery.place, delivery.row = moved.place, moved.row

        self._enter.append(enter)
        return delivery

    def add_arrow(self, rows: pa.RecordBatch, buffer_bytes: int, partition: int | None) -> BatchDelivery:
        outcome = Outcome()
        delivery = BatchDelivery(outcome)
        self._held_bytes += buffer_bytes
        self._arrow.append(outcome)

        def enter(topic: TopicQueues) -> None:
            try:
                delivery.batches = topic.add_arrow(rows, buffer_bytes, partition)
            except Exception as error:  # as above
                outcome.settle(typed(error))
                self._note(outcome)
                self._release(buffer_bytes)
            else:
                outcome.settle()

        self._enter.append(enter)
        return delivery

    def routed(self, topic: TopicQueues) -> None:
        for enter in self._enter:
            enter(topic)
        self._enter = []
        self.outcome.settle()

    def failed(self, error: LedgerMQError) -> None:
        self._enter = []
        self._release(self._held_bytes)
        self.outcome.settle(error)
        self._note(self.outcome)
        for outcome in self._arrow:
            outcome.settle(error)


def typed(error: Exception) -> LedgerMQError:
    if isinstance(error, LedgerMQError):
        return error
    return InvalidConfig(f"the partitioner raised {type(error).__name__}: {error}")
