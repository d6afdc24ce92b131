"""Pages of records (`client.read`): bounded, going up or down, over partitions and owners."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

import ledgermq
from ledgermq.client.consuming.message import table_of
from ledgermq.client.paging import rows
from ledgermq.client.paging.pages import PageOrder, _Run
from ledgermq.errors import InvalidRequest, OffsetOutOfRange, UnknownPartition, UnknownTopic
from ledgermq.protocol.frames import FetchFrame
from tests.broker.cluster import Cluster, in_cluster

BEGIN_US = 1_700_000_000_000_000


async def fill(client: ledgermq.Client, partitions: int, count: int, size: int = 0, **settings: object) -> list[bytes]:
    """Store `count` records, one a second, each in the next partition; return their values in that order."""
    await client.create_topic("t", partitions, settings)
    values = [b"%d" % number + bytes(size) for number in range(count)]
    async with client.producer() as producer:
        for number, value in enumerate(values):
            at_us = BEGIN_US + number * 1_000_000
            producer.send("t", value, key=b"k", partition=number % partitions, timestamp=at_us)
            if number % 7 == 0:
                await producer.flush()
    return values


async def all_pages(client: ledgermq.Client, order: str, **settings: object) -> list[ledgermq.Page]:
    pages = [await client.read("t", order=order, **settings)]  # type: ignore[arg-type]
    while not pages[-1].at_end:
        assert pages[-1].next != (pages[-2].next if len(pages) > 1 else None), "each page moves on"
        pages.append(await client.read("t", start=pages[-1].next, order=order, **settings))  # type: ignore[arg-type]
    return pages


@pytest.mark.parametrize(("partitions", "records_max"), [(1, 7), (4, 7), (4, 100), (3, 1)])
@in_cluster("a:1", "b:1")
async def test_pages_go_through_a_topic_in_both_directions(cluster: Cluster, partitions: int, records_max: int) -> None:
    async with cluster.client() as client:
        values = await fill(client, partitions, 60)
        for order in ("oldest", "newest"):
            pages = await all_pages(client, order, records_max=records_max)
            found = [message.value for page in pages for message in page.messages]
            assert found == (values if order == "oldest" else values[::-1])
            assert all(0 < len(page.messages) <= records_max for page in pages[:-1])
            assert all(len(page.messages) == records_max for page in pages[:-2])
        last = pages[-1]
        assert last.log_start == dict.fromkeys(range(partitions), 0)
        assert sum(last.high_watermark.values()) == 60
        assert last.topic_id == (await client.describe_topic("t")).topic_id


@in_cluster("a:1")
async def test_a_page_decodes_no_more_records_than_it_may_have(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def counted(records: pa.RecordBatch, topic: str, partition: int, offsets: Sequence[int]) -> pa.RecordBatch:
        made.append(records.num_rows)
        return table_of(records, topic, partition, offsets)

    async with cluster.client() as client:
        values = await fill(client, 1, 500)
        monkeypatch.setattr(rows, "table_of", counted)
        page = await client.read("t", records_max=10)
        assert ([each.value for each in page.messages], page.next, page.at_end) == (values[:10], {0: 10}, False)
        assert sum(made) == 10


@in_cluster("a:1")
async def test_a_page_is_bounded_by_bytes_and_has_one_record(cluster: Cluster) -> None:
    async with cluster.client() as client:
        values = await fill(client, 2, 20, 1000)
        for order, expected in (("oldest", values), ("newest", values[::-1])):
            pages = await all_pages(client, order, bytes_max=3500)
            assert [message.value for page in pages for message in page.messages] == expected
            assert max(len(page.messages) for page in pages) == 3
            assert len((await client.read("t", order=order, bytes_max=1)).messages) == 1  # type: ignore[arg-type]


@pytest.mark.parametrize("partitions", [1, 3])
@in_cluster("a:1")
async def test_a_page_is_the_same_as_a_table_and_as_messages(cluster: Cluster, partitions: int) -> None:
    async with cluster.client() as client, client.producer() as producer:
        await client.create_topic("t", partitions)
        for number in range(40):
            headers = [("n", None), ("é", b"%d" % number)][: number % 3]
            key, tag = (b"k", "eu") if number % 4 == 0 else (None, None)
            at_us = BEGIN_US + number % 5 * 1_000_000
            producer.send(
                "t", b"%d" % number, key=key, headers=headers, tag=tag, timestamp=at_us, partition=number % partitions
            )
            if number % 7 == 0:
                await producer.flush()
        await producer.flush()
        whole = await client.read_arrow("t")
        for order in ("oldest", "newest"):
            for page in await all_pages(client, order, records_max=9):
                assert page.table.schema == whole.schema
                for row, message in zip(page.table.to_pylist(), page.messages, strict=True):
                    origin = row["topic"], row["partition"], row["offset"]
                    assert origin == (message.topic, message.partition, message.offset)
                    assert (row["key"], row["value"], row["tag"]) == (message.key, message.value, message.tag)
                    assert [(each["key"], each["value"]) for each in row["headers"] or ()] == list(message.headers)
                    assert row in whole.to_pylist()


@in_cluster("a:1")
async def test_headers_count_as_bytes_of_a_page(cluster: Cluster) -> None:
    async with cluster.client() as client, client.producer() as producer:
        await client.create_topic("t", 1)
        for _ in range(10):
            producer.send("t", b"v", headers=[("h", bytes(999))])
        await producer.flush()
        for order in ("oldest", "newest"):
            pages = await all_pages(client, order, bytes_max=3500)
            assert [len(page.messages) for page in pages] == [3, 3, 3, 1]


@pytest.mark.parametrize("order", ["oldest", "newest"])
@in_cluster("a:1")
async def test_a_small_page_holds_nothing_of_the_batch_that_it_comes_from(cluster: Cluster, order: PageOrder) -> None:
    async with cluster.client() as client:
        await fill(client, 1, 2, 1_000_000)
        async with client.producer() as producer:
            await (await producer.send_batch("t", pa.table({"value": [bytes(1000)] * 3000})))
        page = await client.read("t", order=order, start={0: 1000} if order == "oldest" else None, records_max=2)
        assert page.table.num_rows == 2
        assert page.table.get_total_buffer_size() < 3 * page.table.nbytes < 10_000


@in_cluster("a:1", "b:1")
async def test_a_page_begins_at_an_offset_a_time_or_an_end(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await fill(client, 1, 20)
        read = client.read
        assert [each.offset for each in (await read("t", 0, {0: 15})).messages] == [15, 16, 17, 18, 19]
        page = await read("t", 0, {0: 5}, order="newest", records_max=3)
        assert ([each.offset for each in page.messages], page.next) == ([4, 3, 2], {0: 2})
        moment = datetime.fromtimestamp(BEGIN_US / 1e6 + 18, UTC)
        assert [each.offset for each in (await read("t", start=moment)).messages] == [18, 19]
        end = await read("t", start="latest")
        assert (end.messages, end.next, end.at_end) == ([], {0: 20}, True)
        with pytest.raises(OffsetOutOfRange):
            await read("t", 0, {0: 21})
        with pytest.raises(UnknownPartition):
            await read("t", 1)
        with pytest.raises(UnknownPartition):
            await read("t", -1)
        with pytest.raises(UnknownTopic):
            await read("other")
        for wrong in ({"records_max": 0}, {"records_max": 10_001}, {"bytes_max": 0}, {"order": "up"}):
            with pytest.raises(InvalidRequest):
                await read("t", **wrong)


@in_cluster("a:1", "b:1", "c:1")
async def test_a_page_waits_for_a_first_record_of_any_owner(cluster: Cluster) -> None:
    loop = asyncio.get_running_loop()
    async with cluster.client() as client, client.producer() as producer:
        await client.create_topic("t", 6)
        begun_s = loop.time()
        assert (await client.read("t", wait=12)).messages == []
        assert 12 <= loop.time() - begun_s < 13
        for partition in range(6):
            end = (await client.read("t", order="newest")).high_watermark
            waiting = asyncio.create_task(client.read("t", start=end, wait=60))
            await asyncio.sleep(17)
            begun_s = loop.time()
            await producer.send("t", b"x", partition=partition)
            assert [each.partition for each in (await waiting).messages] == [partition]
            assert loop.time() - begun_s < 1


@in_cluster("a:1")
async def test_a_filter_leaves_out_and_moves_on(cluster: Cluster) -> None:
    async with cluster.client() as client, client.producer() as producer:
        await client.create_topic("t", 1)
        for number in range(40):
            await producer.send("t", str(number), tag="eu" if number % 10 == 0 else "us")
        for order, expected in (("oldest", [0, 10, 20, 30]), ("newest", [30, 20, 10, 0])):
            pages = await all_pages(client, order, filter="eu", records_max=2)
            assert [message.offset for page in pages for message in page.messages] == expected
        none = await client.read("t", filter="asia")
        assert (none.messages, none.next) == ([], {0: 40})


@in_cluster("a:1")
async def test_what_was_deleted_is_not_part_of_a_page(cluster: Cluster) -> None:
    async with cluster.client() as client:
        values = await fill(client, 1, 30)
        await client.delete_records("t", 10)
        assert [m.value for p in await all_pages(client, "newest", records_max=4) for m in p.messages] == values[:9:-1]
        assert [m.value for p in await all_pages(client, "oldest", records_max=4) for m in p.messages] == values[10:]
        with pytest.raises(OffsetOutOfRange):
            await client.read("t", 0, {0: 3})
        assert (await client.read("t", 0, {0: 3}, order="newest")).messages == []


@in_cluster("a:1")
async def test_a_record_of_the_far_future_does_not_stay_on_top(cluster: Cluster) -> None:
    async with cluster.client() as client, client.producer() as producer:
        await client.create_topic("t", 2, {"message.timestamp.after.max.ms": 2**50})
        await producer.send("t", b"9999", partition=0, timestamp=BEGIN_US * 5)
        await asyncio.sleep(5)
        await producer.send("t", b"older", partition=1)
        await asyncio.sleep(5)
        found = (await client.read("t", order="newest")).messages
        assert {each.value for each in found} == {b"9999", b"older"}


def noted_answers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which each answer of a broker adds the bytes of its batches."""
    sent: list[int] = []
    true = _Run._answers

    def noted(run: _Run, frame: FetchFrame, *given: Any) -> Any:
        sent.append(frame.payload_bytes)
        return true(run, frame, *given)

    monkeypatch.setattr(_Run, "_answers", noted)
    return sent


