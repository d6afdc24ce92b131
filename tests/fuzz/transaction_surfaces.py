"""Records of `__transactions`: one of strange bytes among valid ones. What is taken in means the same
when it is written down again, and a broker that goes on from there raises typed errors only.

input: | length of the key | key | value |
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

from google.protobuf.message import DecodeError, Message

from ledgermq.errors import LedgerMQError
from ledgermq_broker.transactions.state.coordinator import Coordinator
from ledgermq_broker.transactions.state.format import ledgermq_transactions_pb2 as fmt
from ledgermq_broker.transactions.state.limits import TransactionLimits
from ledgermq_broker.transactions.state.participant import Participant
from ledgermq_broker.transactions.state.participating.intake import ToStage
from ledgermq_broker.transactions.state.records import (
    Entry,
    IdEntry,
    IdValue,
    NoteEntry,
    NoteValue,
    ReferencesEntry,
    ReferencesValue,
    encode,
)
from ledgermq_broker.transactions.state.types import Kind, Part, Reference, State, Stream, Transaction
from tests.fuzz.mutation import mutate_fields
from tests.fuzz.surface import Surface, Untyped
from tests.worlds.batches import mutate

_LENGTH = struct.Struct("<H")
PRODUCER, OTHER = b"\x01" * 16, b"\x02" * 16
NOW_MS = 1_700_000_000_000
BUNDLE = 2
OPEN = Transaction("orders-7", 1, PRODUCER, 3, 12)
BEGUN = Transaction("orders-8", 1, OTHER, 1, 4)
STREAMS = Stream(b"", 4, 0), Stream(b"branch", 4, 1)
LIMITS = TransactionLimits()


def _reference(stream: Stream, sequence: int, offset: int) -> Reference:
    return Reference(stream, sequence, offset, 10, 1000, 0xDEADBEEF, 5, 9)


ENTRIES: list[Entry] = [
    IdEntry("orders-7", IdValue(PRODUCER, 3, Kind.ORDINARY, 60_000, NOW_MS, 11, State.ABORTED)),
    IdEntry(
        "orders-8",
        IdValue(
            OTHER,
            1,
            Kind.ORDINARY,
            60_000,
            NOW_MS,
            4,
            State.COMMITTED,
            complete=False,
            parts=(Part(BUNDLE, {STREAMS[0]: 2}, ("g",)),),
            missing=(BUNDLE,),
        ),
    ),
    IdEntry(
        "xid",
        IdValue(
            b"\x03" * 16, 1, Kind.HALF_MESSAGE, 60_000, NOW_MS, 1, State.PREPARED, False, (Part(1),), (), "checkers", 3
        ),
    ),
    ReferencesEntry(
        *OPEN[2:], 0, ReferencesValue(OPEN, NOW_MS, (_reference(STREAMS[0], 0, 0), _reference(STREAMS[1], 0, 10)))
    ),
    ReferencesEntry(*OPEN[2:], 1, ReferencesValue(OPEN, NOW_MS + 5, (_reference(STREAMS[0], 1, 20),))),
    ReferencesEntry(*BEGUN[2:], 3, ReferencesValue(BEGUN, NOW_MS, (_reference(STREAMS[0], 1, 30),))),
    NoteEntry(PRODUCER, NoteValue(OPEN._replace(number=11), State.ABORTED, finished=True)),
    NoteEntry(
        OTHER,
        NoteValue(BEGUN, State.COMMITTED, False, Part(BUNDLE, {STREAMS[0]: 2}, ("g",)), {STREAMS[0]: 1}),
    ),
]
_MESSAGES: dict[bytes, type[Message]] = {b"id": fmt.Id, b"ref": fmt.References, b"done": fmt.Note}


def seeds() -> list[bytes]:
    return [_input(record.key, record.value or b"") for record in map(encode, ENTRIES)]


def spoil(rng: random.Random, data: bytes) -> bytes:
    key, value = _parts(data)
    kind = _MESSAGES.get(key.partition(b"/")[0])
    if rng.random() < 0.3:
        key = mutate(rng, key, data)
    if kind is None or rng.random() < 0.3:
        return _input(key, mutate(rng, value, data))
    message = kind()
    try:
        message.ParseFromString(value)
    except DecodeError:
        pass
    mutate_fields(rng, message)
    return _input(key, message.SerializeToString())


def check(data: bytes) -> None:
    """No value: a tombstone."""
    coordinator, participant = _cores()
    for record in map(encode, ENTRIES):
        coordinator.apply(record.key, record.value)
        participant.apply(record.key, record.value)
    key, value = _parts(data)
    coordinator.apply(key, value or None)
    participant.apply(key, value or None)
    again = _cores()
    for entry in (*coordinator.entries(), *participant.entries()):
        record = encode(entry)
        for core in again:
            core.apply(record.key, record.value)
    if (again[0].entries(), again[1].entries()) != (coordinator.entries(), participant.entries()):
        raise Untyped("a record that was accepted means something else when it is written down again")
    _go_on(coordinator, participant)


def _cores() -> tuple[Coordinator, Participant]:
    numbers = count()
    return Coordinator(1, LIMITS, lambda: next(numbers).to_bytes(16), lambda: 0.0), Participant(BUNDLE, LIMITS)


def _go_on(coordinator: Coordinator, participant: Participant) -> None:
    """What a broker does with the state when it has loaded it, and a client asks for."""
    later_ms = NOW_MS + 3_600_000
    coordinator.start()
    completed = coordinator.bundles.to_complete()
    coordinator.operators.infos(open_only=True)
    participant.staged_infos()
    participant.lowest_offset()
    participant.upkeep.to_carry(later_ms, 1000)
    for transaction, part in participant.upkeep.to_ask(later_ms):
        _tried(coordinator.bundles.fate, transaction, part, later_ms)
    for doing in participant.completing.unfinished():
        _tried(participant.completing.next_chunk, doing.producer_id)
    for transaction, state, part in completed:
        _tried(
            participant.completing.complete, transaction, state, part, confirmed=True, groups_pending=lambda group: True
        )
        _tried(coordinator.bundles.completed, transaction, part.bundle, later_ms)
    batch = ToStage(4, 0, 2, 1, 10, 7, 0, 0)
    _tried(participant.intake.stage, OPEN, b"", [batch], 1000, later_ms)
    for name in ("orders-7", "orders-8", "xid"):
        _tried(coordinator.producers.outcome, name, 0, 0, later_ms)
        _tried(coordinator.producers.init, name, Kind.ORDINARY, 0, "", later_ms)
        _tried(coordinator.operators.describe, name)
    coordinator.expiry.expire(later_ms + LIMITS.expiry_ms)


def _tried(call: Callable[..., object], *arguments: Any, **named: Any) -> None:
    with suppress(LedgerMQError):
        call(*arguments, **named)


def _input(key: bytes, value: bytes) -> bytes:
    return _LENGTH.pack(len(key)) + key + value


def _parts(data: bytes) -> tuple[bytes, bytes]:
    length = _LENGTH.unpack_from(data)[0] if len(data) >= _LENGTH.size else 0
    return data[_LENGTH.size :][:length], data[_LENGTH.size :][length:]


def surfaces() -> list[Surface]:
    return [Surface("transaction-record", seeds(), check, spoil)]
