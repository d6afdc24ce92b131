"""Make the row of a record that a program sends: interceptors first, then the serializer. Any thread may do this."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ledgermq.client.messages.record import Headers, Outgoing, Row, pairs_of, readable_again, row_of
from ledgermq.client.settings.producers import ProducerSettings
from ledgermq.client.settings.serializers import serialized
from ledgermq.errors import InvalidRecord


def prepared(
    settings: ProducerSettings,
    topic: str,
    value: Any,
    key: Any,
    headers: Headers | None,
    tag: str | None,
    timestamp: datetime | int | None,
    partition: int | None,
    ttl: Any,
    now_us: int,
    *,
    delayed: bool = False,
) -> tuple[str, Row, int | None]:
    """Return topic, row and chosen partition of a record. `delayed`: the timestamp is its due time, which
    interceptors may not change. Raises InvalidRecord.
    """
    if settings.interceptors:
        given = Outgoing(topic, value, key, readable_again(headers), tag, timestamp, partition, ttl)
        topic, value, key, headers, tag, timestamp, partition, ttl = _intercepted(settings, given)
        if delayed and timestamp != given.timestamp:
            raise InvalidRecord("an interceptor must not change the timestamp of a delayed record: it is the due time")
    if settings.serializer is not None and value is not None:
        value = serialized(settings.serializer, value)
        if own := getattr(settings.serializer, "value_headers", None):
            headers = [*pairs_of(headers), *own]
    return topic, row_of(value, key, headers, tag, timestamp, now_us, ttl), partition


def _intercepted(settings: ProducerSettings, record: Outgoing) -> Outgoing:
    for interceptor in settings.interceptors:
        try:
            returned = interceptor(record)
        except Exception as error:
            raise InvalidRecord(f"an interceptor refuses the record: {type(error).__name__}: {error}") from error
        if not isinstance(returned, Outgoing):
            raise InvalidRecord(f"an interceptor must return a ledgermq.Outgoing, not {returned!r:.100}")
        record = returned
    return record
