"""Offsets in an SQL database, through SQLAlchemy: alone, or in one transaction with the program's
own results.

In one transaction every message takes effect exactly once: results and offset are stored together
or not at all. A repetition finds that the stored offset is past it. A member that has lost the
partition is refused by its epoch, and its whole transaction is rolled back.

One table has one row for each group and partition; a row is locked while it is checked (SQLite
locks the database). Any database of SQLAlchemy works that locks rows or serializes transactions;
tested on SQLite, PostgreSQL and MariaDB.

Names are compared byte by byte. MySQL and MariaDB ignore case and trailing blanks in columns of text,
so the names are bytes there. Where a database answers with the row of another name nevertheless, the
call is refused: two groups would share an offset, and one would skip messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ledgermq.runtime.process.missing_modules import what_to_do

try:
    from sqlalchemy import (
        BigInteger,
        Column,
        ColumnElement,
        Connection,
        Engine,
        Integer,
        MetaData,
        String,
        Table,
        TypeDecorator,
        insert,
        inspect,
        select,
        text,
        update,
    )
except ImportError as error:
    advice = what_to_do(error, 'pip install "ledgermq[sql]"')
    raise ImportError(f"SqlOffsetStore needs SQLAlchemy: {advice}", name=error.name) from error
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import IntegrityError, OperationalError, SQLAlchemyError
from sqlalchemy.types import TypeEngine

from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.errors import CommitGoesBack, LedgerMQError, StoreUnusable, Unavailable
from ledgermq.offset_stores.contract import GivenPartition, OffsetEntry, StoredOffset
from ledgermq.offset_stores.rules import METADATA_BYTES_MAX, Row, RowKey, committed, fenced, key_of
from ledgermq.protocol.naming.names import NAME_CHARS_MAX
from ledgermq.sources import Sources

MYSQL = ("mysql", "mariadb")
_METADATA = String(METADATA_BYTES_MAX).with_variant(mysql.VARCHAR(METADATA_BYTES_MAX, charset="utf8mb4"), *MYSQL)
NAME_BYTES_MAX = 4 * NAME_CHARS_MAX


class _Name(TypeDecorator[str]):
    """A name that is equal to itself only: text, or its UTF-8 where text ignores case."""

    impl = String(NAME_CHARS_MAX)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        kind = mysql.VARBINARY(NAME_BYTES_MAX) if dialect.name in MYSQL else String(NAME_CHARS_MAX)
        return dialect.type_descriptor(kind)

    def process_bind_param(self, value: str | None, dialect: Dialect) -> Any:
        return value.encode() if value is not None and dialect.name in MYSQL else value

    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:
        return bytes(value).decode() if isinstance(value, bytes | bytearray) else value


class SqlOffsetStore:
    """`engine`: an ordinary (blocking) engine; calls run in threads.

    `table`: name of the table that `create_table` creates.
    """

    def __init__(self, engine: Engine, table: str = "ledgermq_offsets", sources: Sources | None = None) -> None:
        self._engine = engine
        self._sources = sources or Sources()
        self._checked = False
        """Whether the table is known to tell names apart."""
        self._table = Table(
            table,
            MetaData(),
            Column("group_name", _Name, primary_key=True),
            Column("topic", _Name, primary_key=True),
            Column("topic_id", BigInteger, primary_key=True, autoincrement=False),
            Column("partition_number", Integer, primary_key=True, autoincrement=False),
            Column("epoch", BigInteger, nullable=False),
            Column("counter", BigInteger, nullable=False),
            Column("next_offset", BigInteger),
            Column("metadata", _METADATA, nullable=False),
            Column("commit_ms", BigInteger, nullable=False),
        )

    async def create_table(self) -> None:
        """Create the table unless it exists. On MySQL and MariaDB, a table of an earlier release, which
        ignored case in names, is changed so that it does not. Its rows stay. Raises Unavailable,
        StoreUnusable.
        """
        await asyncio.to_thread(self._create)

    def _create(self) -> None:
        with _database_errors():
            self._table.metadata.create_all(self._engine)
            with self._engine.begin() as transaction:
                for statement in self._changes() if self._ignores_case(transaction) else ():
                    transaction.execute(text(statement))

    def _changes(self) -> list[str]:
        """Return statements for MySQL that turn text into bytes. The first one makes the text UTF-8."""
        quote = self._engine.dialect.identifier_preparer.quote
        columns = (f"MODIFY {quote(name)} VARBINARY({NAME_BYTES_MAX}) NOT NULL" for name in ("group_name", "topic"))
        change = f"ALTER TABLE {quote(self._table.name)}"
        return [f"{change} CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", f"{change} {', '.join(columns)}"]

    def _ignores_case(self, transaction: Connection) -> bool:
        """Return whether the table is one of an earlier release on MySQL or MariaDB."""
        if self._engine.dialect.name not in MYSQL:
            return False
        found = {column["name"]: column["type"] for column in inspect(transaction).get_columns(self._table.name)}
        return not isinstance(found["group_name"], mysql.VARBINARY)

    def _check_table(self, transaction: Connection) -> None:
        """Raise StoreUnusable if the names of two groups may share a row."""
        if not self._checked and self._ignores_case(transaction):
            raise StoreUnusable(
                f"table {self._table.name!r} was created by an earlier release, and ignores case in names of groups"
                " and topics, so groups 'Billing' and 'billing' would share their offsets: call create_table() of the"
                f" store once, or run: {'; '.join(self._changes())}"
            )
        self._checked = True

    async def load(self, group: str, partitions: Sequence[GivenPartition]) -> dict[TopicPartition, StoredOffset]:
        """See `OffsetStore.load`. Raises StaleAssignment, Unavailable, StoreUnusable."""
        return await asyncio.to_thread(self._load, group, partitions)

    async def commit(self, group: str, entries: Sequence[OffsetEntry]) -> Mapping[TopicPartition, LedgerMQError]:
        """Commit in a separate transaction. Raises Unavailable, StoreUnusable."""
        return await asyncio.to_thread(self._commit, group, entries)

    def commit_in(self, transaction: Connection, group: str, entries: Iterable[OffsetEntry]) -> None:
        """Commit within the program's own transaction; roll it back when this raises. Blocking.

        `entries`: `consumer.entries(messages)`. Raises StaleAssignment, InvalidRequest, and the
        database's own errors. CommitGoesBack also means that an earlier transaction, whose outcome
        was unknown, has stored these messages: they are done.
        """
        self._check_table(transaction)
        now_ms = self._sources.now_ms()
        # In one order, so that members do not block each other.
        for entry in sorted(entries, key=lambda entry: entry.given.partition):
            before = self._commit_one(transaction, group, entry, now_ms)
            if before is not None and before.offset is not None and entry.offset <= before.offset:
                raise CommitGoesBack(
                    f"{entry.given.partition}: {before.offset} is stored already, with the results of all below it"
                )

    def _commit_one(self, transaction: Connection, group: str, entry: OffsetEntry, now_ms: int) -> Row | None:
        """Return the row before the change."""
        key = key_of(group, entry.given)
        before = self._read(transaction, key)
        self._write(transaction, key, before, committed(before, entry, now_ms))
        return before

    def _load(self, group: str, partitions: Sequence[GivenPartition]) -> dict[TopicPartition, StoredOffset]:
        found: dict[TopicPartition, StoredOffset] = {}
        with _database_errors(), self._engine.begin() as transaction:
            self._check_table(transaction)
            for given in sorted(partitions):
                key = key_of(group, given)
                before = self._read(transaction, key)
                row = fenced(before, given)
                self._write(transaction, key, before, row)
                if row.stored is not None:
                    found[given.partition] = row.stored
        return found

    def _commit(self, group: str, entries: Sequence[OffsetEntry]) -> Mapping[TopicPartition, LedgerMQError]:
        refused: dict[TopicPartition, LedgerMQError] = {}
        with _database_errors(), self._engine.begin() as transaction:
            self._check_table(transaction)
            for entry in sorted(entries, key=lambda entry: entry.given.partition):
                try:
                    self._commit_one(transaction, group, entry, self._sources.now_ms())
                except (Unavailable, StoreUnusable):
                    raise  # of all: another member's change, after which all may be retried, or the database itself
                except LedgerMQError as error:
                    refused[entry.given.partition] = error
        return refused

    def _read(self, transaction: Connection, key: RowKey) -> Row | None:
        found = transaction.execute(select(self._table).where(*self._is(key)).with_for_update()).one_or_none()
        if found is None:
            return None
        if (found.group_name, found.topic) != (key.group, key.topic):
            raise StoreUnusable(
                f"the offset database takes group {key.group!r}, topic {key.topic!r} for group {found.group_name!r},"
                f" topic {found.topic!r}: give columns group_name and topic of table {self._table.name!r} a collation"
                " that compares byte by byte"
            )
        return Row(found.epoch, found.counter, found.next_offset, found.metadata, found.commit_ms)

    def _write(self, transaction: Connection, key: RowKey, before: Row | None, row: Row) -> None:
        """Write a row, if it is unchanged since it was read.

        On databases that do not lock rows for a read, this detects another member's change in
        between.
        """
        if row == before:
            return
        values = {
            "epoch": row.epoch,
            "counter": row.counter,
            "next_offset": row.offset,
            "metadata": row.metadata,
            "commit_ms": row.commit_ms,
        }
        columns = self._table.c
        if before is None:
            names = {
                "group_name": key.group,
                "topic": key.topic,
                "topic_id": key.topic_id,
                "partition_number": key.partition,
            }
            transaction.execute(insert(self._table).values(**names, **values))
            return
        unchanged = (columns.epoch == before.epoch, columns.counter == before.counter)
        if transaction.execute(update(self._table).where(*self._is(key), *unchanged).values(**values)).rowcount != 1:
            raise Unavailable(
                f"the offset of {key.topic}/{key.partition} was changed by another transaction; try again"
            )

    def _is(self, key: RowKey) -> tuple[ColumnElement[bool], ...]:
        columns = self._table.c
        return (
            columns.group_name == key.group,
            columns.topic == key.topic,
            columns.topic_id == key.topic_id,
            columns.partition_number == key.partition,
        )


@contextmanager
def _database_errors() -> Iterator[None]:
    """Convert errors. Those of connections and locks, and of a row that another member inserted first,
    may pass with a retry.
    """
    try:
        yield
    except (OperationalError, IntegrityError) as error:
        raise Unavailable(f"the offset database: {error.orig}") from error
    except SQLAlchemyError as error:
        raise StoreUnusable(f"the offset database: {error}") from error
