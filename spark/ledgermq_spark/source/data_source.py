"""Implement the data source: `spark.read.format("ledgermq")` and `readStream` read topics as rows,
straight from the store, compacted or not, without a broker.

`df.write.format("ledgermq")` and `writeStream` write rows into topics, through brokers.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from ledgermq.errors import InvalidConfig
from ledgermq_ledger.typed.shape import VALUE_TYPED
from ledgermq_spark.shared_root import shared_root
from ledgermq_spark.sink.writers import batch_writer, stream_writer
from ledgermq_spark.source.batch import BatchReader
from ledgermq_spark.source.options import SourceOptions, parse_options
from ledgermq_spark.source.rows import schema, with_columns
from ledgermq_spark.source.streaming.servers import root_of
from ledgermq_spark.source.streaming.stream import StreamReader
from ledgermq_spark.source.typed import with_known_type


class LedgerMQDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "ledgermq"

    def schema(self) -> StructType:
        """Raises InvalidConfig, and for a query with `typed` what `with_known_type` raises."""
        options = parse_options(self.options)
        return schema(asyncio.run(with_known_type(_rooted(options))) if options.typed else options)

    def reader(self, schema: StructType) -> BatchReader:
        """Return the batch reader. `schema`: the source's own, or the columns that the query wants.

        Raises InvalidConfig, Unavailable.
        """
        return BatchReader(self._options(schema))

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
        """Return the stream reader, as `reader`; `endingOffsets` and `endingTimestamp` are refused,
        because a stream has no end.
        """
        if given := {"endingoffsets", "endingtimestamp"} & {name.lower() for name in self.options}:
            raise InvalidConfig(f"a stream has no end: {' and '.join(sorted(given))} cannot be given")
        options = self._options(schema)
        if options.include_archive:
            raise InvalidConfig("includeArchive is for batch queries: a stream begins at the log start")
        if options.cut:
            raise InvalidConfig("cut is for batch queries: nothing comes after a cut")
        return StreamReader(options)

    def _options(self, given: StructType) -> SourceOptions:
        """Return the options, with a root that executors can reach, and columns. Raises
        InvalidConfig, Unavailable.
        """
        options = _rooted(parse_options(self.options))
        if options.typed and VALUE_TYPED in given.fieldNames():
            options = asyncio.run(with_known_type(options))
        return with_columns(options, given)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the batch writer. Raises InvalidConfig, InvalidRecord."""
        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return the stream writer. Raises InvalidConfig, InvalidRecord."""
        return stream_writer(self.options, schema, overwrite)


def _rooted(options: SourceOptions) -> SourceOptions:
    root = options.root or asyncio.run(root_of(options.servers, options.connection))
    return replace(options, root=shared_root(root))
