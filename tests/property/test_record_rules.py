"""What one way of sending refuses, all refuse: `send`, `send_batch`, the Spark sink and a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from random import Random
from typing import Any

import pyarrow as pa
from crc32c import crc32c
from hypothesis import example, given
from hypothesis import strategies as st

from ledgermq.client.connection.routing import TopicRoute
from ledgermq.client.messages.record import row_of
from ledgermq.client.producing.arrow.rows import pieces_of
from ledgermq.errors import InvalidRecord
from ledgermq.protocol.batches.records import SCHEMA, TIMESTAMP_MAX_US, TIMESTAMP_MIN_US
from ledgermq.sources import Sources
from ledgermq_broker.paths.received_batches import BatchChecks, Received
from ledgermq_ledger.topics.topic import Topic
from ledgermq_spark.sink.rows.rows import RowRouter
from tests.broker.cluster import batch_header

NAMES = st.none() | st.sampled_from(["", "region", "é", "a\0b"])
BYTES = st.none() | st.binary(max_size=5)
HEADERS = st.none() | st.lists(st.tuples(NAMES, BYTES), max_size=3)
EDGES = [TIMESTAMP_MIN_US - 1, TIMESTAMP_MIN_US, 0, TIMESTAMP_MAX_US, TIMESTAMP_MAX_US + 1]
TIMES = st.sampled_from(EDGES) | st.integers(-(2**63), 2**63 - 1)
TAGS = st.none() | st.sampled_from(["", "blue"])
RECORDS = st.tuples(BYTES, BYTES, HEADERS, TAGS, TIMES)

Given = tuple[bytes | None, bytes | None, list[tuple[Any, bytes | None]] | None, str | None, int]


async def takes_all(topic: Topic, records: pa.RecordBatch) -> None:
    """Check no values, as of a topic that does not ask for it."""


def batch_of(given: Given, timestamp_type: int = 0) -> pa.RecordBatch:
    value, key, headers, tag, timestamp_us = given
    pairs = None if headers is None else [{"key": name, "value": data} for name, data in headers]
    columns = [[key], [value], [pairs], [timestamp_us], [timestamp_type], [tag]]
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


def at_once(work: Coroutine[Any, Any, object]) -> None:
    """Run work that waits for nothing, without the cost of a loop."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits")


def by_send(given: Given) -> None:
    value, key, headers, tag, timestamp_us = given
    row_of(value, key, headers, tag, timestamp_us, 0)


def by_send_batch(given: Given) -> None:
    pieces_of(batch_of(given).drop_columns(["timestampType"]), 0)


def by_other_arrow_types(given: Given) -> None:
    batch = batch_of(given).drop_columns(["timestampType"])
    headers = pa.large_list(pa.struct([("value", pa.large_binary()), ("key", pa.large_string())]))
    wider = {"key": pa.binary_view(), "value": pa.large_binary(), "headers": headers, "tag": pa.string_view()}
    columns = {
        name: pa.array(batch.column(name).to_pylist(), wider[name]) if name in wider else batch.column(name)
        for name in batch.schema.names
    }
    pieces_of(pa.table(columns), 0)


def by_spark(given: Given) -> None:
    async def find(name: str, again: bool) -> TopicRoute:
        return TopicRoute(name, 1, 1, {"max.message.bytes": "1000"}, 0.0)

    at_once(
        RowRouter("t", find, Sources(lambda: TIMESTAMP_MAX_US, Random(1))).route(
            batch_of(given).drop_columns(["timestampType"])
        )
    )


class OneTopic:
    """Finds a topic for every name."""

    async def partition(self, name: str, partition: int, topic_id: int = 0) -> tuple[Topic, int]:
        return Topic(1, name, (1,)), 1


def by_broker(given: Given, timestamp_type: int = 0) -> None:
    data = bytes(batch_of(given, timestamp_type).serialize())
    checks = BatchChecks(asyncio.to_thread, lambda topic, partition: None, lambda: TIMESTAMP_MAX_US, takes_all)
    header = batch_header("t", 0, data, 1)
    assert header.crc == crc32c(data)
    at_once(checks.checked(OneTopic(), Received(header, memoryview(data))))  # type: ignore[arg-type]


def refuses(way: Callable[[], None]) -> bool:
    try:
        way()
    except InvalidRecord:
        return True
    return False


WAYS: list[Callable[[Given], None]] = [by_send, by_send_batch, by_other_arrow_types, by_spark, by_broker]


@given(RECORDS)
@example((b"v", None, [(None, b"x")], None, 0))
@example((b"v", None, [("a", b"x"), (None, None)], None, 0))
@example((b"v", None, None, None, TIMESTAMP_MAX_US + 1))
def test_what_one_refuses_all_refuse(given: Given) -> None:
    verdicts = {way.__name__: refuses(partial(way, given)) for way in WAYS}
    assert len(set(verdicts.values())) == 1, verdicts


@given(st.integers(-(2**31), 2**31 - 1))
@example(0)
@example(1)
@example(7)
def test_only_a_broker_says_that_a_timestamp_is_a_brokers(timestamp_type: int) -> None:
    assert refuses(partial(by_broker, (b"v", None, None, None, 0), timestamp_type)) == (timestamp_type != 0)
