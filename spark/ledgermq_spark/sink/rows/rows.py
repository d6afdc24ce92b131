"""Convert Spark's Arrow batches to rows of the record schema, each run of them for one partition.
It works on whole columns, without Python code per row.

Invariant: rows of one partition keep their order. Rows that a topic does not accept are refused
here, before anything is sent or decided. The error names row, column and bounds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ledgermq.client.connection.routing import TopicRoute
from ledgermq.client.producing.arrow.rows import conform
from ledgermq.client.settings.partitioner import partitions_of_keys
from ledgermq.errors import (
    InvalidRecord,
    InvalidTopicName,
    MessageTooLarge,
    PublishNotAccepted,
    UnknownPartition,
    UnknownTopic,
)
from ledgermq.protocol.batches.records import record_bytes
from ledgermq.sources import Sources
from ledgermq_spark.sink.rows.columns import PASSED_OVER

FindTopic = Callable[[str, bool], Awaitable[TopicRoute]]
"""(name, ask brokers again). Raises UnknownTopic."""


@dataclass(frozen=True, slots=True)
class Routed:
    """Rows of the record schema for one partition."""

    topic: TopicRoute
    partition: int
    rows: pa.RecordBatch


class RowRouter:
    """Router of one task. `topic`: the option, which overrides the column."""

    def __init__(self, topic: str, find_topic: FindTopic, sources: Sources) -> None:
        self._topic = topic
        self._find_topic = find_topic
        self._sources = sources
        self._row = 0
        """Number of the task's row, from 0: the first of the current batch."""
        self._turn = sources.random.randrange(1 << 30)

    async def route(self, batch: pa.RecordBatch) -> Iterator[Routed]:
        """Yield the parts of a batch, each made on demand: a batch may be for thousands of
        partitions, and each part takes kilobytes, whatever it holds.

        Raises InvalidRecord, MessageTooLarge, UnknownTopic, UnknownPartition, PublishNotAccepted;
        nothing is routed then.
        """
        if batch.num_rows == 0:
            return iter(())
        rows = self._conformed(batch)
        parts: list[tuple[TopicRoute, int, npt.NDArray[np.int64]]] = []
        for name, chosen in self._by_topic(batch):
            found = await self._topic_of(name, chosen)
            self._check_keys(found, rows, chosen)
            self._check_sizes(found, rows, chosen)
            self._check_times(found, rows, chosen)
            partitions = await self._partitions(found, batch, rows, chosen)
            parts += [(partitions.topic, number, part) for number, part in _groups(partitions.numbers, chosen)]
        self._row += batch.num_rows
        self._turn += 1
        return (Routed(topic, number, _take(rows, part)) for topic, number, part in parts)

    def _conformed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        names = [name for name in batch.schema.names if name not in ("topic", "partition", *PASSED_OVER)]
        columns = [batch.column(name) for name in names]
        try:
            return conform(pa.RecordBatch.from_arrays(columns, names=names), self._sources.now_us())
        except InvalidRecord as error:
            raise InvalidRecord(
                f"rows {self._row} to {self._row + batch.num_rows - 1} of this task: {error.message}"
            ) from error

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, npt.NDArray[np.int64]]]:
        if self._topic:
            yield self._topic, np.arange(batch.num_rows)
            return
        names = batch.column("topic")
        if names.null_count:
            row = int(pc.index(names.is_null(), True).as_py())
            raise InvalidRecord(
                f"row {self._row + row} of this task: column topic is null, and the option topic is not given"
            )
        coded = names.dictionary_encode()
        codes = coded.indices.to_numpy()
        for code, name in enumerate(coded.dictionary.to_pylist()):
            yield name, np.flatnonzero(codes == code)

    async def _topic_of(self, name: str, chosen: npt.NDArray[np.int64]) -> TopicRoute:
        where = "the option topic" if self._topic else f"row {self._row + chosen[0]} of this task, column topic"
        try:
            found = await self._find_topic(name, False)
        except (UnknownTopic, InvalidTopicName) as error:
            raise UnknownTopic(f"{where}: topic {name!r} does not exist") from error
        if name.startswith("__") or found.settings.get("accept.publish") == "false":
            raise PublishNotAccepted(
                f"{where}: topic {name!r} takes no records (it belongs to the system, or accept.publish = false)"
            )
        return found

    def _check_keys(self, topic: TopicRoute, rows: pa.RecordBatch, chosen: npt.NDArray[np.int64]) -> None:
        if "compact" not in topic.settings.get("cleanup.policy", ""):
            return
        without = rows.column("key").is_null().to_numpy(zero_copy_only=False)[chosen]
        if without.any():
            row = int(chosen[int(without.argmax())])
            raise InvalidRecord(
                f"row {self._row + row} of this task: column key is null; topic {topic.name} is keyed (cleanup.policy)"
            )

    def _check_sizes(self, topic: TopicRoute, rows: pa.RecordBatch, chosen: npt.NDArray[np.int64]) -> None:
        most = topic.record_bytes_max
        if rows.nbytes <= most:
            return
        sizes = record_bytes(rows).to_numpy()[chosen]
        worst = int(sizes.argmax())
        if sizes[worst] > most:
            row = int(chosen[worst])
            parts = ", ".join(f"{name} {_bytes_of(rows, name, row)}" for name in ("key", "value"))
            raise MessageTooLarge(
                f"row {self._row + row} of this task has {sizes[worst]} bytes (columns {parts}, the rest is headers); "
                f"topic {topic.name} takes up to {most} (max.message.bytes)"
            )

    def _check_times(self, topic: TopicRoute, rows: pa.RecordBatch, chosen: npt.NDArray[np.int64]) -> None:
        """Refuse what brokers would: a decided micro-batch would wait for this time."""
        bounds = topic.timestamp_bounds
        if bounds is None:
            return
        times = rows.column("timestamp").cast(pa.int64()).to_numpy()[chosen]
        for at in (int(times.argmax()), int(times.argmin())):
            time_us = int(times[at])
            problem = bounds.problem(time_us, time_us, self._sources.now_us(), "this machine's time", topic.name)
            if problem is not None:
                raise InvalidRecord(f"row {self._row + int(chosen[at])} of this task: column timestamp is {problem}")

    async def _partitions(
        self, topic: TopicRoute, batch: pa.RecordBatch, rows: pa.RecordBatch, chosen: npt.NDArray[np.int64]
    ) -> _Partitions:
        given = batch.column("partition") if "partition" in batch.schema.names else None
        if given is not None and given.null_count < len(given):
            topic = await self._reaching(topic, given, chosen)
        keys = rows.column("key")
        if keys.null_count == len(keys):
            numbers = np.full(len(chosen), self._turn % topic.partitions, np.int64)
        else:
            hashed = partitions_of_keys(keys, topic.partitions).fill_null(self._turn % topic.partitions)
            numbers = hashed.to_numpy().astype(np.int64)[chosen]
        if given is not None and given.null_count < len(given):
            wanted = given.cast(pa.int64()).fill_null(-1).to_numpy()[chosen]
            is_given = given.is_valid().to_numpy(zero_copy_only=False)[chosen]
            numbers = np.where(is_given, wanted, numbers)
        return _Partitions(topic, numbers)

    async def _reaching(self, topic: TopicRoute, given: pa.Array, chosen: npt.NDArray[np.int64]) -> TopicRoute:
        """Return the topic as it is known; request it again if a row names an unknown partition."""
        for again in (False, True):
            if again:
                topic = await self._find_topic(topic.name, True)
            wanted = given.cast(pa.int64()).fill_null(0).to_numpy()[chosen]
            wrong = np.flatnonzero((wanted < 0) | (wanted >= topic.partitions))
            if not len(wrong):
                return topic
        row = int(chosen[wrong[0]])
        raise UnknownPartition(
            f"row {self._row + row} of this task: column partition is {wanted[wrong[0]]}; "
            f"topic {topic.name} has the partitions 0 to {topic.partitions - 1}"
        )


