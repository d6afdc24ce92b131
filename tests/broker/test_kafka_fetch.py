"""What Kafka clients read: every partition that was asked for, with true ends, within bounds, and no spinning."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ledgermq.errors import DataDamaged
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import Frame
from ledgermq.protocol.status import error_to_proto
from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import offset_for_leader_epoch_request as e
from ledgermq_broker.kafka.wire.messages import FETCH, OFFSET_FOR_LEADER_EPOCH
from tests.broker.kafka_world import KafkaCluster, batch_of, fetch_request, in_kafka_cluster, records_of

EPOCH_MS = 1_700_000_000_000


@in_kafka_cluster("a:1")
async def test_a_long_poll_ends_with_the_first_record(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    reader, writer = cluster.connect("a:1"), cluster.connect("a:1")
    begun_s = asyncio.get_running_loop().time()
    reading = asyncio.create_task(reader.fetch("t", 0, 0, max_wait_ms=20_000))
    await asyncio.sleep(3)
    await writer.produce("t", 0, batch_of(b"x"))
    assert records_of(await reading) == [(0, b"x")]
    assert 3 <= asyncio.get_running_loop().time() - begun_s < 4


@in_kafka_cluster("a:1")
async def test_nothing_to_read_waits_as_long_as_the_client_allows(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    client = cluster.connect("a:1")
    for request in (fetch_request({("t", 0): 0}, max_wait_ms=5000), fetch_request({}, max_wait_ms=5000)):
        begun_s = asyncio.get_running_loop().time()
        answer = await client.call(FETCH, 12, request)
        assert asyncio.get_running_loop().time() - begun_s == pytest.approx(5, abs=0.1)
        assert answer.error_code == 0


@in_kafka_cluster("a:1")
async def test_a_partition_that_always_fails_does_not_make_a_client_spin(
    cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its error ends every long poll at once."""
    await cluster.create("t", partitions=2)
    service = cluster.brokers["a:1"].service
    real = service.fetch_once

    async def fetch_once(request: pb.FetchRequest) -> Any:
        frame = await real(request)
        for part in frame.header.partitions:
            if part.partition == 1:
                part.error.CopyFrom(error_to_proto(DataDamaged("x", object_key="segment")))
        return frame

    monkeypatch.setattr(service, "fetch_once", fetch_once)
    client = cluster.connect("a:1")
    begun_s, count = asyncio.get_running_loop().time(), 0
    while asyncio.get_running_loop().time() < begun_s + 10:
        answer = await client.call(FETCH, 12, fetch_request({("t", 0): 0, ("t", 1): 0}, max_wait_ms=500))
        codes = [part.error_code for part in answer.responses[0].partitions]
        assert codes == [Code.NONE, Code.KAFKA_STORAGE_ERROR]
        count += 1
    assert count <= 41
    await cluster.produce("t", 0, b"value")
    answer = await client.call(FETCH, 12, fetch_request({("t", 0): 0, ("t", 1): 0}, max_wait_ms=500))
    assert records_of(answer.responses[0].partitions[0]) == [(0, b"value")]


@in_kafka_cluster("a:1", partitions_max=20_000)
async def test_more_partitions_than_a_call_takes_are_asked_in_turns(cluster: KafkaCluster) -> None:
    """One consumer may have ten thousand; refused, it would ask in the same way without end."""
    count = 9000
    await cluster.create("t", partitions=count)
    client = cluster.connect("a:1")
    await client.produce("t", count - 1, batch_of(b"last"))
    asked = {("t", partition): 0 for partition in range(count)}
    answer = await client.call(FETCH, 12, fetch_request(asked, max_wait_ms=2000))
    parts = answer.responses[0].partitions
    assert [part.partition_index for part in parts] == list(range(count))
    assert all(part.error_code == 0 for part in parts)
    assert records_of(parts[-1]) == [(0, b"last")]


@in_kafka_cluster("a:1")
async def test_partitions_that_had_no_turn_show_their_true_ends(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=8)
    client = cluster.connect("a:1")
    for partition in range(8):
        for _ in range(partition + 1):
            await client.produce("t", partition, batch_of(bytes(200_000)))
    asked = {("t", partition): 0 for partition in range(8)}
    answer = await client.call(FETCH, 12, fetch_request(asked, max_bytes=300_000))
    parts = answer.responses[0].partitions
    assert [part.high_watermark for part in parts] == list(range(1, 9))
    assert [part.log_start_offset for part in parts] == [0] * 8
    assert any(not part.records for part in parts)


@in_kafka_cluster("a:1")
async def test_what_was_compressed_well_leaves_within_the_bounds_of_the_client(cluster: KafkaCluster) -> None:
    """Batches leave uncompressed: a small one may become far more than a client accepts in an answer."""
    await cluster.create("t", partitions=4)
    client = cluster.connect("a:1")
    for partition in range(4):
        values = [bytes(50_000)] * 100
        assert not (await client.produce("t", partition, batch_of(*values, codec=1))).error_code
    asked = {("t", partition): 0 for partition in range(4)}
    await client.call(FETCH, 12, fetch_request(asked, max_bytes=2_000_000, partition_max_bytes=1_100_000))
    assert client.answer_bytes < 2_100_000
    read, offset = 0, 0
    while read < 100:  # and nothing is left out
        found = records_of(await client.fetch("t", 3, offset))
        assert found[0][0] <= offset
        read, offset = found[-1][0] + 1, found[-1][0] + 1
    one = await client.fetch("t", 0, 0, partition_max_bytes=10, max_bytes=10)
    assert records_of(one), "one batch at least, however small the bound is"


