"""The file of a producer's spill: batches that wait, by partition and in order.

    table cluster    id                                                           one row, once it is known
    table topics     name (the key), topic_id, partitions, record_bytes_max, crc  as brokers described them last
    table lanes      topic_id, partition (the key); topic, base, session_id, epoch, opened_slot, crc
    table batches    id (ascending); topic_id, partition, sequence, records, timestamp_min_us, timestamp_max_us,
                     spilled_ms, body (the Arrow message, as it is sent), body_crc, crc

A *lane* is what is spilled of one partition. Its batches are numbered without a gap, in records (`sequence`). If
it has a session, a batch is sent under the session's sequence `sequence - base`, so a process that begins again
sends the same batches under the same numbers, and brokers recognize those that they have. A lane ends with its
last batch. `crc` is the CRC-32C of the other fields of its row; that of a batch covers `body_crc`.

Invariants: those of `SqliteFile`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from ledgermq.client.producing.partition.sessions import EncodedBatch, Session
from ledgermq.errors import InvalidConfig, StoreFull, StoreUnusable
from ledgermq.runtime.sqlite_file import FileKind, SqliteFile

VERSION = 1
APPLICATION_ID = 0x4C4D5153

_TABLES = """
CREATE TABLE cluster (id TEXT NOT NULL);
CREATE TABLE topics (
    name TEXT PRIMARY KEY, topic_id INTEGER NOT NULL, partitions INTEGER NOT NULL, record_bytes_max INTEGER NOT NULL,
    crc INTEGER NOT NULL
);
CREATE TABLE lanes (
    topic_id INTEGER NOT NULL, partition INTEGER NOT NULL, topic TEXT NOT NULL, base INTEGER NOT NULL,
    session_id BLOB, epoch INTEGER NOT NULL, opened_slot INTEGER NOT NULL, crc INTEGER NOT NULL,
    PRIMARY KEY (topic_id, partition)
);
CREATE TABLE batches (
    id INTEGER PRIMARY KEY AUTOINCREMENT, topic_id INTEGER NOT NULL, partition INTEGER NOT NULL,
    sequence INTEGER NOT NULL, records INTEGER NOT NULL, timestamp_min_us INTEGER NOT NULL,
    timestamp_max_us INTEGER NOT NULL, spilled_ms INTEGER NOT NULL, body BLOB NOT NULL, body_crc INTEGER NOT NULL,
    crc INTEGER NOT NULL
)
"""
RESERVE_BYTES = 8 * 1024 * 1024
"""More than one call of `add` writes: what was written last can be moved to its place, and then removed, on a disk
that is full.
"""
ADD_BYTES_MAX = RESERVE_BYTES // 4
"""Size of batches for one call of `add`; those that have numbers are written together, whatever their size."""
_KIND = FileKind("spill", "producer", "records", "Spill(path)", APPLICATION_ID, VERSION, _TABLES, RESERVE_BYTES)
_BATCH = "topic_id, partition, sequence, records, timestamp_min_us, timestamp_max_us, spilled_ms, body, body_crc, crc"


class LaneKey(NamedTuple):
    topic_id: int
    partition: int


class SpilledRun(NamedTuple):
    """A batch in the file, without its body."""

    id: int
    sequence: int
    records: int
    size: int

    @property
    def end(self) -> int:
        return self.sequence + self.records


@dataclass(slots=True)
class StoredLane:
    """`session`: under which its batches are numbered from `base` on; None: no batch was ever sent."""

    topic: str
    base: int = 0
    session: Session | None = None
    runs: list[SpilledRun] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RememberedTopic:
    name: str
    topic_id: int
    partitions: int
    record_bytes_max: int


@dataclass(slots=True)
class Contents:
    cluster_id: str
    topics: list[RememberedTopic]
    lanes: dict[LaneKey, StoredLane]


class NewBatch(NamedTuple):
    key: LaneKey
    sequence: int
    encoded: EncodedBatch


class SpillFile:
    """`in_thread`: as of `SqliteFile`."""

    def __init__(self, path: Path, *, in_thread: bool = True) -> None:
        self.path = path
        self._file = SqliteFile(path, _KIND, in_thread=in_thread)

    async def open(self) -> Contents:
        """Open the file, or create it, and check all that it has. Raises what `SqliteFile.open` raises."""
        return await self._file.open(lambda connection: None, self._read_all)

    async def close(self) -> None:
        await self._file.close()

    async def set_cluster(self, cluster_id: str) -> None:
        """Store which cluster the file belongs to."""

        def change(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT INTO cluster VALUES (?)", (cluster_id,))

        await self._file.change(change)

    async def remember(self, topics: Iterable[RememberedTopic]) -> None:
        rows = [(each.name, each.topic_id, each.partitions, each.record_bytes_max) for each in topics]

        def change(connection: sqlite3.Connection) -> None:
            connection.executemany("REPLACE INTO topics VALUES (?, ?, ?, ?, ?)", [(*row, _crc(row)) for row in rows])

        await self._file.change(change)

    async def add(
        self, lanes: Sequence[tuple[LaneKey, StoredLane]], batches: Sequence[NewBatch], now_ms: int
    ) -> list[int]:
        """Store new lanes and batches durably, all or nothing; return the ids of the batches."""
        rows = [_batch_row(batch, now_ms) for batch in batches]

        def change(connection: sqlite3.Connection) -> list[int]:
            _put_lanes(connection, lanes)
            ids = []
            for row in rows:
                marks = ", ".join("?" * len(row))
                ids.append(connection.execute(f"INSERT INTO batches ({_BATCH}) VALUES ({marks})", row).lastrowid or 0)
            return ids

        return await self._file.change(change)

    async def put_lanes(self, lanes: Sequence[tuple[LaneKey, StoredLane]]) -> None:
        """Store the sessions of lanes durably, before a batch is sent under them."""
        await self._file.change(lambda connection: _put_lanes(connection, lanes), adds=False)

    async def remove(self, ids: Sequence[int], ended: Sequence[LaneKey]) -> None:
        """Remove batches, and lanes that have no batch any longer. A file without batches becomes small again."""

        def change(connection: sqlite3.Connection) -> None:
            connection.executemany("DELETE FROM batches WHERE id = ?", [(each,) for each in ids])
            connection.executemany("DELETE FROM lanes WHERE topic_id = ? AND partition = ?", ended)

        await self._file.change(change, adds=False)
        with suppress(StoreFull, StoreUnusable):
            await self._file.run(_shrink)

    async def load(self, key: LaneKey, ids: Sequence[int]) -> list[EncodedBatch]:
        """Return batches of a lane, in the order of `ids`. Raises DataDamaged, StoreUnusable."""

        def read(connection: sqlite3.Connection) -> list[EncodedBatch]:
            return [self._load(connection, key, each) for each in ids]

        return await self._file.run(read)

    # -- in the file's thread

    def _load(self, connection: sqlite3.Connection, key: LaneKey, batch_id: int) -> EncodedBatch:
        row = connection.execute(f"SELECT {_BATCH} FROM batches WHERE id = ?", (batch_id,)).fetchone()
        if row is None:
            raise self._file.damaged(f"batch {batch_id} of {key} has gone")
        self._check_batch(batch_id, row)
        _, _, _, records, timestamp_min_us, timestamp_max_us, _, body, body_crc, _ = row
        return EncodedBatch(body, body_crc, records, timestamp_min_us, timestamp_max_us)

    def _read_all(self, connection: sqlite3.Connection) -> Contents:
        """Check every row."""
        cluster = connection.execute("SELECT id FROM cluster").fetchone()
        topics = []
        for *fields, crc in connection.execute("SELECT * FROM topics"):
            if crc != _crc(fields):
                raise self._file.damaged(f"what is remembered of topic {fields[0]!r:.100} fails its checksum")
            topics.append(RememberedTopic(*fields))
        lanes = {}
        for row in connection.execute("SELECT * FROM lanes"):
            topic_id, partition, topic, base, session_id, epoch, opened_slot, crc = row
            if crc != _crc(row[:-1]):
                raise self._file.damaged(f"partition {partition} of topic {topic!r:.100} fails its checksum")
            session = None if session_id is None else Session(session_id, opened_slot, epoch)
            lanes[LaneKey(topic_id, partition)] = StoredLane(topic, base, session)
        self._read_runs(connection, lanes)
        return Contents(cluster[0] if cluster is not None else "", topics, lanes)

    def _read_runs(self, connection: sqlite3.Connection, lanes: dict[LaneKey, StoredLane]) -> None:
        for batch_id, *row in connection.execute(f"SELECT id, {_BATCH} FROM batches ORDER BY id"):
            self._check_batch(batch_id, row)
            topic_id, partition, sequence, records, _, _, _, body, _, _ = row
            lane = lanes.get(LaneKey(topic_id, partition))
            if lane is None or (lane.runs and lane.runs[-1].end != sequence):
                raise self._file.damaged(
                    f"batch {batch_id}, partition {partition} of topic id {topic_id}, is out of place"
                )
            lane.runs.append(SpilledRun(batch_id, sequence, records, len(body)))

    def _check_batch(self, batch_id: int, row: Sequence[object]) -> None:
        *fields, body, body_crc, crc = row
        if not isinstance(body, bytes) or crc != _crc((*fields, body_crc)) or body_crc != crc32c(body):
            raise self._file.damaged(
                f"batch {batch_id}, partition {fields[1]!r:.20} of topic id {fields[0]!r:.20}, fails its checksum"
            )


def check_cluster(path: Path, stored: str, found: str) -> None:
    """Raise InvalidConfig if the file belongs to another cluster."""
    if stored != found:
        raise InvalidConfig(
            f"spill {path} has records for cluster {stored}, and this client is connected to cluster {found}; give each"
            " cluster its own file"
        )


def _shrink(connection: sqlite3.Connection) -> None:
    if connection.execute("SELECT 1 FROM batches LIMIT 1").fetchone() is None:
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _put_lanes(connection: sqlite3.Connection, lanes: Sequence[tuple[LaneKey, StoredLane]]) -> None:
    for key, lane in lanes:
        session = lane.session
        of_session = (None, 0, 0) if session is None else (session.id, session.epoch, session.opened_slot)
        row = (*key, lane.topic, lane.base, *of_session)
        connection.execute("REPLACE INTO lanes VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*row, _crc(row)))


def _batch_row(batch: NewBatch, now_ms: int) -> tuple[object, ...]:
    encoded = batch.encoded
    of_batch = (*batch.key, batch.sequence, encoded.record_count, encoded.timestamp_min_us, encoded.timestamp_max_us)
    return (*of_batch, now_ms, encoded.data, encoded.crc, _crc((*of_batch, now_ms, encoded.crc)))


def _crc(fields: Sequence[object]) -> int:
    return int(crc32c(repr(tuple(fields)).encode(errors="surrogatepass")))
