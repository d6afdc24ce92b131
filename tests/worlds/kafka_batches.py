"""Record batches of the Kafka protocol, written byte by byte, and read by other programs' codecs.

The writer is a code of its own, as simple as the format's description, so that a mistake of the product's
codec is not repeated by its tests. It can write what no client writes.
"""

from __future__ import annotations

import gzip
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from aiokafka.record.default_records import DefaultRecordBatch
from crc32c import crc32c
from hypothesis import strategies as st
from kafka.record import MemoryRecords

Pairs = list[tuple[str, bytes | None]]
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4, "java-snappy": 2}
NULL = -1


@dataclass(frozen=True)
class Row:
    """`headers`: names are text or, to be refused, bytes. `attributes`: of the record."""

    key: bytes | None = None
    value: bytes | None = b"v"
    headers: Sequence[tuple[str | bytes, bytes | None]] = ()
    timestamp_ms: int = 1_700_000_000_000
    attributes: int = 0


@dataclass(frozen=True)
class Fields:
    """What differs from a plain batch of records; None: as it must be."""

    codec: str = "none"
    magic: int = 2
    attributes: int = 0
    base_offset: int = 0
    length: int | None = None
    crc: int | None = None
    last_offset_delta: int | None = None
    base_timestamp_ms: int | None = None
    producer: tuple[int, int, int] = (-1, -1, -1)
    count: int | None = None
    deltas: Sequence[int] | None = None
    null: int = NULL
    width: int = 0
    """Bytes that each number takes at least."""


PLAIN = Fields()


def varint(number: int, width: int = 0) -> bytes:
    raw = (number << 1) ^ (number >> 63)
    raw &= 2**64 - 1
    found = bytearray()
    while raw > 0x7F or len(found) + 1 < width:
        found.append(raw & 0x7F | 0x80)
        raw >>= 7
    found.append(raw)
    return bytes(found)


def body_of(rows: Sequence[Row], fields: Fields = PLAIN) -> bytes:
    base = rows[0].timestamp_ms if fields.base_timestamp_ms is None and rows else fields.base_timestamp_ms or 0
    return b"".join(_record(row, number, base, fields) for number, row in enumerate(rows))


def batch_of(rows: Sequence[Row], fields: Fields = PLAIN) -> bytes:
    body = body_of(rows, fields)
    return batch_around(body, len(rows), fields, rows[0].timestamp_ms if rows else 0)


def batch_around(body: bytes, count: int, fields: Fields = PLAIN, first_ms: int = 0) -> bytes:
    """The batch of given records, which may be any bytes."""
    data = COMPRESS[fields.codec](body)
    base = first_ms if fields.base_timestamp_ms is None else fields.base_timestamp_ms
    last = count - 1 if fields.last_offset_delta is None else fields.last_offset_delta
    covered = struct.pack(
        ">hiqqqhii",
        fields.attributes | CODECS[fields.codec],
        last,
        base,
        base,
        *fields.producer,
        count if fields.count is None else fields.count,
    )
    covered += data
    crc = crc32c(covered) if fields.crc is None else fields.crc
    length = 9 + len(covered) if fields.length is None else fields.length
    return struct.pack(">qiibI", fields.base_offset, length, -1, fields.magic, crc) + covered


def with_body(batch: bytes, body: bytes) -> bytes:
    """The same batch with other bytes behind its head, and a fitting length and checksum."""
    covered = batch[21:61] + body
    return batch[:8] + struct.pack(">i", 9 + len(covered)) + batch[12:17] + struct.pack(">I", crc32c(covered)) + covered


def _record(row: Row, number: int, base_ms: int, fields: Fields) -> bytes:
    w = fields.width
    delta = number if fields.deltas is None else fields.deltas[number]
    content = bytes([row.attributes]) + varint(row.timestamp_ms - base_ms, w) + varint(delta, w)
    content += _bytes(row.key, fields) + _bytes(row.value, fields) + varint(len(row.headers), w)
    for name, value in row.headers:
        content += _bytes(name.encode() if isinstance(name, str) else name, fields) + _bytes(value, fields)
    return varint(len(content), w) + content


def _bytes(data: bytes | None, fields: Fields) -> bytes:
    if data is None:
        return varint(fields.null, fields.width)
    return varint(len(data), fields.width) + data


def snappy(data: bytes) -> bytes:
    return bytes(pa.compress(data, codec="snappy", asbytes=True)) if data else b"\0"


def java_snappy(data: bytes, block: int = 32 * 1024) -> bytes:
    """As SnappyOutputStream of snappy-java writes it: blocks of 32 KiB."""
    blocks = [snappy(data[at : at + block]) for at in range(0, len(data), block)]
    return b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + b"".join(struct.pack(">i", len(b)) + b for b in blocks)


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "none": bytes,
    "gzip": lambda data: gzip.compress(data, 1, mtime=0),
    "snappy": snappy,
    "java-snappy": java_snappy,
    "lz4": lambda data: bytes(pa.compress(data, codec="lz4", asbytes=True)),
    "zstd": lambda data: bytes(pa.compress(data, codec="zstd", asbytes=True)),
}


@dataclass(frozen=True)
class Read:
    """A record as a client sees it. `timestamp_type`: 1 = the broker's."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: Pairs = field(default_factory=list)
    timestamp_ms: int | None = None
    timestamp_type: int | None = 0


def read_by_aiokafka(data: bytes) -> list[Read]:
    found: list[Read] = []
    for batch in split(data):
        found += [_seen(record) for record in DefaultRecordBatch(batch)]
    return found


def read_by_kafka_python(data: bytes) -> list[Read]:
    """It checks the checksum of each batch."""
    found: list[Read] = []
    records = MemoryRecords(data)
    while (batch := records.next_batch()) is not None:
        assert batch.validate_crc()
        found += [_seen(record) for record in batch]
    return found


def _seen(r: Any) -> Read:
    timed = r.timestamp not in (None, NULL)
    times = (r.timestamp, r.timestamp_type) if timed else (None, None)
    return Read(r.offset, r.key, r.value, list(r.headers), *times)


def split(data: bytes) -> list[bytes]:
    found = []
    while data:
        size = 12 + struct.unpack_from(">i", data, 8)[0]
        found.append(data[:size])
        data = data[size:]
    return found


BYTES = st.none() | st.binary(max_size=40)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.just("ledgermq.tag")
MILLISECONDS = st.integers(-62_135_596_800_000, 253_402_300_799_999)
ROWS = st.builds(
    Row,
    key=BYTES,
    value=BYTES,
    headers=st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=8) | st.just(b"tag")), max_size=3),
    timestamp_ms=MILLISECONDS | st.just(-1) | st.integers(1_700_000_000_000, 1_700_000_100_000),
)


def seeded_rows(rng: random.Random, count: int) -> list[Row]:
    def some(size: int) -> bytes | None:
        return rng.choice((None, rng.randbytes(rng.randrange(size))))

    def headers() -> Pairs:
        return [(rng.choice(("a", "ü", "")), some(5)) for _ in range(rng.choice((0, 0, 1, 3)))]

    return [Row(some(12), some(200), headers(), 1_700_000_000_000 + rng.randrange(-5000, 5000)) for _ in range(count)]
