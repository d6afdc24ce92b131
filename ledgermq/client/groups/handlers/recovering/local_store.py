"""Messages that a handler has failed at, kept in a local SQLite file until it succeeds.

    table owner      cluster_id, group_name                                       one row
    table messages   topic_id, partition, offset (the key); topic, recoveries, stored_ms, error,
                     body (a batch of one record, as brokers store it), crc (CRC-32C of key, topic and body)

Invariants: those of `SqliteFile`. One process has the file open, so the keys in memory are those in the file.
A file of another cluster or group is refused: a message would be acknowledged because an unrelated one has
its key.
"""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any, NamedTuple

from crc32c import crc32c

from ledgermq.client.consuming.message import Message, messages_as
from ledgermq.client.messages.columns import rows_to_arrow
from ledgermq.errors import DataDamaged, InvalidConfig, InvalidRequest, ResourceExhausted
from ledgermq.protocol.batches.records import decode_batch, encode_batch
from ledgermq.runtime.sqlite_file import FileKind, SqliteFile
from ledgermq.sources import Sources

VERSION = 1
APPLICATION_ID = 0x4C4D5152
ERROR_CHARS_MAX = 1000

_TABLES = """
CREATE TABLE owner (cluster_id TEXT NOT NULL, group_name TEXT NOT NULL);
CREATE TABLE messages (
    topic_id INTEGER NOT NULL, partition INTEGER NOT NULL, offset INTEGER NOT NULL,
    topic TEXT NOT NULL, recoveries INTEGER NOT NULL, stored_ms INTEGER NOT NULL, error TEXT NOT NULL,
    body BLOB NOT NULL, crc INTEGER NOT NULL, PRIMARY KEY (topic_id, partition, offset)
)
"""
_KEY = "topic_id = ? AND partition = ? AND offset = ?"

_KIND = FileKind("retry store", "handler", "messages", "Retry.metaq(store=…)", APPLICATION_ID, VERSION, _TABLES)


class MessageKey(NamedTuple):
    topic_id: int
    partition: int
    offset: int


class StoredMessage(NamedTuple):
    """`recoveries`: calls of the handler since it was stored, all of which failed."""

    message: Message
    recoveries: int


