"""Read and write what members of protocol type "consumer" tell each other: subscriptions and assignments.

    subscription    version int16, topics, user data and, in later versions, more that is not read here
    assignment      version int16, partitions by topic, user data

Source: ConsumerProtocolSubscription and ConsumerProtocolAssignment of Kafka 4.1. For tools only: the coordinator of a
group never looks at either.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

PROTOCOL_TYPE = "consumer"
_NO_USER_DATA = struct.pack(">i", -1)


def subscribed_topics(metadata: bytes) -> list[str]:
    """Return the topics of a subscription; none if the bytes are no subscription."""
    try:
        return _Bytes(metadata).topics()
    except (struct.error, ValueError):
        return []


def assigned_partitions(assignment: bytes) -> dict[str, list[int]]:
    """Return the partitions of an assignment, by topic; none if the bytes are no assignment."""
    try:
        return _Bytes(assignment).partitions()
    except (struct.error, ValueError):
        return {}


def subscription(topics: Sequence[str]) -> bytes:
    return struct.pack(">hi", 0, len(topics)) + b"".join(map(_text, topics)) + _NO_USER_DATA


def assignment(partitions: Mapping[str, Sequence[int]]) -> bytes:
    parts = [_text(topic) + struct.pack(f">{len(of) + 1}i", len(of), *of) for topic, of in partitions.items()]
    return struct.pack(">hi", 0, len(parts)) + b"".join(parts) + _NO_USER_DATA


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 2  # behind the version

    def topics(self) -> list[str]:
        return [self._name() for _ in range(self._count(2))]

    def partitions(self) -> dict[str, list[int]]:
        return {self._name(): [self._int32() for _ in range(self._count(4))] for _ in range(self._count(6))}

    def _count(self, least_bytes: int) -> int:
        count = self._int32()
        if not 0 <= count <= (len(self._data) - self._at) // least_bytes:
            raise ValueError(f"{count} elements in {len(self._data) - self._at} bytes")
        return count

    def _int32(self) -> int:
        [value] = struct.unpack_from(">i", self._data, self._at)
        self._at += 4
        return int(value)

    def _name(self) -> str:
        [size] = struct.unpack_from(">h", self._data, self._at)
        self._at += 2 + size
        if size < 0 or self._at > len(self._data):
            raise ValueError("a name is cut off")
        return self._data[self._at - size : self._at].decode()
