"""What a filter function sees of a message."""

from __future__ import annotations

from ledgermq.filters.functions import FilterMessage, messages_of
from tests.worlds.batches import batch_of


def test_a_function_sees_everything_and_the_last_of_several_headers() -> None:
    headers = [{"key": "a", "value": b"1"}, {"key": "b", "value": None}, {"key": "a", "value": b"\xff"}]
    rows = batch_of([{"value": b"x"}, {"key": b"k", "tag": "t", "headers": headers}, {"headers": []}])
    first, second, third = messages_of(rows)
    assert (first.value, first.key, first.headers, first.tag) == (b"x", None, {}, None)
    assert (second.key, second.tag, second.headers) == (b"k", "t", {"a": b"\xff", "b": None})
    assert third.headers == {}
    assert isinstance(first, FilterMessage)
    assert first.timestamp_us == rows.column("timestamp")[0].value
    assert list(messages_of(rows, 1)) == [second, third], "those before it were judged"
    assert list(messages_of(rows, 3)) == []