class LocalStore:
    """`in_thread`: run SQLite in the store's own thread; False, as in a simulation: on the loop."""

    def __init__(
        self, path: Path, messages_max: int, bytes_max: int, sources: Sources, *, in_thread: bool = True
    ) -> None:
        self._path = path
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._sources = sources
        self._file = SqliteFile(path, _KIND, in_thread=in_thread)
        self._sizes: dict[MessageKey, int] = {}
        """Size of each stored body, in the order in which they were stored."""
        self._bytes = 0
        self._adding = asyncio.Lock()

    async def open(self, cluster_id: str, group: str) -> None:
        """Open the file, or create it, and check all that it has.

        Raises UsedElsewhere (another process or handler has it open), InvalidConfig (it belongs to
        another group or cluster), DataDamaged, FormatNotSupported, StoreUnusable, StoreFull.
        """

        def begin(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT INTO owner VALUES (?, ?)", (cluster_id, group))

        def check(connection: sqlite3.Connection) -> dict[MessageKey, int]:
            self._check_owner(connection, cluster_id, group)
            return self._read_all(connection)

        self._sizes = await self._file.open(begin, check)
        self._bytes = sum(self._sizes.values())

    async def close(self) -> None:
        """Close the file, and let other processes open it. A cancelled caller does not stop it."""
        await self._file.close()

    def __len__(self) -> int:
        return len(self._sizes)

    def __contains__(self, key: MessageKey) -> bool:
        return key in self._sizes

    def oldest_first(self) -> list[MessageKey]:
        """Return the keys of all stored messages, the oldest first."""
        return list(self._sizes)

    async def add(self, key: MessageKey, message: Message, error: Exception) -> None:
        """Store a message durably; one that is stored already is left as it is.

        Raises ResourceExhausted (a bound is reached), StoreFull, StoreUnusable, DataDamaged.
        """
        body = _body_of(message)
        text = repr(error)[:ERROR_CHARS_MAX].encode(errors="replace").decode()
        row = (*key, message.topic, 0, self._sources.now_ms(), text, body, _crc(key, message.topic, body))
        async with self._adding:
            if key in self._sizes:
                return
            if len(self._sizes) >= self._messages_max or self._bytes + len(body) > self._bytes_max:
                raise ResourceExhausted(
                    f"retry store {self._path} has {len(self._sizes)} messages of {self._bytes} bytes, and no room for"
                    f" one of {len(body)}: raise messages_max or bytes_max, or cure what makes the handler fail"
                )
            await self._change("INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            self._sizes[key] = len(body)
            self._bytes += len(body)

    async def load(self, key: MessageKey) -> StoredMessage:
        """Return a stored message. Raises DataDamaged, StoreUnusable."""

        def read(connection: sqlite3.Connection) -> StoredMessage:
            found = connection.execute(
                f"SELECT topic, recoveries, body, crc FROM messages WHERE {_KEY}", key
            ).fetchone()
            if found is None:
                raise DataDamaged(
                    f"retry store {self._path}: the message of {key} has gone", object_key=str(self._path)
                )
            topic, recoveries, body, crc = found
            self._check_row(key, topic, body, crc)
            return StoredMessage(_message_of(key, topic, body, self._path), recoveries)

        return await self._file.run(read)

    async def note_recoveries(self, key: MessageKey, recoveries: int, error: Exception) -> None:
        """Store how often the handler was called again. Raises StoreFull, StoreUnusable, DataDamaged."""
        text = repr(error)[:ERROR_CHARS_MAX].encode(errors="replace").decode()
        await self._change(f"UPDATE messages SET recoveries = ?, error = ? WHERE {_KEY}", (recoveries, text, *key))

    async def remove(self, key: MessageKey) -> None:
        """Remove a message. Raises StoreFull, StoreUnusable, DataDamaged."""
        await self._change(f"DELETE FROM messages WHERE {_KEY}", key)
        self._bytes -= self._sizes.pop(key)

    async def _change(self, statement: str, values: tuple[object, ...]) -> None:
        """Run one statement, which is its own transaction."""
        await self._file.run(lambda connection: connection.execute(statement, values))

    # -- in the store's thread

    def _check_owner(self, connection: sqlite3.Connection, cluster_id: str, group: str) -> None:
        owner = connection.execute("SELECT cluster_id, group_name FROM owner").fetchone()
        if owner != (cluster_id, group):
            raise InvalidConfig(
                f"retry store {self._path} belongs to (cluster, group) {owner}, and this handler to"
                f" {(cluster_id, group)}; give each group its own file"
            )

    def _read_all(self, connection: sqlite3.Connection) -> dict[MessageKey, int]:
        """Check every message, and return the sizes of their bodies."""
        sizes = {}
        rows = connection.execute("SELECT topic_id, partition, offset, topic, body, crc FROM messages ORDER BY rowid")
        for topic_id, partition, offset, topic, body, crc in rows:
            key = MessageKey(topic_id, partition, offset)
            self._check_row(key, topic, body, crc)
            sizes[key] = len(body)
        return sizes

    def _check_row(self, key: MessageKey, topic: object, body: object, crc: object) -> None:
        whole = isinstance(topic, str) and isinstance(body, bytes)
        if not whole or crc != _crc(key, topic, body):
            raise self._file.damaged(
                f"the message at partition {key.partition}, offset {key.offset} of topic {topic!r:.100} fails its"
                " checksum"
            )


def _crc(key: MessageKey, topic: object, body: object) -> int:
    assert isinstance(body, bytes)
    return int(crc32c(body, crc32c(f"{key.topic_id}/{key.partition}/{key.offset}/{topic}".encode())))


def _body_of(message: Message) -> bytes:
    message = message.stored
    row: Any = (message.key, message.value, list(message.headers) or None, message.timestamp_us, message.tag)
    return encode_batch(rows_to_arrow([row]))  # Any: a message may have no timestamp


def _message_of(key: MessageKey, topic: str, body: bytes, path: Path) -> Message:
    try:
        [message] = messages_as(Message, decode_batch(body), topic, key.partition, key.offset)
    except InvalidRequest as error:
        raise DataDamaged(f"retry store {path}: {error.message}", object_key=str(path)) from error
    return message
