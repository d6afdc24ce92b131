"""Digest what a repeatable transaction writes: equal calls have equal digests, in every process and release.

    digest   16 bytes of BLAKE2b over all fields, each with its length or marked as absent
    record   topic, value as the serializer made it, key, headers, tag, partition, priority, and the times as given
    offset   group, topic, partition, offset

Times that a program leaves out differ from call to call, so they are no part of it. Interceptors run later, and may
add such times, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Any

from ledgermq.client.messages.record import Record, as_bytes, microseconds_of, pairs_of
from ledgermq.client.settings.producers import ProducerSettings
from ledgermq.client.settings.serializers import serialized
from ledgermq.client.transactions.sending.group_offsets import GroupOffset
from ledgermq.errors import InvalidRecord
from ledgermq.protocol.limits import CONTENT_BYTES_MAX

_ABSENT = (2**64 - 1).to_bytes(8, "big")


def content_of(
    records: Iterable[tuple[str, Record]], offsets: Sequence[GroupOffset], settings: ProducerSettings
) -> bytes:
    """Return the digest. Raises InvalidRecord for a record that has no bytes."""
    found = blake2b(digest_size=CONTENT_BYTES_MAX)
    for topic, record in records:
        for field in _fields(topic, record, settings):
            found.update(_ABSENT if field is None else len(field).to_bytes(8, "big") + field)
    found.update(_ABSENT)
    for each in sorted(offsets):
        for field in (each.group.encode(), each.topic.encode(), b"%d %d" % (each.partition, each.offset)):
            found.update(len(field).to_bytes(8, "big") + field)
    return found.digest()


def _fields(topic: str, record: Record, settings: ProducerSettings) -> Iterable[bytes | None]:
    yield topic.encode()
    value = record.value
    if settings.serializer is not None and value is not None:
        value = serialized(settings.serializer, value)
    yield as_bytes("value", value)
    yield as_bytes("key", record.key)
    headers = pairs_of(record.headers)
    yield b"%d" % len(headers)
    for name, data in headers:
        yield name.encode()
        yield as_bytes(f"header {name!r}", data)
    yield as_bytes("id", record.id)
    for other in (record.tag, record.timestamp, record.partition, record.ttl, record.delay, record.deliver_at):
        yield _text(other)
    yield _text(record.delay_level)
    yield _text(record.priority)


def _text(given: Any) -> bytes | None:
    """Return what stands for a field. A time and a duration are the same in each form in which they can be given."""
    if given is None:
        return None
    if isinstance(given, datetime):
        return b"%d" % microseconds_of(given)
    if isinstance(given, timedelta):
        given = given / timedelta(seconds=1)
    if isinstance(given, int | float):
        return repr(float(given) if isinstance(given, float) and not given.is_integer() else int(given)).encode()
    if not isinstance(given, str):
        raise InvalidRecord(f"a field of a record is text, a number or a time, not {type(given).__name__}")
    return given.encode(errors="surrogatepass")
