"""Show a producer id to people without giving it away, and name the producers of the Kafka protocol as ours.

A producer id is a secret of its producer: a caller that has it may write batches, or stage them, in
its place. Answers that describe what producers did have the shown form instead. It has the length of an
id, so that earlier clients take it for one, and no call accepts it as one. Only the end of a half
message that is being checked may name its transaction by it.

    Kafka                                    here
    producer id i64, 63 random bits          16 bytes: "kafka", three zero bytes, the number
    producer epoch i16, from 0               epoch; of a transactional id: from 1
    sequence i32 of the first record,        sequence u64, which never wraps
      0 after 2^31 - 1
"""

from __future__ import annotations

import struct
from hashlib import sha256

from ledgermq.protocol.limits import PRODUCER_ID_BYTES

_DOMAIN = b"ledgermq shown producer id\0"
_PREFIX = b"kafka\0\0\0"
_ID = struct.Struct(">q")
_WRAP = 2**31
KAFKA_EPOCH_MAX = 2**15 - 2
"""The last epoch that Kafka uses: the one behind it only fences."""


def shown_producer_id(producer_id: bytes) -> bytes:
    """Return the form of an id that answers show: a hash, of the same length; empty for an empty id."""
    return sha256(_DOMAIN + producer_id).digest()[:PRODUCER_ID_BYTES] if producer_id else b""


def shown_number(shown: bytes) -> int:
    """Return the number that clients of the Kafka protocol are shown in place of a producer id: of its shown form."""
    return int.from_bytes(shown[:8], "big") >> 1


def producer_bytes(producer_id: int) -> bytes:
    """Return our form of a Kafka producer id, which is at least 0."""
    return _PREFIX + _ID.pack(producer_id)


def kafka_producer_id(producer: bytes) -> int | None:
    """Return the Kafka producer id that `producer_bytes` has given this form; None: it is an id of our own client."""
    if not producer.startswith(_PREFIX):
        return None
    number: int = _ID.unpack(producer[len(_PREFIX) :])[0]
    return number


def new_producer(random_bytes: bytes) -> bytes:
    """Return a new producer id in our form, of 16 random bytes."""
    return producer_bytes(int.from_bytes(random_bytes[:8], "big") >> 1)


def unwrapped(sequence: int, near: int) -> int:
    """Return the sequence that a batch means: of those that wrap to `sequence`, the nearest to `near`.

    `near`: the next sequence that is expected of the producer in the partition; 0 for one that is not remembered.
    A producer's new epoch begins with 0, so 0 means that, except where exactly it is expected.
    """
    return 0 if sequence == 0 and near % _WRAP else nearest(sequence, near)


def nearest(sequence: int, near: int) -> int:
    """As `unwrapped`, of a batch whose epoch is that of `near`: there, 0 may also be what comes after the wrap."""
    meant = near + ahead_of(sequence, near)
    return meant if meant >= 0 else meant + _WRAP


def ahead_of(sequence: int, other: int) -> int:
    """Return how far a sequence is ahead of another one, where both may have wrapped; below 0: behind it."""
    return (sequence - other + _WRAP // 2) % _WRAP - _WRAP // 2
