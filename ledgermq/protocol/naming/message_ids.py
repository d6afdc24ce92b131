"""The id that a program gives to a message (`send(…, id=…)`), by which topics with `dedup.window.ms`
recognize duplicates.

It is a header of the record, so it is stored with the message, and consumers see it. Brokers remember
a hash of 16 bytes, whatever its length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import blake2b

import pyarrow as pa
import pyarrow.compute as pc

from ledgermq.errors import InvalidRecord
from ledgermq.protocol.batches.record_rules import rows_of_headers

MESSAGE_ID = "ledgermq.message-id"
"""Header with the id. Of several, the first one counts."""
ID_BYTES_MAX = 256
HASH_BYTES = 16
NO_ID = bytes(HASH_BYTES)
"""Stands for a record without an id."""

_NAME = re.compile(re.escape(MESSAGE_ID.encode()))


def hash_of(message_id: bytes) -> bytes:
    return blake2b(message_id, digest_size=HASH_BYTES).digest()


def check_id(message_id: bytes | None) -> bytes:
    """Return an id. Raises InvalidRecord."""
    if not message_id or len(message_id) > ID_BYTES_MAX:
        size = 0 if message_id is None else len(message_id)
        raise InvalidRecord(f"the id of a message has 1 to {ID_BYTES_MAX} bytes, not {size}")
    return message_id


def ids_of(rows: pa.RecordBatch) -> bytes:
    """Return the hashes of the ids of a validated batch, one for each row; empty: no row has an id.

    Raises InvalidRecord.
    """
    headers = rows.column("headers")
    if headers.null_count == len(headers):
        return b""
    names = headers.values.field("key").buffers()[2]  # the names of all headers, one after the other
    if names is None or _NAME.search(names) is None:
        return b""
    parents = rows_of_headers(headers)
    keys, values = pc.list_flatten(headers).flatten()
    chosen = pc.fill_null(pc.equal(keys, MESSAGE_ID), False)
    found: dict[int, bytes] = {}
    for row, value in zip(parents.filter(chosen).to_pylist(), values.filter(chosen).to_pylist(), strict=True):
        if row not in found:
            found[row] = hash_of(check_id(value))
    return b"".join(found.get(row, NO_ID) for row in range(rows.num_rows)) if found else b""


def split_ids(ids: bytes) -> Iterator[bytes]:
    """Yield the hash of each row."""
    for at in range(0, len(ids), HASH_BYTES):
        yield ids[at : at + HASH_BYTES]


def count_ids(ids: bytes) -> int:
    """Return the number of rows that have an id."""
    return sum(message_id != NO_ID for message_id in split_ids(ids))
