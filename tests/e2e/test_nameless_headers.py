"""A header without a name: no broker stores one, and programs survive those that an older one stored."""

from __future__ import annotations

import pyarrow as pa
import pytest

import ledgermq
from ledgermq import Retry
from ledgermq.errors import InvalidRecord
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.batches.records import SCHEMA, encode_batch, timestamps_of
from ledgermq.protocol.frames import Frame
from ledgermq.protocol.status import error_from_proto
from ledgermq_broker.paths import received_batches
from tests.broker.cluster import TIMESTAMP_US, Cluster, batch_header, in_cluster
from tests.e2e.retrying import all_of, running
from tests.e2e.test_client_takeover import client_of
from tests.waiting import until

PAIRS = [{"key": None, "value": b"1"}, {"key": "name", "value": None}]


def nameless(timestamp_type: int = 0, schema: int = 1) -> Frame[pb.ProduceHeader]:
    columns = [[None], [b"bad"], [PAIRS], [TIMESTAMP_US], [timestamp_type], [None]]
    rows = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    data = encode_batch(pa.RecordBatch.from_arrays(rows, schema=SCHEMA))
    header = batch_header("jobs", 0, data, 1)
    header.schema = schema
    return Frame(pb.ProduceHeader(batches=[header]), [data])


async def as_an_older_broker_stores(cluster: Cluster, patch: pytest.MonkeyPatch) -> None:
    with patch.context() as older:
        older.setattr(received_batches, "check_records", timestamps_of)
        answer = await cluster.line("a:1").produce_once(nameless())
    assert not answer.results[0].HasField("error")


@in_cluster("a:1")
async def test_brokers_refuse_them(cluster: Cluster) -> None:
    await cluster.create("jobs", 1)
    answer = await cluster.line("a:1").produce_once(nameless())
    error = error_from_proto(answer.results[0].error)
    assert isinstance(error, InvalidRecord)
    assert "header without a name" in error.message
    async with client_of(cluster) as client, client.producer() as producer:
        rows = pa.table({"value": ["a"], "headers": pa.array([PAIRS], SCHEMA.field("headers").type)})
        with pytest.raises(InvalidRecord, match="row 0 has a header without a name"):
            await producer.send_batch("jobs", rows)
        assert await all_of(client, "jobs") == []


@in_cluster("a:1")
async def test_a_record_schema_must_be_named(cluster: Cluster) -> None:
    await cluster.create("jobs", 1)
    answer = await cluster.line("a:1").produce_once(nameless(schema=0))
    assert "record schema 0 is not supported" in answer.results[0].error.message


@in_cluster("a:1")
async def test_a_queue_survives_one_that_is_stored(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    await cluster.create("jobs", 1)
    await as_an_older_broker_stores(cluster, monkeypatch)
    async with client_of(cluster) as client:
        async with client.queue("jobs", group="workers", attempts_max=1) as queue:
            [message] = await queue.fetch(timeout=5)
            assert message.headers == (("", b"1"), ("name", None))
            assert await message.nack()
            assert queue.dead_lettered == 1
        [dead] = await all_of(client, "workers.dlq")
        assert dead.headers[:2] == message.headers
        async with client.producer() as producer:
            await producer.send("jobs", dead.value, headers=message.headers)


@in_cluster("a:1")
async def test_a_handler_survives_one_that_is_stored(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    await cluster.create("jobs", 1)
    await as_an_older_broker_stores(cluster, monkeypatch)
    seen: list[bytes | None] = []
    async with client_of(cluster) as client:
        async with client.producer() as producer:
            await producer.send("jobs", b"good")

        @client.handler("jobs", group="g", ordered_by=None, retry=Retry.levels(2, [0], reorders=True))
        async def handle(message: ledgermq.GroupMessage) -> None:
            seen.append(message.value)
            if message.value == b"bad":
                raise ZeroDivisionError

        async with running(client):
            await until(lambda: handle.dead_lettered and b"good" in seen)
        assert seen.count(b"bad") == 2
        [dead] = await all_of(client, "g.dlq")
        assert dead.headers[:2] == (("", b"1"), ("name", None))
