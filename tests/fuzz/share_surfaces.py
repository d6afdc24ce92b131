"""Records of `__shares`: a broker that takes one in goes on from there, and raises typed errors only.

input: | length of the key | key | value |
"""

from __future__ import annotations

import random
import struct

from google.protobuf.message import DecodeError

from ledgermq_broker.queues.state.bundle_shares import Answer, BundleShares
from ledgermq_broker.queues.state.format import ledgermq_shares_pb2 as fmt
from ledgermq_broker.queues.state.limits import ShareLimits
from ledgermq_broker.queues.state.records import ChunkEntry, Entry, ShareKey, StartEntry, encode
from ledgermq_broker.queues.state.share_partition import Word
from ledgermq_broker.queues.state.spans import Span
from ledgermq_ledger.log.log_record import LogRecord
from tests.fuzz.mutation import mutate_fields
from tests.fuzz.surface import Surface, Untyped
from tests.worlds.batches import mutate

_LENGTH = struct.Struct("<H")
KEY = ShareKey("workers", 7, 3)
ENTRIES: list[Entry] = [
    StartEntry(KEY, 1000),
    ChunkEntry(KEY, 3, bytes([5] * 100)),
    ChunkEntry(KEY, 4, bytes([4, 0, 6, 8])),
    StartEntry(ShareKey("others", 7, 0), 0),
]


def seeds() -> list[bytes]:
    return [_input(encode(entry)) for entry in ENTRIES]


def spoil(rng: random.Random, data: bytes) -> bytes:
    key, value = _parts(data)
    if rng.random() < 0.3:
        key = mutate(rng, key, data)
    if rng.random() < 0.4:
        return _input(LogRecord(key, mutate(rng, value, data)))
    message = fmt.Start() if key.startswith(b"s") else fmt.Chunk()
    try:
        message.ParseFromString(value)
    except DecodeError:
        pass
    mutate_fields(rng, message)
    return _input(LogRecord(key, message.SerializeToString()))


def check(data: bytes) -> None:
    """No value: a tombstone."""
    shares = BundleShares(ShareLimits())
    for record in map(encode, ENTRIES):
        shares.apply(record.key, record.value)
    key, value = _parts(data)
    shares.apply(key, value or None)
    shares.loaded()
    for found in shares.partitions.values():
        grants = found.acquire("m", 1, 100, 10.0, found.end + 5)
        for grant in grants:
            found.answer(1, Span(grant.first, grant.last), Word.ACCEPT, 0.0)
        if grants and found.start < grants[0].first:
            raise Untyped("the first open message was leased and accepted, and the start does not pass it")
        found.counts()
        for entry in found.entries():
            encode(entry)
    shares.answer(KEY, [Answer(2, Span(0, 1 << 64), Word.RELEASE, 5.0)])
    shares.expire(100.0)


def _input(record: LogRecord) -> bytes:
    return _LENGTH.pack(len(record.key)) + record.key + (record.value or b"")


def _parts(data: bytes) -> tuple[bytes, bytes]:
    length = _LENGTH.unpack_from(data)[0] if len(data) >= _LENGTH.size else 0
    return data[_LENGTH.size :][:length], data[_LENGTH.size :][length:]


def surfaces() -> list[Surface]:
    return [Surface("share-record", seeds(), check, spoil)]
