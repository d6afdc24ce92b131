"""Run a query of DuckDB over topics, from the store alone.

One plan is made for all topics of the query: the catalog is read, then each bundle's ledger up to
its newest durable slot. So a query sees a prefix of each partition, and one prefix of each ledger,
whatever is compacted or deleted while it runs; records that are deleted before they are read are an
error (OffsetOutOfRange), never missing rows.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import duckdb
import pyarrow as pa

from ledgermq.errors import InvalidRequest, ResourceExhausted
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.open_root import cluster_of
from ledgermq_ledger.topics.catalog import Catalog, read_catalog
from ledgermq_ledger.view.ranges.range_read import OffsetRange, RangeReader
from ledgermq_spark.source.options import SourceOptions
from ledgermq_spark.source.ranges.planning import plan_query
from ledgermq_tools.query.tables import LoopCalls, TopicTable

MEMORY_BYTES = 1024 * 1024 * 1024
ROWS = 10_000
"""Rows of a batch of the result."""


class QueryResult:
    """The rows of a query, in batches, as DuckDB makes them."""

    def __init__(self, reader: pa.RecordBatchReader, errors: _Errors) -> None:
        self.schema: pa.Schema = reader.schema
        self._reader = reader
        self._errors = errors

    async def batches(self) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield the rows. Raises as `run_query` does."""
        while (batch := await asyncio.to_thread(self._next)) is not None:
            yield batch

    def _next(self) -> pa.RecordBatch | None:
        with self._errors.typed():
            return next(self._reader, None)


class _Errors:
    def __init__(self, tables: Sequence[TopicTable]) -> None:
        self._tables = tables

    @contextmanager
    def typed(self) -> Iterator[None]:
        """Raise what a scan failed with instead of DuckDB's text of it, and DuckDB's own errors as ours."""
        try:
            yield
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            failed = next((table.error for table in self._tables if table.error is not None), None)
            if failed is not None:
                raise failed from error
            if isinstance(error, duckdb.OutOfMemoryException):
                raise ResourceExhausted(f"the query needs more memory than --memory allows: {error}") from error
            raise InvalidRequest(f"DuckDB cannot run the query: {error}") from error


@asynccontextmanager
async def run_query(
    store: ObjectStore, query: str, *, memory_bytes: int = MEMORY_BYTES
) -> AsyncGenerator[QueryResult, None]:
    """Run one statement; each topic is a table of its name. It may not touch files or the network.

    `memory_bytes`: what DuckDB may use; larger sorts and joins go to a temporary folder. Beside it the
    reader holds one row group.

    Raises InvalidRequest (bad SQL, or a table that is no topic: UnknownTopic), ResourceExhausted, NoCluster,
    DataDamaged, OffsetOutOfRange (records were deleted while the query ran), DeadlineExceeded (a move of a
    partition has not ended), the store's errors.
    """
    sources = Sources()
    cluster = await cluster_of(store)
    catalog = await read_catalog(LedgerRef(store, keys.METADATA_BUNDLE, cluster, sources))
    calls = LoopCalls(asyncio.get_running_loop())
    tables = {topic.name: TopicTable(topic.name) for topic in catalog.living_topics() if not topic.internal}
    errors = _Errors(list(tables.values()))
    with tempfile.TemporaryDirectory(prefix="ledgermq-sql-") as folder, _connection(memory_bytes, folder) as connection:
        for name, table in tables.items():
            connection.register(name, table)
        with errors.typed():
            used = _topics_used(query, catalog, tables)
        reader = RangeReader(store)
        for name, ranges in (await _planned(store, used)).items():
            tables[name].plan(ranges, reader, calls)
        running = asyncio.create_task(asyncio.to_thread(_execute, connection, query, errors))
        try:
            yield QueryResult(await asyncio.shield(running), errors)
        finally:
            calls.stop()
            connection.interrupt()
            await asyncio.wait([running])


@contextmanager
def _connection(memory_bytes: int, folder: str) -> Iterator[duckdb.DuckDBPyConnection]:
    limits: dict[str, Any] = {"memory_limit": f"{memory_bytes}B", "temp_directory": folder}
    with duckdb.connect(config=limits) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET python_enable_replacements = false")  # a name is a topic, never a variable
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        yield connection


def _execute(connection: duckdb.DuckDBPyConnection, query: str, errors: _Errors) -> pa.RecordBatchReader:
    with errors.typed():
        return connection.sql(query).to_arrow_reader(ROWS)


def _topics_used(query: str, catalog: Catalog, tables: dict[str, TopicTable]) -> list[str]:
    """Return the topics of the query, sorted; more, where only DuckDB could say it.

    Raises UnknownTopic, InvalidRequest, errors of DuckDB.
    """
    with duckdb.connect() as parser:
        parser.execute("SET enable_external_access = false")
        statements = parser.extract_statements(query)
        if len(statements) != 1:
            raise InvalidRequest(f"give one statement, not {len(statements)}")
        if statements[0].type not in (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN):
            raise InvalidRequest("give a SELECT (or DESCRIBE, EXPLAIN, SHOW TABLES): a query changes nothing")
        try:
            names = sorted(parser.get_table_names(query))
        except duckdb.BinderException:  # it names no tables of a join USING a column
            return sorted(
                name for name in tables if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", query, re.IGNORECASE)
            )
    by_folded = {name.lower(): name for name in tables}  # DuckDB's names do not differ by case alone
    used = []
    for name in names:
        if (found := name if name in tables else by_folded.get(name.lower())) is None:
            topic = catalog.living(name)
            raise InvalidRequest(f"topic {topic.name!r} belongs to the system and cannot be read by a query")
        used.append(found)
    return used


async def _planned(store: ObjectStore, topics: Sequence[str]) -> dict[str, list[OffsetRange]]:
    if not topics:
        return {}
    tasks = await plan_query(store, SourceOptions(store.url, topics=tuple(topics)))
    planned: dict[str, list[OffsetRange]] = {name: [] for name in topics}
    for task in tasks:
        for each in task:
            planned[each.topic].append(each.range)
    return planned
