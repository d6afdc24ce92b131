"""Records of `__consumer_offsets`: one of strange bytes among valid ones; what is taken in means
the same when it is written down again.

input: | length of the key | key | value |
"""

from __future__ import annotations

import random
import struct

from google.protobuf.message import DecodeError, Message

from ledgermq_offsets.format import ledgermq_offsets_pb2 as fmt
from ledgermq_offsets.state.groups import OffsetsState
from ledgermq_offsets.state.records import (
    Entry,
    GroupEntry,
    GroupValue,
    Held,
    MemberEntry,
    MemberValue,
    OffsetEntry,
    OffsetValue,
    PendingEntry,
    PendingKey,
    PendingOffset,
    PendingValue,
    Subscription,
    encode,
)
from tests.fuzz.mutation import mutate_fields
from tests.fuzz.surface import Surface, Untyped
from tests.worlds.batches import mutate

_LENGTH = struct.Struct("<H")
HELD = {(7, 0): Held(12, False), (7, 3): Held(40, True)}
ENTRIES: list[Entry] = [
    GroupEntry("g", GroupValue(41, 7, 0, "sticky")),
    MemberEntry(
        "g",
        "m-1",
        MemberValue(Subscription(("t", "u"), "", "range", "static", "zone", "client"), False, HELD, {7: "t"}),
    ),
    OffsetEntry("g", (7, 3), OffsetValue(900, "where I was", 1_700_000_000_001, 40, 5, "t")),
    OffsetEntry("g", (7, 4), OffsetValue(None, "", 1_700_000_000_002, 41, 0, "t")),
    PendingEntry(
        "g",
        PendingKey(b"\x01" * 16, 3, 12),
        PendingValue("orders-7", 1, 1_700_000_000_003, {(7, 4): PendingOffset(12, "staged", 41, 6, "t")}),
    ),
    OffsetEntry("g", (7, 3), None),
]
_MESSAGES: dict[bytes, type[Message]] = {
    b"group": fmt.Group,
    b"member": fmt.Member,
    b"offset": fmt.Offset,
    b"floor": fmt.Floor,
    b"pending": fmt.Pending,
}


def seeds() -> list[bytes]:
    records = [encode(entry) for entry in ENTRIES]
    floor = b"floor", fmt.Floor(version=1, epoch=41).SerializeToString()
    return [
        _LENGTH.pack(len(key)) + key + value
        for key, value in [*((record.key, record.value or b"") for record in records), floor]
    ]


def spoil(rng: random.Random, data: bytes) -> bytes:
    key, value = _parts(data)
    if rng.random() < 0.4:
        key = mutate(rng, key, data)
    kind = _MESSAGES.get(key.partition(b"/")[0])
    if kind is None or rng.random() < 0.4:
        value = mutate(rng, value, data)
    else:
        message = kind()
        try:
            message.ParseFromString(value)
        except DecodeError:
            pass
        mutate_fields(rng, message)
        value = message.SerializeToString()
    return _LENGTH.pack(len(key)) + key + value


def _parts(data: bytes) -> tuple[bytes, bytes]:
    length = _LENGTH.unpack_from(data)[0] if len(data) >= _LENGTH.size else 0
    return data[_LENGTH.size :][:length], data[_LENGTH.size :][length:]


def check(data: bytes) -> None:
    """No value: a tombstone."""
    state = OffsetsState()
    for entry in ENTRIES[:-1]:
        state.take(entry)
    key, value = _parts(data)
    state.apply(key, value or None)
    snapshot = _written_down_again(
        state
    )  # a group whose own record is gone leaves behind what its other records will take away
    if _written_down_again(snapshot).snapshot() != snapshot.snapshot():
        raise Untyped("a record that was accepted means something else when it is written down again")


def _written_down_again(state: OffsetsState) -> OffsetsState:
    again = OffsetsState()
    for record in state.snapshot():
        again.apply(record.key, record.value)
    return again


def surfaces() -> list[Surface]:
    return [Surface("group-record", seeds(), check, spoil)]
