"""Readers of the Spark source without Spark, for queries that give no schema of their own."""

from __future__ import annotations

from ledgermq_spark.source.batch import BatchReader
from ledgermq_spark.source.data_source import LedgerMQDataSource
from ledgermq_spark.source.streaming.stream import StreamReader


def batch_reader(options: dict[str, str]) -> BatchReader:
    source = LedgerMQDataSource(options)
    return source.reader(source.schema())


def stream_reader(options: dict[str, str]) -> StreamReader:
    source = LedgerMQDataSource(options)
    return source.streamReader(source.schema())
