"""Answers of the service to valid requests, invalid ones, and both mixed; in virtual time."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest

from ledgermq.errors import CorruptFrame, InvalidConfig, InvalidRequest, InvalidTopicName, TopicExists, UnknownTopic
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import Frame, ProduceFrame
from ledgermq_broker.paths.fetch_path import FRAME_BYTES
from ledgermq_broker.paths.giving_way import CREDIT_S_MAX
from ledgermq_ledger import keys
from tests.broker.cluster import (
    TIMESTAMP_US,
    Cluster,
    batch_header,
    encoded,
    fetch_of,
    frame_of,
    in_cluster,
    read_all,
    values_of,
)
from tests.waiting import until


@in_cluster("a:1", "b:1", "c:1")
async def test_any_broker_creates_topics_and_knows_them_at_once(cluster: Cluster) -> None:
    for i, address in enumerate(cluster.brokers):
        info = (await cluster.line(address).create_topic(pb.CreateTopicRequest(name=f"t{i}", partitions=3))).topic
        assert len(info.partitions) == 3
        assert {part.bundle for part in info.partitions} <= {1, 2}
        for other in cluster.brokers:
            [found] = (await cluster.line(other).describe_topics(pb.DescribeTopicsRequest(topics=[f"t{i}"]))).topics
            assert (found.topic_id, found.name) == (info.topic_id, f"t{i}")
            assert not found.HasField("error")
            with pytest.raises(TopicExists):
                await cluster.line(other).create_topic(pb.CreateTopicRequest(name=f"t{i}"))
    listed = (await cluster.line("b:1").describe_topics(pb.DescribeTopicsRequest())).topics
    assert [info.name for info in listed] == ["t0", "t1", "t2"]


@in_cluster("a:1", "b:1", "c:1")
async def test_every_broker_gives_a_fresh_description_from_the_controller(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    for i, address in enumerate(cluster.brokers):
        await cluster.line(address).alter_topic(pb.AlterTopicRequest(name="t", set={"retention.ms": str(1000 + i)}))
        for other in cluster.brokers:
            [found] = (
                await cluster.line(other).describe_topics(pb.DescribeTopicsRequest(topics=["t"], fresh=True))
            ).topics
            assert found.settings["retention.ms"] == str(1000 + i)


@in_cluster("a:1")
async def test_a_change_whose_caller_has_gone_fails_in_silence(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    [broker] = cluster.brokers.values()
    told: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    async with broker.controller._lock:
        caller = asyncio.create_task(cluster.line("a:1").create_topic(pb.CreateTopicRequest(name="t")))
        await until(lambda: bool(broker.controller._changes))
        caller.cancel()
        await asyncio.wait([caller])
    await until(lambda: not broker.controller._changes)
    del caller
    gc.collect()  # a task whose error was never retrieved logs it when it is collected
    assert told == []


@in_cluster("a:1", "b:1")
async def test_names_that_look_like_numbers_or_dates_round_trip(cluster: Cluster) -> None:
    for name in ("123", "2024-01-01", "1e5", "true", "x" * 249):
        await cluster.create(name, 1)
        await cluster.produce(name, 0, name.encode())
        assert await cluster.read_all(name, 0) == [name.encode()]


@in_cluster("a:1", "b:1")
async def test_bad_topic_requests_get_typed_errors_from_any_broker(cluster: Cluster) -> None:
    for address in cluster.brokers:
        line = cluster.line(address)
        for name in ("", "..", "a/b", "x" * 300, "é", "__x"):
            with pytest.raises(InvalidTopicName):
                await line.create_topic(pb.CreateTopicRequest(name=name))
        with pytest.raises(InvalidConfig, match=r"did you mean 'retention\.ms'"):
            await line.create_topic(pb.CreateTopicRequest(name="ok", settings={"retention.m": "1"}))
        with pytest.raises(UnknownTopic):
            await line.delete_topic(pb.DeleteTopicRequest(name="none"))
        [info] = (await line.describe_topics(pb.DescribeTopicsRequest(topics=["none"], auto_create=True))).topics
        assert info.error.code == "UNKNOWN_TOPIC"


@in_cluster("a:1", auto_create_topics=True, default_partitions=6)
async def test_topics_are_created_on_first_use_where_that_is_allowed(cluster: Cluster) -> None:
    line = cluster.line("a:1")
    [info] = (await line.describe_topics(pb.DescribeTopicsRequest(topics=["new"]))).topics
    assert info.error.code == "UNKNOWN_TOPIC"
    [info] = (await line.describe_topics(pb.DescribeTopicsRequest(topics=["new"], auto_create=True))).topics
    assert len(info.partitions) == 6
    [info] = (await line.describe_topics(pb.DescribeTopicsRequest(topics=["../x"], auto_create=True))).topics
    assert info.error.code == "INVALID_TOPIC_NAME"


@in_cluster("a:1", "b:1")
async def test_partitions_grow_and_settings_take_effect(cluster: Cluster) -> None:
    await cluster.create("t", 2)
    line = cluster.line("b:1")
    altered = await line.alter_topic(pb.AlterTopicRequest(name="t", partitions=5, set={"accept.publish": "false"}))
    assert len(altered.topic.partitions) == 5
    await until(lambda: all(b.metadata.catalog.topics_by_name["t"].partitions == 5 for b in cluster.brokers.values()))
    result = (await line.produce_once(frame_of("t", 4, b"x"))).results[0]
    assert result.error.code == "PUBLISH_NOT_ACCEPTED"
    await line.alter_topic(pb.AlterTopicRequest(name="t", unset=["accept.publish"], set={"accept.subscribe": "false"}))
    await until(
        lambda: all(b.metadata.catalog.topics_by_name["t"].settings.accept_publish for b in cluster.brokers.values())
    )
    await cluster.produce("t", 4, b"x")
    frame = await cluster.line(await cluster.owner_of("t", 4)).fetch_once(fetch_of("t", 4))
    assert frame.header.partitions[0].error.code == "SUBSCRIBE_NOT_ACCEPTED"
    with pytest.raises(InvalidRequest, match="only grow"):
        await line.alter_topic(pb.AlterTopicRequest(name="t", partitions=3))


@in_cluster("a:1", "b:1")
async def test_a_topic_that_is_deleted_and_made_again_never_shows_old_data(cluster: Cluster) -> None:
    old = await cluster.create("t", 2)
    await cluster.produce("t", 0, b"old")
    await cluster.line("a:1").delete_topic(pb.DeleteTopicRequest(name="t"))
    owner = await cluster.owner_of("t", 0) if cluster.serving("t", 0) else "a:1"
    result = (await cluster.line(owner).produce_once(frame_of("t", 0, b"x"))).results[0]
    assert result.error.code in ("TOPIC_BEING_DELETED", "UNKNOWN_TOPIC")
    await until(lambda: all("t" not in b.metadata.catalog.topics_by_name for b in cluster.brokers.values()), 120)
    new = await cluster.create("t", 2)
    assert new.topic_id > old.topic_id
    assert await cluster.read_all("t", 0) == []
    stale = batch_header("t", 0, encoded([b"x"]), 1)
    stale.topic_id = old.topic_id
    result = (
        await cluster.line(await cluster.owner_of("t", 0)).produce_once(
            Frame(pb.ProduceHeader(batches=[stale]), [encoded([b"x"])])
        )
    ).results[0]
    assert result.error.code == "UNKNOWN_TOPIC"
    await cluster.produce("t", 0, b"new")
    assert await cluster.read_all("t", 0) == [b"new"]


@in_cluster("a:1")
async def test_names_become_free_beside_a_topic_that_cannot_leave_a_damaged_bundle(cluster: Cluster) -> None:
    for name in ("before", "inside", "behind"):
        await cluster.create(name, 1)
    catalog = cluster.brokers["a:1"].metadata.catalog
    assert [catalog.topics_by_name[name].bundles for name in ("before", "inside", "behind")] == [(1,), (2,), (1,)]
    await cluster.store.put_if_absent(keys.checkpoint(2, 99), [b"no checkpoint"])
    for name in ("inside", "before", "behind"):
        await cluster.line("a:1").delete_topic(pb.DeleteTopicRequest(name=name))
    await until(lambda: set(catalog.topics_by_name) == {keys.METADATA_TOPIC, "inside"}, 120)


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
    assert not (await cluster.line("a:1").produce_once(frame)).results[0].HasField("error")
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
