"""Handles of leased messages: text that names a message and its lease, so that any process may answer for it.

    "q1." + base64url( CRC-32C of the rest, 4 bytes | numbers | group | topic )

    numbers     big-endian: topic id 8, partition 4, offset 8, epoch 8, lease 8, attempt 1, attempts_max 1,
                lease_ms 4, dead letters 1 (0 or 1), hash of the caller 8
    group,      each: length 2, then UTF-8
    topic

A handle is no secret, and gives no rights. A broker decides each answer by the rights of its caller, and by the epoch
and number of the lease: who may answer for the group may answer for each of its members. So a forged handle does
nothing that its caller may not do without one. The hash of the caller finds handles that were mixed up.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.messages.handles import data_of, text_of
from ledgermq.errors import InvalidRequest
from ledgermq.protocol.limits import OFFSET_MAX

PREFIX = "q1."
_NUMBERS = struct.Struct(">QIQQQBBIBQ")
_LENGTH = struct.Struct(">H")
PARTITION_MAX = 2**31 - 1
KEPT_MAX = 2_000
"""Handles of which it is remembered what they say: those of a call, which a gateway checks before the client does."""


class LeaseName(NamedTuple):
    """What names a lease in a partition."""

    topic_id: int
    epoch: int
    number: int


class LeaseHandle(NamedTuple):
    """What a handle says. `attempt`: the number of this delivery. `lease_ms`: how long the lease was at first.
    `caller`: hash of the caller that leased it, see `caller_hash`.
    """

    group: str
    at: TopicPartition
    offset: int
    lease: LeaseName
    attempt: int
    attempts_max: int
    lease_ms: int
    dead_letters: bool
    caller: int


def caller_hash(caller: str) -> int:
    """Return the number that stands for a caller in handles; 0 for ""."""
    return int.from_bytes(blake2b(caller.encode(), digest_size=8).digest(), "big") if caller else 0


def handle_of_lease(leased: LeaseHandle) -> str:
    """Return the text of a handle."""
    lease = leased.lease
    numbers = _NUMBERS.pack(
        lease.topic_id,
        leased.at.partition,
        leased.offset,
        lease.epoch,
        lease.number,
        leased.attempt,
        leased.attempts_max,
        leased.lease_ms,
        leased.dead_letters,
        leased.caller,
    )
    return text_of(PREFIX, b"".join([numbers, _sized(leased.group), _sized(leased.at.topic)]))


def lease_of_handle(handle: object) -> LeaseHandle:
    """Return what a handle says. Raises InvalidRequest for a text that is no handle."""
    if not isinstance(handle, str):
        raise InvalidRequest(f"the handle of a leased message is text, not {type(handle).__name__}")
    try:
        return _decoded(handle)
    except (ValueError, struct.error) as error:
        raise InvalidRequest(
            f"{handle!r:.100} is not the handle of a leased message ({error}): give the whole text as it was returned"
            " with the message"
        ) from error


@lru_cache(KEPT_MAX)
def _decoded(handle: str) -> LeaseHandle:
    data = data_of(PREFIX, handle)
    topic_id, partition, offset, epoch, number, attempt, attempts_max, lease_ms, dead_letters, caller = (
        _NUMBERS.unpack_from(data)
    )
    group, end = _text(data, _NUMBERS.size)
    topic, end = _text(data, end)
    if end != len(data):
        raise ValueError("it has another length than it says")
    if not group or not topic or not topic_id or partition > PARTITION_MAX or offset > OFFSET_MAX or dead_letters > 1:
        raise ValueError("it names what no handle names")
    at, lease = TopicPartition(topic, partition), LeaseName(topic_id, epoch, number)
    return LeaseHandle(group, at, offset, lease, attempt, attempts_max, lease_ms, bool(dead_letters), caller)


def _sized(text: str) -> bytes:
    data = text.encode()
    return _LENGTH.pack(len(data)) + data


def _text(data: bytes, begin: int) -> tuple[str, int]:
    """Return the text that begins at a place, and where it ends."""
    (length,) = _LENGTH.unpack_from(data, begin)
    begin += _LENGTH.size
    end = begin + length
    if end > len(data):
        raise ValueError("it ends early")
    return data[begin:end].decode(), end
