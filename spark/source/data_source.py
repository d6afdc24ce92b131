"""`spark.read.format("ledgermq")`: topics as rows, straight from the store, compacted or not, with no broker running."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from spark.source.batch import BatchReader
from spark.source.options import parse_options
from spark.source.rows import schema


class LedgerMQDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "ledgermq"

    def schema(self) -> str:
        return schema(parse_options(self.options))

    def reader(self, schema: StructType) -> BatchReader:
        """A `schema` of the query's own has to be ours."""
        return BatchReader(parse_options(self.options))
