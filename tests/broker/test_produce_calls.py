"""Answers of the service to batches: good ones, bad ones, repeated ones, on calls and on streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ledgermq.errors import CorruptFrame
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import Frame, ProduceFrame
from tests.broker.cluster import TIMESTAMP_US, Cluster, batch_header, encoded, fetch_of, frame_of, in_cluster, values_of


@in_cluster("a:1")
async def test_one_bad_batch_disturbs_no_other_in_its_frame(cluster: Cluster) -> None:
    await cluster.create("t", 2, max_message_bytes="1000")
    good, big = encoded([b"good"]), encoded([b"x" * 2000])
    cases: list[tuple[str, pb.ProduceBatch, bytes]] = [("", batch_header("t", 0, good, 1), good)]

    def bad(code: str, data: bytes = good, **changes: object) -> None:
        header = batch_header("t", 0, data, 1)
        for name, value in changes.items():
            setattr(header, name, value)
        cases.append((code, header, data))

    bad("CORRUPT_FRAME", crc=1)
    bad("CORRUPT_FRAME", record_count=2)
    bad("CORRUPT_FRAME", schema=2)
    bad("CORRUPT_FRAME", timestamp_max_us=TIMESTAMP_US - 1)
    bad("CORRUPT_FRAME", data=b"")
    bad("CORRUPT_FRAME", data=b"garbage" * 100)
    bad("CORRUPT_FRAME", data=good[:-8])
    bad("CORRUPT_FRAME", data=good + b"\0" * 8)
    bad("MESSAGE_TOO_LARGE", data=big)
    bad("UNKNOWN_TOPIC", topic="none")
    bad("UNKNOWN_PARTITION", partition=2)
    bad("UNKNOWN_TOPIC", topic_id=77)
    bad("PUBLISH_NOT_ACCEPTED", topic="__metadata")
    header = batch_header("t", 0, good, 1, pb.ProducerSession(id=b"short"))
    cases.append(("INVALID_REQUEST", header, good))
    header = batch_header("t", 0, good, 1, pb.ProducerSession(id=b"i" * 16, sequence=7, opened_slot=9))
    cases.append(("UNKNOWN_PRODUCER", header, good))
    cases.append(("", batch_header("t", 1, good, 1), good))
    frame = Frame(
        pb.ProduceHeader(batches=[header for _, header, _ in cases]), [b"".join(data for _, _, data in cases)]
    )
    results = (await cluster.line("a:1").produce_once(frame)).results
    assert [result.error.code for result in results] == [code for code, _, _ in cases]
    assert await cluster.read_all("t", 0) == [b"good"]
    assert await cluster.read_all("t", 1) == [b"good"]


@in_cluster("a:1")
async def test_frames_whose_parts_do_not_fit_are_refused_whole(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    data = encoded([b"x"])
    header = batch_header("t", 0, data, 1)
    for batches, payload in (
        ([], []),
        ([header], []),
        ([header], [data, b"more"]),
        ([header, header], [data]),
        ([header] * 5000, [data] * 5000),
    ):
        with pytest.raises(CorruptFrame):
            await cluster.line("a:1").produce_once(Frame(pb.ProduceHeader(batches=batches), payload))
    assert await cluster.read_all("t", 0) == []


@in_cluster("a:1")
async def test_a_produce_stream_answers_in_order_and_a_bad_frame_ends_it_after_the_good_ones(cluster: Cluster) -> None:
    await cluster.create("t", 1)

    async def frames() -> AsyncIterator[ProduceFrame]:
        for i in range(300):
            yield frame_of("t", 0, b"%d" % i)
        yield Frame(pb.ProduceHeader(), [b"x"])
        raise AssertionError("the stream is not read on after a bad frame")

    offsets: list[int] = []

    async def produce() -> None:
        async for response in cluster.line("a:1").produce(frames()):
            offsets.append(response.results[0].base_offset)  # noqa: PERF401  what came before the error counts

    with pytest.raises(CorruptFrame):
        await produce()
    assert offsets == list(range(300))
    assert await cluster.read_all("t", 0) == [b"%d" % i for i in range(300)]


@in_cluster("a:1")
async def test_a_client_that_leaves_a_stream_leaves_no_task_behind(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    before = len(asyncio.all_tasks())
    endless: asyncio.Event = asyncio.Event()

    async def frames() -> AsyncIterator[ProduceFrame]:
        yield frame_of("t", 0, b"x")
        await endless.wait()

    stream = cluster.line("a:1").produce(frames())
    assert (await anext(stream)).results[0].base_offset == 0
    await stream.aclose()  # type: ignore[attr-defined]
    fetching = cluster.line("a:1").fetch(fetch_of("t", 0))
    assert values_of(await anext(fetching)) == [b"x"]
    await fetching.aclose()  # type: ignore[attr-defined]
    await asyncio.sleep(1)
    assert len(asyncio.all_tasks()) <= before


@in_cluster("a:1")
async def test_acknowledgement_on_receipt(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    frame = frame_of("t", 0, b"x")
    frame.header.acks = pb.RECEIVED
    answer = await cluster.line("a:1").produce_once(frame)
    assert not answer.results[0].HasField("error")
    assert not answer.put_ms, "it waits for no put"
    await asyncio.sleep(1)
    assert await cluster.read_all("t", 0) == [b"x"]
    frame = frame_of("t", 0, b"y", session=pb.ProducerSession(id=b"i" * 16))
    frame.header.acks = pb.RECEIVED
    assert (await cluster.line("a:1").produce_once(frame)).results[0].error.code == "INVALID_REQUEST"


@in_cluster("a:1")
async def test_an_idempotent_producer_may_repeat_itself(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    line = cluster.line("a:1")
    [opened] = (
        await line.open_producer(pb.OpenProducerRequest(partitions=[pb.TopicPartition(topic="t", partition=0)]))
    ).partitions
    sessions = [pb.ProducerSession(id=b"i" * 16, sequence=i, opened_slot=opened.opened_slot) for i in range(3)]
    for _ in range(3):
        for i, session in enumerate(sessions):
            assert (await line.produce_once(frame_of("t", 0, b"%d" % i, session=session))).results[0].base_offset == i
    assert await cluster.read_all("t", 0) == [b"0", b"1", b"2"]
    gap = pb.ProducerSession(id=b"i" * 16, sequence=9, opened_slot=opened.opened_slot)
    assert (await line.produce_once(frame_of("t", 0, b"x", session=gap))).results[
        0
    ].error.code == "OUT_OF_ORDER_SEQUENCE"
    for producer_id, next_sequence in ((b"i" * 16, 3), (b"j" * 16, 0), (b"", 0)):
        request = pb.OpenProducerRequest(
            partitions=[pb.TopicPartition(topic="t", partition=0)], producer_id=producer_id
        )
        assert (await line.open_producer(request)).partitions[0].next_sequence == next_sequence
