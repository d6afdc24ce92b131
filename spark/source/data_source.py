"""`spark.read.format("ledgermq")`: topics as rows, straight from the store, compacted or not, with no broker running."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from ledger.commands.root import root_url
from ledgermq.errors import InvalidConfig
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
        """A `schema` of the query's own has to be ours. Raises InvalidConfig."""
        options = parse_options(self.options)
        return BatchReader(replace(options, root=shared_root(options.root)))


def shared_root(root: str) -> str:
    """The URL by which executors, whose working folder is another one, reach the root. Raises InvalidConfig."""
    url = root_url(root)
    if url.startswith("memory:"):
        raise InvalidConfig(f"root {root!r}: Spark's executors are other processes and cannot see it")
    return url
