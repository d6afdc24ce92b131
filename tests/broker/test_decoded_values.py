"""Batches that a part of the process hands over decoded go the way of all frames, and are not decoded again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest

from ledgermq.errors import CorruptFrame, InvalidRecord, UnknownTopic
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.batches.records import SCHEMA
from ledgermq.protocol.frames import Frame, decode_produce, encode_frame
from ledgermq.protocol.limits import DELAYED_BRANCH
from ledgermq_broker.paths import received_batches
from ledgermq_broker.paths.values import Value, produce_frame, stage_frame
from tests.broker.access import RULES, change, token
from tests.broker.cluster import Cluster, in_cluster
from tests.broker.quotas import set_quota
from tests.broker.transaction_calls import beginner
from tests.waiting import until

NOW_US = 1_700_000_000_000_000


def records(values: Sequence[bytes], at_us: int | None = NOW_US, key: bytes | None = None) -> pa.RecordBatch:
    columns: list[Sequence[object]] = [
        [key] * len(values),
        list(values),
        [None] * len(values),
        [at_us] * len(values),
        [0] * len(values),
        [None] * len(values),
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


@pytest.fixture
def undecoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no batch be decoded on its way in."""

    def fail(*args: object, **named: object) -> None:
        raise AssertionError("a batch that came decoded was read from its bytes")

    monkeypatch.setattr(received_batches, "decode_batch", fail)
    monkeypatch.setattr(received_batches, "walk_batch", fail)


@in_cluster("a:1")
async def test_decoded_batches_are_stored_as_others_are(cluster: Cluster, undecoded: None) -> None:
    await cluster.create("t", 2)
    session = pb.ProducerSession(id=b"p" * 16, epoch=1, sequence=0, opened_slot=0)
    [opened] = (
        await cluster.line("a:1").open_producer(
            pb.OpenProducerRequest(producer_id=session.id, partitions=[pb.TopicPartition(topic="t", partition=1)])
        )
    ).partitions
    session.opened_slot = opened.opened_slot
    values = [Value("t", 0, records([b"a", b"b"])), Value("t", 1, records([b"c"], None), producer=session)]
    for _ in range(2):  # the second time, the session finds the batch that is stored
        answer = await cluster.line("a:1").produce_once(produce_frame(values, NOW_US, compression="lz4"))
        assert not any(result.HasField("error") for result in answer.results)
    assert [result.base_offset for result in answer.results] == [2, 0]
    assert await cluster.read_all("t", 0) == [b"a", b"b"] * 2
    assert await cluster.read_all("t", 1) == [b"c"]


@in_cluster("a:1")
async def test_timed_and_staged_batches_may_come_decoded(cluster: Cluster, undecoded: None) -> None:
    await cluster.create("t", 1)
    now_us = cluster.now_ms() * 1000
    value = Value("t", 0, records([b"later"], now_us + 60_000_000))
    [result] = (await cluster.line("a:1").produce_delayed_once(produce_frame([value], now_us))).results
    assert not result.HasField("error"), result

    producer = await beginner(cluster, "orders")

    async def staged(branch: bytes, value: Value) -> pb.StageResult:
        frame = stage_frame(producer.ref, [value], now_us, branch=branch)

        async def requests():
            yield frame

        stage = cluster.line("a:1").stage_delayed if branch else cluster.line("a:1").stage
        [found] = (await anext(stage(requests()))).results
        return found

    assert not (await staged(b"", Value("t", 0, records([b"staged"])))).HasField("error")
    assert not (await staged(DELAYED_BRANCH, value)).HasField("error")
    far = Value("t", 0, records([b"far"], now_us + 10**15), sequence=1)
    assert (await staged(DELAYED_BRANCH, far)).error.code == InvalidRecord.code


@in_cluster("a:1", **RULES)
async def test_rules_and_quotas_hold_for_decoded_batches(cluster: Cluster, undecoded: None) -> None:
    """What is refused leaves its records, so that those of the others stay with their batches."""
    await cluster.create("t", 1, token=(await token(cluster, "root")).text)
    bob = (await token(cluster, "bob")).text
    await change(cluster, grant=["allow user:bob produce t"])
    values = [Value("no", 0, records([b"1", b"2", b"3"])), Value("t", 0, records([b"4"]))]
    line = cluster.line(await cluster.owner_of("t", 0), bob)

    refused, taken = (await line.produce_once(produce_frame(values, NOW_US))).results
    assert refused.error.code == "UNAUTHORIZED"
    assert not taken.HasField("error"), taken

    await set_quota(cluster, "user:bob", bytes_in=1)
    frame = produce_frame([Value("t", 0, records([b"x" * 5000]))], NOW_US)

    async def is_refused() -> bool:
        [result] = (await line.produce_once(frame)).results
        return result.error.code == "RESOURCE_EXHAUSTED"

    await until(is_refused)


@in_cluster("a:1")
async def test_decoded_records_are_checked_as_others_are(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    good = records([b"a"])
    frame = produce_frame([Value("t", 0, good)], NOW_US)
    not_text = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe"))
    for wrong in (
        records([b"a", b"b"]),  # more than the header says
        good.slice(0, 0),
        good.select(["key", "value"]),
        good.set_column(5, SCHEMA.field("tag"), not_text),
    ):
        [result] = (await cluster.line("a:1").produce_once(replace(frame, records=(wrong,)))).results
        assert result.error.code == CorruptFrame.code, wrong
    with pytest.raises(CorruptFrame, match="records of 2"):
        await cluster.line("a:1").produce_once(replace(frame, records=(good, good)))
    unknown = produce_frame([Value("nothing", 0, good), Value("t", 0, good)], NOW_US)
    no, yes = (await cluster.line("a:1").produce_once(unknown)).results
    assert no.error.code == UnknownTopic.code
    assert not yes.HasField("error")
    large = produce_frame([Value("t", 0, records([b"x" * (32 << 20)]))], NOW_US)
    [result] = (await cluster.line("a:1").produce_once(large)).results
    assert result.error.code == "MESSAGE_TOO_LARGE"


def test_no_caller_on_a_connection_hands_records_over() -> None:
    frame = produce_frame([Value("t", 0, records([b"a"]))], NOW_US)
    received = decode_produce(encode_frame(frame))
    assert not received.records
    assert received.header == frame.header
    assert b"".join(received.payload) == b"".join(frame.payload)
    assert isinstance(received, Frame)
