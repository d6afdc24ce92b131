"""Answers of the service to readers: fetches, long polls, streams, offsets by place and time."""

from __future__ import annotations

import asyncio

import pytest

from ledgermq.errors import InvalidRequest
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import Frame
from ledgermq_broker.paths.fetching.fetched import FRAME_BYTES
from ledgermq_broker.paths.fetching.giving_way import CREDIT_S_MAX
from tests.broker.cluster import TIMESTAMP_US, Cluster, batch_header, encoded, fetch_of, in_cluster, read_all, values_of
from tests.waiting import until


@in_cluster("a:1", "b:1")
async def test_errors_of_a_fetch_are_beside_the_other_partitions_batches(cluster: Cluster) -> None:
    await cluster.create("t", 2)
    await asyncio.sleep(10)
    await cluster.produce("t", 0, b"x")
    owner = await cluster.owner_of("t", 0)
    elsewhere = next(address for address in cluster.brokers if address != owner)
    wanted = [
        ("t", 0, 0, ""),
        ("t", 1, 0, "NOT_OWNER"),
        ("t", 7, 0, "UNKNOWN_PARTITION"),
        ("none", 0, 0, "UNKNOWN_TOPIC"),
    ]
    request = pb.FetchRequest(
        partitions=[pb.FetchPartition(topic=t, partition=p, offset=o) for t, p, o, _ in wanted], max_wait_ms=5000
    )
    frame = await cluster.line(owner).fetch_once(request)
    assert [part.error.code for part in frame.header.partitions] == [code for *_, code in wanted]
    assert frame.header.partitions[1].error.owner == elsewhere
    assert values_of(frame) == [b"x"]
    frame = await cluster.line(owner).fetch_once(fetch_of("t", 0, 2))
    assert frame.header.partitions[0].error.code == "OFFSET_OUT_OF_RANGE"
    for partitions in (
        [],
        [pb.FetchPartition(topic="t")] * 2,
        [pb.FetchPartition(topic="t", partition=i) for i in range(5000)],
    ):
        with pytest.raises(InvalidRequest):
            await cluster.line(owner).fetch_once(pb.FetchRequest(partitions=partitions))