@in_kafka_cluster("a:1")
async def test_offsets_out_of_range_and_sessions_get_their_codes(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    client = cluster.connect("a:1")
    await client.produce("t", 0, batch_of(b"x"))
    for offset in (5, -3):
        assert (await client.fetch("t", 0, offset)).error_code == Code.OFFSET_OUT_OF_RANGE
    assert (await client.fetch("nowhere", 0, 0)).error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert (await client.fetch("t", 3, 0)).error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
    session = await client.call(FETCH, 12, fetch_request({("t", 0): 0}, session_id=9))
    assert session.error_code == Code.FETCH_SESSION_ID_NOT_FOUND
    assert session.responses == []


@in_kafka_cluster("a:1", "b:1")
async def test_a_broker_that_is_not_the_owner_says_so(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    owner = await cluster.owner_of("t", 0)
    [other] = {"a:1", "b:1"} - {owner}
    client = cluster.connect(other)
    assert (await client.fetch("t", 0, 0)).error_code == Code.NOT_LEADER_OR_FOLLOWER
    assert (await client.produce("t", 0, batch_of(b"x"))).error_code == Code.NOT_LEADER_OR_FOLLOWER
    assert (await client.list_offset("t", 0, -1)).error_code == Code.NOT_LEADER_OR_FOLLOWER


@in_kafka_cluster("a:1")
async def test_offsets_by_time_bring_the_timestamp_of_the_record(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    client = cluster.connect("a:1")
    await client.produce("t", 0, batch_of(b"a", b"b", b"c", timestamp_ms=EPOCH_MS))
    await client.produce("t", 0, batch_of(b"d", timestamp_ms=EPOCH_MS + 5000))
    asked = [-2, -4, -1, EPOCH_MS + 1, EPOCH_MS + 100, EPOCH_MS + 6000, 2**63 - 1, -5]
    found = [await client.list_offset("t", 0, timestamp) for timestamp in asked]
    assert [(one.error_code, one.offset, one.timestamp) for one in found] == [
        (0, 0, -1),
        (0, 0, -1),
        (0, 4, -1),
        (0, 1, EPOCH_MS + 1),
        (0, 3, EPOCH_MS + 5000),
        (0, -1, -1),
        (0, -1, -1),
        (0, -1, -1),
    ]
    assert (await client.list_offset("t", 0, -6)).error_code == Code.UNSUPPORTED_FOR_MESSAGE_FORMAT
    assert (await client.list_offset("t", 7, -1)).error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
    request = e.OffsetForLeaderEpochRequest(
        topics=[e.OffsetForLeaderTopic("t", [e.OffsetForLeaderPartition(partition=0, leader_epoch=1)])]
    )
    [end] = (await client.call(OFFSET_FOR_LEADER_EPOCH, 4, request)).topics[0].partitions
    assert (end.error_code, end.leader_epoch, end.end_offset) == (0, 1, 4)


@in_kafka_cluster("a:1", "b:1")
async def test_the_record_with_the_largest_timestamp_is_found_in_any_order(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    client = await cluster.leader_client("t", 0)

    async def largest(partition: int = 0) -> tuple[int, int, int]:
        found = await client.list_offset("t", partition, -3)
        return found.error_code, found.offset, found.timestamp

    assert await largest() == (0, -1, -1)
    await client.produce("t", 0, batch_of(b"a", b"b", timestamp_ms=EPOCH_MS + 9000))
    assert await largest() == (0, 1, EPOCH_MS + 9001)
    await client.produce("t", 0, batch_of(b"c", timestamp_ms=EPOCH_MS + 9001))
    await client.produce("t", 0, batch_of(b"d", timestamp_ms=EPOCH_MS))
    assert await largest() == (0, 1, EPOCH_MS + 9001)  # the first of those that have it
    await client.produce("t", 0, batch_of(b"e", timestamp_ms=-1))
    assert await largest() == (0, 1, EPOCH_MS + 9001)
    assert (await largest(7))[0] == (await largest(-1))[0] == Code.UNKNOWN_TOPIC_OR_PARTITION
    [other] = {"a:1", "b:1"} - {client.address}
    elsewhere = await cluster.connect(other).list_offset("t", 0, -3)
    assert (elsewhere.error_code, elsewhere.offset) == (Code.NOT_LEADER_OR_FOLLOWER, -1)


@in_kafka_cluster("a:1")
async def test_a_closed_connection_ends_its_long_poll(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    ended = []
    service = cluster.brokers["a:1"].service
    real = service.fetch_once

    async def fetch_once(request: pb.FetchRequest) -> Frame[Any]:
        try:
            return await real(request)
        finally:
            ended.append(asyncio.get_running_loop().time())

    service.fetch_once = fetch_once
    client = cluster.connect("a:1")
    client.send(FETCH, 12, fetch_request({("t", 0): 0}, max_wait_ms=20_000))
    await asyncio.sleep(1)
    begun_s = asyncio.get_running_loop().time()
    await client.close()
    assert ended
    assert ended[0] - begun_s < 0.1