@pytest.mark.parametrize(("records_max", "questions"), [(1, 1), (10, 1), (100, 2), (400, 2)])
@in_cluster("a:1")
async def test_a_page_asks_for_about_as_much_as_it_may_have(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, records_max: int, questions: int
) -> None:
    """Of large records, the rest of a page by a second question. It asked for 8 MiB, whatever it had room for."""
    sent = noted_answers(monkeypatch)
    async with cluster.client() as client:
        values = await fill(client, 1, 400, size=4_000, **{"compression.type": "none"})
        page = await client.read("t", records_max=records_max)
        assert ([each.value for each in page.messages], page.next) == (values[:records_max], {0: records_max})
        assert page.at_end == (records_max == 400)
        assert len(sent) == questions
        assert sum(sent) < 3 * 64 * 1024 + records_max * 4_500


@in_cluster("a:1")
async def test_a_page_has_what_came_before_its_broker_went(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    true = _Run._answers

    def goes_then(run: _Run, frame: FetchFrame, *given: Any) -> Any:
        cluster.views["a:1"].pause()
        stopping.append(asyncio.create_task(cluster.stop("a:1", graceful=False)))
        return true(run, frame, *given)

    stopping: list[asyncio.Task[None]] = []
    async with cluster.client() as client:
        values = await fill(client, 1, 400, size=4_000, **{"compression.type": "none"})
        monkeypatch.setattr(_Run, "_answers", goes_then)
        page = await client.read("t", records_max=400)
        assert 0 < len(page.messages) < 400
        assert [each.value for each in page.messages] == values[: len(page.messages)]
        assert (page.next, page.at_end) == ({0: len(page.messages)}, False)
        await asyncio.gather(*stopping)


@pytest.mark.parametrize(("partitions", "order"), [(1, "newest"), (4, "oldest"), (4, "newest")])
@pytest.mark.parametrize(("records_max", "megabytes"), [(10, 1.5), (100, 5)])
@in_cluster("a:1")
async def test_a_merged_page_and_one_that_goes_down_ask_for_what_they_need(
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    partitions: int,
    order: PageOrder,
    records_max: int,
    megabytes: float,
) -> None:
    """Each question was for 8 MiB, and so much is there on both sides of where a page begins that goes down."""
    async with cluster.client() as client:
        values = await fill(client, partitions, 1_200, size=15_000, **{"compression.type": "none"})
        sent = noted_answers(monkeypatch)
        middle = None if order == "oldest" else dict.fromkeys(range(partitions), 600 // partitions)
        page = await client.read("t", start=middle, order=order, records_max=records_max)
        expected = values[:records_max] if order == "oldest" else values[599 : 599 - records_max : -1]
        assert [each.value for each in page.messages] == expected
        assert sum(sent) < megabytes * 1e6


@in_cluster("a:1")
async def test_a_merged_page_goes_on_in_a_partition_of_which_it_has_all_that_came(cluster: Cluster) -> None:
    """What was left of it was passed over for younger records of the others, which came into pages before it."""
    async with cluster.client() as client, client.producer() as producer:
        await client.create_topic("t", 12, {"compression.type": "none"})
        for number in range(2_400):  # the records of a partition are older than those of the one before
            partition = 11 - number // 200
            producer.send("t", b"%4d" % number + bytes(2_000), partition=partition, timestamp=BEGIN_US + number)
            if number % 20 == 0:
                await producer.flush()
        await producer.flush()
        pages = await all_pages(client, "oldest", records_max=700, bytes_max=1_600_000)
        found = [int(message.value[:4]) for page in pages for message in page.messages]
        assert found == list(range(2_400))
        assert [len(page.messages) for page in pages] == [700, 700, 700, 300]


@pytest.mark.parametrize("partitions", [1, 3])
@in_cluster("a:1")
async def test_a_filter_that_lets_little_pass_asks_for_more_until_it_has_a_page_s_bytes(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    async with cluster.client() as client, client.producer() as producer:
        await client.create_topic("t", partitions, {"compression.type": "none"})
        for number in range(3_000):
            tag = "eu" if number % 1_000 == 999 else "us"
            producer.send("t", b"%d" % number + bytes(1_000), tag=tag, partition=number % partitions)
            if number % 50 == 0:
                await producer.flush()
        await producer.flush()
        sent = noted_answers(monkeypatch)
        page = await client.read("t", filter="eu", records_max=10)
        assert (len(page.messages), page.at_end) == (3, True)
        assert len(sent) <= 6
        del sent[:]
        page = await client.read("t", filter="asia", bytes_max=300_000)
        assert (page.messages, page.at_end) == ([], False)
        assert 0 < sum(page.next.values()) < 3_000
        assert sum(sent) < 2_200_000


@pytest.mark.parametrize("partitions", [1, 3])
@in_cluster("a:1")
async def test_a_filter_that_lets_nothing_pass_ends_a_page_that_goes_down(cluster: Cluster, partitions: int) -> None:
    """It went on to the beginning, however far that was: a page of a long topic came too late, again and again."""
    async with cluster.client() as client, client.producer() as producer:
        await client.create_topic("t", partitions, {"compression.type": "none"})
        for number in range(3_000):
            tag = "eu" if number in (0, 5, 2_990) else "us"
            at_us = BEGIN_US + number
            producer.send("t", b"%4d" % number + bytes(1_000), tag=tag, partition=number % partitions, timestamp=at_us)
            if number % 50 == 0:
                await producer.flush()
        await producer.flush()
        first = await client.read("t", order="newest", filter="eu", bytes_max=50_000)
        assert ([each.value[:4] for each in first.messages], first.at_end) == ([b"2990"], False)
        assert 0 < sum(first.next.values()) < 2_990
        pages = await all_pages(client, "newest", filter="eu", bytes_max=50_000)
        assert 4 <= len(pages) <= 60
        found = [each.value[:4] for page in pages for each in page.messages]
        assert found[0] == b"2990"
        assert sorted(found) == [b"   0", b"   5", b"2990"]
        assert partitions > 1 or found[1] == b"   5"
