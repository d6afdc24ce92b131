"""Cursors: places in the partitions of a topic, as text that travels in URLs and in `Last-Event-ID`.

    c1. + base64url of: CRC-32C of the rest (4 bytes) | topic id | partition, offset | partition, offset | …

Numbers are varints. A cursor is not signed: each part is checked as input, and the rights of its caller decide. A
partition that it does not name is new to its reader, and begins at its first offset.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping

from crc32c import crc32c

from ledgermq.client.messages.descriptions import TopicDescription
from ledgermq.protocol.limits import OFFSET_MAX
from ledgermq_gateway.http.problems import Problem

PREFIX = "c1."
CHARS_MAX = 4096
PARTITIONS_MAX = 256
_CRC_BYTES = 4
_FORM = re.compile(r"c1\.[A-Za-z0-9_-]+\Z")


def cursor_of(topic_id: int, offsets: Mapping[int, int]) -> str:
    assert len(offsets) <= PARTITIONS_MAX, "more do not fit into a header"
    data = bytearray()
    _put(data, topic_id)
    for partition, offset in sorted(offsets.items()):
        _put(data, partition)
        _put(data, offset)
    return PREFIX + urlsafe_b64encode(crc32c(bytes(data)).to_bytes(_CRC_BYTES, "little") + data).rstrip(b"=").decode()


def parse_cursor(text: str) -> tuple[int, dict[int, int]]:
    """Return topic id and offsets by partition. Raises Problem (400)."""
    if len(text) > CHARS_MAX or not _FORM.match(text):
        raise _refused()
    coded = text[len(PREFIX) :]
    try:
        data = urlsafe_b64decode(coded + "=" * (-len(coded) % 4))
    except ValueError:
        raise _refused() from None
    crc, rest = data[:_CRC_BYTES], data[_CRC_BYTES:]
    if len(crc) < _CRC_BYTES or crc32c(rest).to_bytes(_CRC_BYTES, "little") != crc:
        raise _refused()
    numbers = _numbers(rest)
    if len(numbers) % 2 == 0 or len(numbers) > 1 + 2 * PARTITIONS_MAX:
        raise _refused()
    offsets = dict(zip(numbers[1::2], numbers[2::2], strict=True))
    if len(offsets) != len(numbers) // 2 or any(number > OFFSET_MAX for number in numbers):
        raise _refused()
    return numbers[0], offsets


def offsets_at(text: str, topic: TopicDescription) -> dict[int, int]:
    """Return the offsets of a cursor in this topic. Raises Problem: 400, and 409 if the topic was made again."""
    topic_id, offsets = parse_cursor(text)
    if topic_id != topic.topic_id:
        raise Problem(
            "OTHER_TOPIC", f"the cursor is of an earlier topic {topic.name!r}, which was deleted: begin without it"
        )
    if any(partition >= len(topic.partitions) for partition in offsets):
        raise _refused()
    return offsets


def _refused() -> Problem:
    return Problem("INVALID_REQUEST", "this is no cursor of this service: take one as it was answered, or none")


def _put(data: bytearray, number: int) -> None:
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)


def _numbers(data: bytes) -> list[int]:
    found, number, shift = [], 0, 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if shift > 70:
            raise _refused()
        if byte < 0x80:
            found.append(number)
            number, shift = 0, 0
    if shift:
        raise _refused()
    return found