@dataclass(frozen=True, slots=True)
class _Partitions:
    """`numbers`: of each chosen row."""

    topic: TopicRoute
    numbers: npt.NDArray[np.int64]


def _groups(
    numbers: npt.NDArray[np.int64], chosen: npt.NDArray[np.int64]
) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    order = np.argsort(numbers, kind="stable")
    found, starts = np.unique(numbers[order], return_index=True)
    for number, part in zip(found, np.split(chosen[order], starts[1:]), strict=True):
        yield int(number), part


def _take(rows: pa.RecordBatch, chosen: npt.NDArray[np.int64]) -> pa.RecordBatch:
    if len(chosen) == rows.num_rows:
        return rows
    if chosen[-1] - chosen[0] + 1 == len(chosen):
        return lean(rows.slice(int(chosen[0]), len(chosen)))
    return rows.take(pa.array(chosen))


def lean(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Copy a slice that is a small part of what it was cut from, because a slice keeps all of that
    in memory.
    """
    return rows if 2 * rows.nbytes >= rows.get_total_buffer_size() else rows.take(pa.array(np.arange(rows.num_rows)))


def _bytes_of(rows: pa.RecordBatch, name: str, row: int) -> int:
    return int(pc.binary_length(rows.column(name)[row]).as_py() or 0)
