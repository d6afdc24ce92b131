"""Read the records of a Kafka batch one byte after the other, and check every rule of the format.

    record: length varint | attributes i8 | timestamp delta varlong | offset delta varint
            | key length varint, key | value length varint, value
            | count of headers varint, { name length varint, name | value length varint, value } …

    A varint is zigzag, seven bits a byte, the lowest first: at most 5 bytes, and 10 in a varlong. A length of -1
    is null, which keys, values and values of headers may be. The bytes of a record are as many as it says.

This reader decides what is valid, and says what is not. It is slow: `decoding` uses it for the smallest batches, and
for those that `columns` has refused.
"""

from __future__ import annotations

from typing import NamedTuple

from ledgermq.buffers import Buffer
from ledgermq_broker.kafka.wire.batches.refusals import RecordsRefused

Pairs = list[tuple[str, bytes | None]]

RECORD_BYTES_MIN = 7
"""A record without key, value and headers."""
VARINT_BYTES_MAX, VARLONG_BYTES_MAX = 5, 10
NULL = -1
"""As a length."""
_NULL_BYTE = 1
INT32_MASK, _INT64_MASK = 2**32 - 1, 2**64 - 1


class ReadRecord(NamedTuple):
    """`timestamp_ms`: the batch's base and the record's delta, wrapped to 64 bits as in Java."""

    key: bytes | None
    value: bytes | None
    headers: Pairs
    timestamp_ms: int


class NotARecord(Exception):
    """A rule of the format is broken."""


def read_records(data: Buffer, count: int, base_timestamp_ms: int) -> list[ReadRecord]:
    """Return `count` records, which are all that `data` holds. Raises RecordsRefused, naming the record."""
    body = bytes(data)
    found: list[ReadRecord] = []
    at = 0
    try:
        for row in range(count):
            record, at = _record(body, at, row, base_timestamp_ms)
            found.append(record)
    except (IndexError, NotARecord) as error:
        what = "it ends inside of a field" if isinstance(error, IndexError) else str(error)
        raise RecordsRefused(f"record {len(found)} of the batch is not valid: {what}", (len(found),)) from error
    if at != len(body):
        raise RecordsRefused(f"{len(body) - at} bytes are left after the {count} records that the batch announces")
    return found


def _record(body: bytes, at: int, row: int, base_timestamp_ms: int) -> tuple[ReadRecord, int]:
    length, at = varint_at(body, at)
    end = at + length
    if length < 0 or end > len(body):
        raise NotARecord(f"it claims {length} bytes, {len(body) - at} are left")
    at += 1  # its attributes, which have no meaning yet
    delta_ms, at = _varlong(body, at)
    offset_delta, at = varint_at(body, at)
    if offset_delta != row:
        raise NotARecord(f"its offset delta is {offset_delta}")
    key, at = _bytes(body, at, end)
    value, at = _bytes(body, at, end)
    count, at = varint_at(body, at)
    headers, at = headers_at(body, at, end, count)
    if at != end:
        raise NotARecord(f"it claims {length} bytes, its fields take {length + at - end}")
    return ReadRecord(key, value, headers, _int64(base_timestamp_ms + delta_ms)), at


def headers_at(body: bytes, at: int, end: int, count: int) -> tuple[Pairs, int]:
    """Return the headers of a record that ends at `end`, and where they end. Raises NotARecord, IndexError."""
    if not 0 <= count <= (end - at) // 2:
        raise NotARecord(f"it claims {count} headers")
    headers: Pairs = []
    for _ in range(count):
        name, at = _bytes(body, at, end)
        if name is None:
            raise NotARecord("a header has no name")
        content, at = _bytes(body, at, end)
        try:
            headers.append((name.decode(), content))
        except UnicodeDecodeError as error:
            raise NotARecord(f"the name of a header is not UTF-8 ({error})") from error
    return headers, at


def _bytes(body: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    byte = body[at]
    if byte == _NULL_BYTE:
        return None, at + 1
    length, at = (byte >> 1, at + 1) if byte < 0x80 and not byte & 1 else varint_at(body, at)
    if length == NULL:  # in more bytes than it needs
        return None, at
    if not 0 <= length <= end - at:
        raise NotARecord(f"a field claims {length} bytes, the record has {end - at} left")
    return body[at : at + length], at + length


def varint_at(body: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins at a place, and where it ends. Raises NotARecord, IndexError."""
    byte = body[at]
    if byte < 0x80:  # most are this short
        return (byte >> 1) ^ -(byte & 1), at + 1
    raw, at = _unsigned(body, at, VARINT_BYTES_MAX)
    raw &= INT32_MASK  # as Java, which shifts the last byte out of its 32 bits
    return (raw >> 1) ^ -(raw & 1), at


def _varlong(body: bytes, at: int) -> tuple[int, int]:
    raw, at = _unsigned(body, at, VARLONG_BYTES_MAX)
    raw &= _INT64_MASK
    return (raw >> 1) ^ -(raw & 1), at


def _unsigned(body: bytes, at: int, bytes_max: int) -> tuple[int, int]:
    raw = 0
    for place in range(bytes_max):
        byte = body[at]
        at += 1
        raw |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return raw, at
    raise NotARecord(f"a number takes more than {bytes_max} bytes")


def _int64(number: int) -> int:
    return number if -(2**63) <= number < 2**63 else (number + 2**63) % 2**64 - 2**63
