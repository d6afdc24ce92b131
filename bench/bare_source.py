"""A Python data source that only reads Parquet files and hands them to Spark, all columns: what a source in
Python can reach at most.

It plans a task for each file and does nothing else: no ledger, no checks, no offsets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

BATCH_ROWS = 64 * 1024


class BareSource(DataSource):
    """The option `path`: a folder of Parquet files."""

    @classmethod
    def name(cls) -> str:
        return "bare"

    def schema(self) -> StructType:
        return from_arrow_schema(pq.read_schema(_files(self.options["path"])[0]))

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(self.options["path"])


class _Reader(DataSourceReader):
    def __init__(self, folder: str) -> None:
        self._folder = folder

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(str(file)) for file in _files(self._folder)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        with pq.ParquetFile(partition.value) as file:
            yield from file.iter_batches(BATCH_ROWS)


def _files(folder: str) -> list[Path]:
    return sorted(Path(folder).rglob("*.parquet"))
