"""Implement the streaming half of the data source: `spark.readStream.format("ledgermq")`.

Spark keeps one reader in a process beside the driver for as long as the query runs, and calls it
for the latest position (`latestOffset`) and the tasks of a batch (`partitions`). It sends copies of
another reader, which has only options, to the executors (`read`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from ledgermq_spark.source.batch import TaskPartition, read_ranges
from ledgermq_spark.source.options import SourceOptions
from ledgermq_spark.source.streaming.driver import Driver
from ledgermq_spark.source.streaming.positions import decode, encode
from ledgermq_spark.source.typed import is_typed
from ledgermq_spark.worker import drain


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`options.root` is a root URL. Picklable before its first call in the driver."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._opened: Driver | None = None

    @property
    def _driver(self) -> Driver:
        if self._opened is None:
            self._opened = Driver(self.options)
        return self._opened

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return encode(self._driver.first())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        rows_max = self.options.offsets_per_trigger_max
        return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the latest position; waits a little if it was called a moment ago."""
        begin = decode(start)
        self._driver.reached(begin)
        return encode(self._driver.next(begin, limit.max_rows if isinstance(limit, ReadMaxRows) else None))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._driver.stop_at_latest()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return None if self._opened is None else encode(self._opened.latest())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        tasks = self._driver.ranges(decode(start), decode(end))
        subjects = self._driver.subjects(tasks) if is_typed(self.options) else {}
        return [TaskPartition(ranges, subjects=subjects) for ranges in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a task, in an executor, in its worker's event loop."""
        assert isinstance(partition, TaskPartition)
        return drain(read_ranges(self.options, partition))

    def commit(self, end: dict[str, Any]) -> None:
        self._driver.reached(decode(end))

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None