@in_cluster("a:1")
async def test_a_long_poll_waits_for_data_and_no_longer_than_asked(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    loop, line = asyncio.get_running_loop(), cluster.line("a:1")
    begun = loop.time()
    frame = await line.fetch_once(fetch_of("t", 0, max_wait_ms=700))
    assert values_of(frame) == []
    assert loop.time() - begun == pytest.approx(0.7, abs=0.01)
    poll = asyncio.create_task(line.fetch_once(fetch_of("t", 0, max_wait_ms=20_000)))
    await asyncio.sleep(1)
    begun = loop.time()
    await cluster.produce("t", 0, b"x")
    assert values_of(await poll) == [b"x"]
    assert loop.time() - begun < 0.1
    poll = asyncio.create_task(line.fetch_once(fetch_of("t", 0, max_wait_ms=20_000, min_bytes=12_000)))
    for _ in range(3):
        await asyncio.sleep(1)
        assert not poll.done()
        await cluster.produce("t", 0, b"y" * 4000)
    assert values_of(await poll) == [b"x"] + [b"y" * 4000] * 3


@in_cluster("a:1")
async def test_a_long_poll_ends_though_its_timer_fires_a_moment_early(cluster: Cluster) -> None:
    """A loop fires what is due within the resolution of its clock: at that moment the clock itself
    shows less.
    """
    await cluster.create("t", 1)
    loop, line = asyncio.get_running_loop(), cluster.line("a:1")
    awake = asyncio.Event()
    loop.call_at(loop.time() + 0.7 - 1e-10, awake.set)
    assert values_of(await line.fetch_once(fetch_of("t", 0, max_wait_ms=700))) == []
    assert awake.is_set()


@in_cluster("a:1")
async def test_a_stream_pushes_what_becomes_durable_from_all_its_partitions(cluster: Cluster) -> None:
    await cluster.create("t", 4)
    request = pb.FetchRequest(partitions=[pb.FetchPartition(topic="t", partition=i) for i in range(4)], max_bytes=2000)
    seen: list[bytes] = []

    async def listen() -> None:
        async for frame in cluster.line("a:1").fetch(request):
            seen.extend(values_of(frame))

    task = asyncio.create_task(listen())
    for i in range(40):
        await cluster.produce("t", i % 4, b"%d" % i)
    await until(lambda: len(seen) == 40)
    assert sorted(seen, key=int) == [b"%d" % i for i in range(40)]
    task.cancel()


@in_cluster("a:1")
async def test_a_stream_sends_much_data_in_frames_of_whole_batches(cluster: Cluster) -> None:
    """A large frame would hold up all other work of the broker."""
    await cluster.create("t", 2)
    value = bytes(FRAME_BYTES // 4)
    sizes = {0: [1, 1, 1, 1, 1, 1], 1: [9, 1, 2, 1]}  # in quarters of a frame; one batch is larger than a frame
    for partition, quarters in sizes.items():
        for number in quarters:
            await cluster.produce("t", partition, *[value] * number)
    request = pb.FetchRequest(
        partitions=[pb.FetchPartition(topic="t", partition=i) for i in sizes], max_bytes=32 * FRAME_BYTES
    )
    seen: dict[int, list[tuple[int, int]]] = {partition: [] for partition in sizes}
    frames: list[int] = []

    async def listen() -> None:
        async for frame in cluster.line("a:1").fetch(request):
            batches = [batch for part in frame.header.partitions for batch in part.batches]
            assert frame.payload_bytes == sum(batch.length for batch in batches)
            assert frame.payload_bytes <= FRAME_BYTES or len(batches) == 1
            frames.append(frame.payload_bytes)
            for part in frame.header.partitions:
                seen[part.partition] += [(batch.base_offset, batch.record_count) for batch in part.batches]

    task = asyncio.create_task(listen())
    await until(lambda: sum(map(len, seen.values())) == 10)
    expected = {
        partition: [(sum(found[:at]), found[at]) for at in range(len(found))] for partition, found in sizes.items()
    }
    assert seen == expected
    assert 4 <= len(frames) <= 10
    task.cancel()


@in_cluster("a:1")
async def test_a_stream_that_reads_a_backlog_gives_way_to_producers(cluster: Cluster) -> None:
    """And one that is near the end does not."""
    await cluster.create("t", 1)
    for _ in range(8):
        await cluster.produce("t", 0, bytes(FRAME_BYTES // 2))
    admitted = cluster.brokers["a:1"].context.produce_memory
    loop, arrived_s = asyncio.get_running_loop(), list[float]()
    assert admitted.take(1)  # a record whose put does not end

    async def listen() -> None:
        request = pb.FetchRequest(partitions=[pb.FetchPartition(topic="t", partition=0)], max_bytes=32 * FRAME_BYTES)
        async for frame in cluster.line("a:1").fetch(request):
            arrived_s.extend([loop.time()] * sum(len(part.batches) for part in frame.header.partitions))

    began_s = loop.time()
    task = asyncio.create_task(listen())
    await until(lambda: len(arrived_s) == 8)
    assert CREDIT_S_MAX * 0.9 < arrived_s[-1] - began_s < 2 * CREDIT_S_MAX
    await asyncio.sleep(1)
    before_s = loop.time()
    await cluster.produce("t", 0, b"live")
    await until(lambda: len(arrived_s) == 9)
    assert arrived_s[-1] - before_s < CREDIT_S_MAX / 10
    admitted.give(1)
    task.cancel()


@in_cluster("a:1", "b:1")
async def test_offsets_by_place_and_by_time(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    for i in range(3):
        await cluster.produce("t", 0, b"%d" % i)
    line = cluster.line(await cluster.owner_of("t", 0))
    asked = [
        (pb.OffsetQuery(topic="t", earliest=True), 0),
        (pb.OffsetQuery(topic="t", latest=True), 3),
        (pb.OffsetQuery(topic="t", timestamp_us=TIMESTAMP_US), 0),
        (pb.OffsetQuery(topic="t", timestamp_us=TIMESTAMP_US + 1), 3),
    ]
    response = await line.list_offsets(pb.ListOffsetsRequest(queries=[query for query, _ in asked]))
    assert [result.offset for result in response.results] == [offset for _, offset in asked]
    bad = [
        pb.OffsetQuery(topic="t"),
        pb.OffsetQuery(topic="none", earliest=True),
        pb.OffsetQuery(topic="t", partition=9, latest=True),
    ]
    response = await line.list_offsets(pb.ListOffsetsRequest(queries=bad))
    assert [result.error.code for result in response.results] == [
        "INVALID_REQUEST",
        "UNKNOWN_TOPIC",
        "UNKNOWN_PARTITION",
    ]
    other = next(address for address in cluster.brokers if address not in cluster.serving("t", 0))
    response = await cluster.line(other).list_offsets(pb.ListOffsetsRequest(queries=[asked[0][0]]))
    assert response.results[0].error.owner in cluster.brokers
    assert await read_all(line, "t", 0) == [b"0", b"1", b"2"]


@in_cluster("a:1", "b:1")
async def test_a_request_full_of_unknown_names_asks_the_controller_once(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    other = next(address for address, broker in cluster.brokers.items() if 0 not in broker.ownership.terms.opened)
    line, asked = cluster.line(other), 0
    metadata = cluster.brokers[other].metadata
    latest_offset = metadata._latest_offset

    async def count(address: str) -> int:
        nonlocal asked
        asked += 1
        return await latest_offset(address)

    metadata._latest_offset = count  # type: ignore[method-assign]
    data = encoded([b"x"])
    names = [f"none{i}" for i in range(50)]
    frame = Frame(pb.ProduceHeader(batches=[batch_header(name, 0, data, 1) for name in names]), [data] * 50)
    assert {result.error.code for result in (await line.produce_once(frame)).results} == {"UNKNOWN_TOPIC"}
    assert asked == 1
    described = await line.describe_topics(pb.DescribeTopicsRequest(topics=names))
    assert {info.error.code for info in described.topics} == {"UNKNOWN_TOPIC"}
    assert asked == 2
    queries = [pb.OffsetQuery(topic=name, latest=True) for name in names]
    await line.list_offsets(pb.ListOffsetsRequest(queries=queries))
    assert asked <= 4
