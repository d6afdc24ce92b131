"""Implement the writers that Spark calls: in the driver to begin and to commit, in executors to
write. Delivery is exactly once by staging or by transactions, or at least once by sending.

A task reads its query and its micro-batch from the properties that Spark gives each job of a
streaming query. The query's id is in its checkpoint, so it is the same after a restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from ledgermq.client.transactions.two_phase.branch import SharedTransaction
from ledgermq.errors import InvalidConfig, LedgerMQError
from ledgermq.sources import Sources
from ledgermq_spark.sink import transactional
from ledgermq_spark.sink.driver import commit, discard
from ledgermq_spark.sink.options import SinkOptions, parse_options
from ledgermq_spark.sink.rows.columns import check_columns
from ledgermq_spark.sink.staged import Sent, Staged, StagedInTransaction
from ledgermq_spark.sink.task import send, stage

_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"

Messages = Sequence[WriterCommitMessage | None]


def batch_writer(given: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceWriter:
    """Return the writer of `df.write`. Raises InvalidConfig, InvalidRecord."""
    options = parse_options(given, streaming=False)
    check_columns(schema, options.topic)
    if overwrite:
        raise InvalidConfig('mode("overwrite"): a log is only appended to; use mode("append")')
    if options.delivery == "atLeastOnce":
        return SendingWriter(options)
    return TransactionalWriter(options) if options.transactional else StagingWriter(options)


def stream_writer(given: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
    """Return the writer of `df.writeStream`. Raises InvalidConfig, InvalidRecord."""
    options = parse_options(given, streaming=True)
    check_columns(schema, options.topic)
    if overwrite:
        raise InvalidConfig('outputMode("complete"): a log is only appended to; use "append" or "update"')
    if options.delivery == "atLeastOnce":
        return SendingStreamWriter(options)
    return TransactionalStreamWriter(options) if options.transactional else StagingStreamWriter(options)


class StagingWriter(DataSourceArrowWriter):
    """One `df.write`: everything is written or, if a task fails, nothing."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options
        self.name = options.write_id or Sources().new_id().hex()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return asyncio.run(stage(self.options, self.name, self.options.write_epoch, iterator))

    def commit(self, messages: Messages) -> None:
        try:
            asyncio.run(
                commit(
                    self.options,
                    self.name,
                    self.options.write_epoch,
                    _staged(messages),
                    repeatable=bool(self.options.write_id),
                )
            )
        except LedgerMQError as error:
            text = (
                f"{error.message}. The rows are kept; the same write with writeId={self.name!r} continues where this"
                " one stopped"
            )
            raise type(error)(text) from error

    def abort(self, messages: Messages) -> None:
        _discard(self.options, messages)


class StagingStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        query, epoch = _place()
        return asyncio.run(stage(self.options, query, epoch, iterator))

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        staged = _staged(messages)
        if staged:
            asyncio.run(commit(self.options, staged[0].write, batchId, staged, repeatable=True))

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        _discard(self.options, messages)


class TransactionForTasks:
    """Begins a transaction when Spark sends the writer to tasks, which it does once for each run of a
    micro-batch. The writer that it makes to commit is never sent.
    """

    def __init__(self, options: SinkOptions) -> None:
        self.options = options
        self.transaction: SharedTransaction | None = None

    def __getstate__(self) -> dict[str, object]:
        if self.transaction is None:
            self.transaction = asyncio.run(transactional.begin(self.options))
        return self.__dict__

    def stage(self, iterator: Iterator[pa.RecordBatch], query: str = "") -> StagedInTransaction:
        assert self.transaction is not None, "tasks get the writer after it has begun"
        return asyncio.run(transactional.stage(self.options, self.transaction, query, iterator))


class TransactionalWriter(TransactionForTasks, DataSourceArrowWriter):
    """One `df.write`: readers see everything at once or, if a task fails, nothing."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedInTransaction:
        return self.stage(iterator)

    def commit(self, messages: Messages) -> None:
        options = self.options
        asyncio.run(
            transactional.commit(
                options,
                options.write_id,
                options.write_epoch,
                _in_transaction(messages),
                repeatable=bool(options.write_id),
            )
        )

    def abort(self, messages: Messages) -> None:
        asyncio.run(transactional.discard(self.options, _in_transaction(messages)))


class TransactionalStreamWriter(TransactionForTasks, DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedInTransaction:
        return self.stage(iterator, _place()[0])

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        staged = _in_transaction(messages)
        if staged:
            asyncio.run(transactional.commit(self.options, staged[0].write, batchId, staged, repeatable=True))

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        asyncio.run(transactional.discard(self.options, _in_transaction(messages)))


class SendingWriter(DataSourceArrowWriter):
    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        return asyncio.run(send(self.options, iterator))


class SendingStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        return asyncio.run(send(self.options, iterator))


def _staged(messages: Messages) -> list[Staged]:
    return [message for message in messages if isinstance(message, Staged)]


def _in_transaction(messages: Messages) -> list[StagedInTransaction]:
    return [message for message in messages if isinstance(message, StagedInTransaction)]


def _discard(options: SinkOptions, messages: Messages) -> None:
    if None in messages:
        asyncio.run(discard(options, _staged(messages)))


def _place() -> tuple[str, int]:
    """Return query and micro-batch of the running task. Raises InvalidConfig."""
    context = TaskContext.get()
    query = context.getLocalProperty(_QUERY) if context is not None else None
    epoch = context.getLocalProperty(_BATCH) if context is not None else None
    if not query or not epoch:
        raise InvalidConfig(
            "this Spark does not tell tasks their query and micro-batch; only delivery=atLeastOnce is possible"
        )
    return query, int(epoch)
