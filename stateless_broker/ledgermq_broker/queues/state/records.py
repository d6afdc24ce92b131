"""Encode and decode the records of `__shares`: typed entries, and their bytes.

    key                                          value
    s/<group>/<topic id>/<partition>             Start   the first message that is not finished, or less
    w/<group>/<topic id>/<partition>/<chunk>     Chunk   256 messages: finished or not, and their deliveries

A record without a value deletes its key. Names contain no "/", numbers are decimal. Invariants:
`decode(encode(entry)) == entry`; equal entries have equal bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from ledgermq.errors import DataDamaged
from ledgermq.protocol.limits import OFFSET_MAX
from ledgermq.protocol.naming.names import NAME_PATTERN
from ledgermq_broker.queues.state.format import ledgermq_shares_pb2 as fmt
from ledgermq_broker.queues.state.limits import CHUNK
from ledgermq_ledger import keys
from ledgermq_ledger.log.log_record import NUMBER, LogRecord, RecordCodec
from ledgermq_ledger.log.partitions.shares import NO_PRINCIPAL

CHUNK_END = (OFFSET_MAX + 1) // CHUNK + 1


class Fate(IntEnum):
    """The low two bits of a message's byte; the others count its deliveries."""

    OPEN = 0
    ACCEPTED = 1
    REJECTED = 2
    GONE = 3
    """It was deleted before it was finished."""


class ShareKey(NamedTuple):
    """One partition of a queue group."""

    group: str
    topic_id: int
    partition: int


@dataclass(frozen=True, slots=True)
class StartEntry:
    """`resets`: nonces of the newest calls that reset the group here or deleted it, oldest first. `principal`: a hash
    of the one that began the group here; 0: not known. `begun`: drawn when it began; empty if an earlier release
    wrote it.
    """

    key: ShareKey
    offset: int | None
    resets: tuple[bytes, ...] = ()
    principal: int = NO_PRINCIPAL
    begun: bytes = b""


@dataclass(frozen=True, slots=True)
class ChunkEntry:
    """`messages`: one byte for each, up to the last one that is not 0; None: the chunk has none."""

    key: ShareKey
    chunk: int
    messages: bytes | None


Entry = StartEntry | ChunkEntry
CODEC: RecordCodec[Entry] = RecordCodec(keys.SHARES_TOPIC)

_PARTITION = f"/({NAME_PATTERN})/".encode() + NUMBER + b"/" + NUMBER
_START = re.compile(b"s" + _PARTITION + rb"\Z")
_CHUNK = re.compile(b"w" + _PARTITION + b"/" + NUMBER + rb"\Z")


def encode(entry: Entry) -> LogRecord:
    group, topic_id, partition = entry.key
    if isinstance(entry, StartEntry):
        start = None
        if entry.offset is not None:
            start = fmt.Start(
                version=CODEC.version,
                offset=entry.offset,
                resets=entry.resets,
                principal=entry.principal,
                begun=entry.begun,
            )
        return CODEC.record(f"s/{group}/{topic_id}/{partition}", start)
    chunk = None if entry.messages is None else fmt.Chunk(version=CODEC.version, messages=entry.messages)
    return CODEC.record(f"w/{group}/{topic_id}/{partition}/{entry.chunk}", chunk)


def decode(key: bytes, value: bytes | None) -> Entry:
    """Decode one record. Raises as `RecordCodec.decode`."""
    return CODEC.decode(key, value, _entry_of)


def _entry_of(key: bytes, value: bytes | None) -> Entry | None:
    if found := _START.match(key):
        return StartEntry(_key_of(found), None) if value is None else _start_of(_key_of(found), value)
    if (found := _CHUNK.match(key)) and int(found[4]) < CHUNK_END:
        return ChunkEntry(_key_of(found), int(found[4]), None if value is None else _messages_of(value))
    return None


def _key_of(found: re.Match[bytes]) -> ShareKey:
    return ShareKey(found[1].decode(), int(found[2]), int(found[3]))


def _start_of(key: ShareKey, data: bytes) -> StartEntry:
    stored = CODEC.value(fmt.Start, data)
    if stored.offset > OFFSET_MAX:
        raise DataDamaged(f"{stored.offset} is not an offset")
    return StartEntry(key, stored.offset, tuple(stored.resets), stored.principal, stored.begun)


def _messages_of(data: bytes) -> bytes:
    stored = CODEC.value(fmt.Chunk, data)
    if not 0 < len(stored.messages) <= CHUNK or stored.messages[-1] == 0:
        raise DataDamaged(f"a chunk has 1 to {CHUNK} messages, and its last byte is not 0")
    return stored.messages
