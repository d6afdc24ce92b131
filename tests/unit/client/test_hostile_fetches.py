"""A peer that answers nonsense to a consumer or to a look-up: batches, verdicts, what it says it has left out."""

from __future__ import annotations

import asyncio

import pytest

import ledgermq
from ledgermq import errors
from ledgermq.client.messages.columns import rows_to_arrow
from ledgermq.client.messages.record import row_of
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.batches.records import encode_batch
from ledgermq.protocol.frames import FetchFrame, Frame
from tests.unit.client.hostile import (
    ADDRESS,
    NOW_US,
    HostileBroker,
    against_a_hostile_broker,
    encoded,
    fetched,
    now_s,
    refused,
)


@against_a_hostile_broker
async def test_a_silent_owner_does_not_keep_fetch_waiting(broker: HostileBroker, client: ledgermq.Client) -> None:
    consumer = client.consumer("t", request_timeout_s=20)
    assert await consumer.fetch(timeout=1) == []
    broker.silent = True
    begun = now_s()
    with pytest.raises(errors.Unavailable):
        await anext(consumer)
    assert now_s() - begun < 90


# -- nonsense to a consumer


@against_a_hostile_broker
async def test_a_damaged_batch_names_its_place_and_can_be_sought_past(
    broker: HostileBroker, client: ledgermq.Client
) -> None:
    good, bad = encoded(b"a", b"b"), encoded(b"c")
    broker.fetches = [
        [fetched(good, count=2), fetched(bad, count=1, base=2, crc=1), fetched(encoded(b"d"), count=1, base=3)],
        [fetched(encoded(b"d"), count=1, base=3)],
    ]
    consumer = client.consumer("t", partitions=[0])
    assert [message.value for message in await consumer.fetch()] == [b"a", b"b"]
    for _ in range(2):
        with pytest.raises(errors.CorruptFrame, match="t/0, offsets 2 to 2"):
            await consumer.fetch()
    await consumer.seek(3, partition=0)
    assert [message.value for message in await consumer.fetch()] == [b"d"]


@pytest.mark.parametrize("lie", [{"count": 5}, {"count": 1}, {"count": 2, "crc": 0}])
def test_a_batch_that_lies_is_refused(lie: dict[str, int]) -> None:
    @against_a_hostile_broker
    async def lies(broker: HostileBroker, client: ledgermq.Client) -> None:
        broker.fetches = [[fetched(encoded(b"a", b"b"), **lie)]]  # type: ignore[arg-type]
        with pytest.raises(errors.CorruptFrame):
            await client.consumer("t", partitions=[0]).fetch()

    lies()


@pytest.mark.parametrize("length", [0, 1, 10**9])
def test_a_frame_whose_lengths_do_not_fit_is_refused(length: int) -> None:
    @against_a_hostile_broker
    async def misfits(broker: HostileBroker, client: ledgermq.Client) -> None:
        data = encoded(b"a")
        broker.fetches = [[fetched(data, count=1, length=length)], [fetched(data, count=1)]]
        consumer = client.consumer("t", partitions=[0])
        with pytest.raises(errors.CorruptFrame, match=ADDRESS):
            await consumer.fetch(timeout=5)
        assert [message.value for message in await consumer.fetch(timeout=5)] == [b"a"]

    misfits()


@against_a_hostile_broker
async def test_partitions_that_the_client_did_not_ask_for_are_ignored(
    broker: HostileBroker, client: ledgermq.Client
) -> None:
    broker.fetches = [[fetched(encoded(b"x"), count=1, topic="other"), fetched(encoded(b"a"), count=1)]]
    consumer = client.consumer("t", partitions=[0])
    assert [message.value for message in await consumer.fetch()] == [b"a"]
    assert await consumer.fetch(timeout=0.1) == []


@against_a_hostile_broker
async def test_batches_that_come_twice_are_read_once(broker: HostileBroker, client: ledgermq.Client) -> None:
    twice = fetched(encoded(b"a", b"b"), count=2)
    broker.fetches = [[twice, twice, fetched(encoded(b"b", b"c"), count=2, base=1)]]
    consumer = client.consumer("t", partitions=[0])
    values = [message.value for _ in range(3) for message in await consumer.fetch(timeout=0.1)]
    assert values == [b"a", b"b", b"c"]


@against_a_hostile_broker
async def test_a_peer_that_sends_without_end_fills_no_more_than_the_prefetch(
    broker: HostileBroker, client: ledgermq.Client
) -> None:
    size = len(encoded(b"x" * 1000))
    broker.fetches = [[fetched(encoded(b"x" * 1000), count=1, base=number) for number in range(100)]]
    consumer = client.consumer("t", partitions=[0], prefetch_bytes_max=10 * size)
    await consumer.wait_ready()
    await asyncio.sleep(4)
    assert consumer._reader._prefetch.held_bytes <= 11 * size
    assert [(await anext(consumer)).offset for _ in range(100)] == list(range(100))


@against_a_hostile_broker
async def test_out_of_range_is_told_or_repaired_as_set(broker: HostileBroker, client: ledgermq.Client) -> None:
    gone = refused(pb.Error(code="OFFSET_OUT_OF_RANGE", message="log starts at 5"))
    broker.fetches = [[gone], [fetched(encoded(b"f"), count=1, base=5)]]
    consumer = client.consumer("t", partitions=[0], start={0: 2})
    with pytest.raises(errors.OffsetOutOfRange, match="t/0, offset 2"):
        await consumer.fetch(timeout=5)
    await consumer.close()
    broker.fetches = [[gone], [fetched(encoded(b"f"), count=1, base=5)]]
    broker.offset = 5
    repaired = client.consumer("t", partitions=[0], start={0: 2}, auto_offset_reset="earliest")
    assert [message.offset for message in await repaired.fetch(timeout=5)] == [5]


@against_a_hostile_broker
async def test_a_refusal_of_one_partition_leaves_the_others(broker: HostileBroker, client: ledgermq.Client) -> None:
    no = refused(pb.Error(code="DATA_DAMAGED", message="segment 5", object_key="k"), partition=0)
    broker.fetches = [[no, fetched(encoded(b"a"), count=1, partition=1)]]
    consumer = client.consumer("t")
    with pytest.raises(errors.DataDamaged) as told:
        await consumer.fetch(timeout=5)
    assert told.value.object_key == "k"
    assert [message.partition for message in await consumer.fetch(timeout=5)] == [1]


@against_a_hostile_broker
async def test_an_empty_fetch_frame_is_nothing(broker: HostileBroker, client: ledgermq.Client) -> None:
    broker.fetches = [[Frame(pb.FetchHeader(), [])]]
    assert await client.consumer("t").fetch(timeout=1) == []


@against_a_hostile_broker
async def test_a_program_that_takes_nothing_keeps_no_stream_open(
    broker: HostileBroker, client: ledgermq.Client
) -> None:
    """What a broker has in line for it would take the broker's memory; the stream begins again
    where it was once there is room.
    """
    first, second = (encoded(f"{number}".encode() * 1000) for number in (1, 2))
    broker.fetches = [[fetched(first, count=1)], [fetched(second, count=1, base=1)]]
    consumer = client.consumer("t", start="earliest", partitions=[0], prefetch_bytes_max=100)
    await consumer.wait_ready()
    await asyncio.sleep(4)
    assert (len(broker.requests), broker.streams_open) == (1, 1)
    await asyncio.sleep(3600)
    assert (len(broker.requests), broker.streams_open) == (1, 0)
    assert [message.offset for message in await consumer.fetch(timeout=5)] == [0]
    assert [message.offset for message in await consumer.fetch(timeout=5)] == [1]
    assert [request.partitions[0].offset for request in broker.requests] == [0, 1]
    await consumer.close()


# -- what a broker says it has left out


def left_out(next_offset: int, high_watermark: int = 5) -> FetchFrame:
    part = pb.FetchedPartition(
        topic="t", topic_id=1, partition=0, high_watermark=high_watermark, next_offset=next_offset
    )
    return Frame(pb.FetchHeader(partitions=[part]), [])


@against_a_hostile_broker
async def test_a_broker_leaves_out_nothing_beyond_the_end(broker: HostileBroker, client: ledgermq.Client) -> None:
    for beyond in (6, 2**64 - 1):
        broker.fetches = [[left_out(beyond)]]
        async with client.consumer("t", partitions=[0], filter="A") as consumer:
            with pytest.raises(errors.CorruptFrame, match="left out offsets up to"):
                await consumer.fetch(timeout=5)
            assert consumer.position(0) == 0


@against_a_hostile_broker
async def test_positions_follow_what_was_left_out_and_never_go_back(
    broker: HostileBroker, client: ledgermq.Client
) -> None:
    broker.fetches = [[left_out(4), left_out(2), left_out(0), left_out(5)]]
    async with client.consumer("t", partitions=[0], filter="A") as consumer:
        assert await consumer.fetch(timeout=5) == []
        assert (consumer.position(0), consumer.filtered) == (5, 5)
        assert broker.requests[0].partitions[0].tags == ["A"]


@pytest.mark.parametrize("given", ["", "a = 1"])
def test_a_broker_that_was_not_asked_to_leave_out_cannot(given: str) -> None:
    @against_a_hostile_broker
    async def asked(broker: HostileBroker, client: ledgermq.Client) -> None:
        broker.fetches = [[left_out(5), fetched(encoded(b"a"), count=1)]]
        async with client.consumer("t", partitions=[0], filter=given) as consumer:
            assert len(await consumer.fetch(timeout=5)) == (not given)
            assert consumer.position(0) == 1
            assert not broker.requests[0].partitions[0].tags

    asked()


def judged(passes: bytes, *, judged: bool = True) -> FetchFrame:
    """Two records, and what a function says of them."""
    frame = fetched(encoded(b"a", b"b"), count=2)
    frame.header.partitions[0].judged = judged
    frame.header.partitions[0].batches[0].passes = passes
    return frame


@against_a_hostile_broker
async def test_verdicts_of_a_function_are_as_many_as_the_records(
    broker: HostileBroker, client: ledgermq.Client
) -> None:
    for wrong in (b"", b"\xff\xff", bytes(1000)):
        broker.fetches = [[judged(wrong)]]
        async with client.consumer("t", partitions=[0], filter="FUNCTION('f')") as consumer:
            with pytest.raises(errors.CorruptFrame, match="bytes of verdicts on 2 records"):
                await consumer.fetch(timeout=5)
            assert consumer.position(0) == 0
    broker.fetches = [[judged(b"\xfe")]]
    async with client.consumer("t", partitions=[0], filter="FUNCTION('f')") as consumer:
        assert [message.value for message in await consumer.fetch(timeout=5)] == [b"b"]
        assert broker.requests[-1].partitions[0].function == "f"


@against_a_hostile_broker
async def test_verdicts_that_were_not_asked_for_mean_nothing(broker: HostileBroker, client: ledgermq.Client) -> None:
    broker.fetches = [[judged(b"\x00")]]
    async with client.consumer("t", partitions=[0]) as consumer:
        assert [message.value for message in await consumer.fetch(timeout=5)] == [b"a", b"b"]


# -- look-up


def look_up(*offsets: int, key: bytes = b"k", left: tuple[int, int] = (0, 0)) -> pb.FindMessagesResponse:
    """An answer to a look-up in offsets 0 to 9."""
    rows = [row_of(b"v", key, None, None, None, NOW_US) for _ in offsets]
    return pb.FindMessagesResponse(
        topic_id=1,
        messages=[pb.FoundMessage(offset=offset) for offset in offsets],
        batch=encode_batch(rows_to_arrow(rows)) if rows else b"",
        left_first=left[0],
        left_end=left[1],
    )


def without_batch(answer: pb.FindMessagesResponse, batch: bytes) -> pb.FindMessagesResponse:
    answer.batch = batch
    return answer


@pytest.mark.parametrize(
    "answer",
    [
        look_up(left=(0, 10)),
        look_up(10),
        look_up(3, key=b"other"),
        look_up(1, 2, 3),
        without_batch(look_up(1), b""),
        without_batch(look_up(1), b"garbage" * 9),
        without_batch(look_up(1, 2), look_up(1).batch),
    ],
    ids=["no progress", "outside", "another key", "too many", "no rows", "garbage", "too few rows"],
)
def test_a_wrong_answer_to_a_look_up_is_refused(answer: pb.FindMessagesResponse) -> None:
    @against_a_hostile_broker
    async def asked(broker: HostileBroker, client: ledgermq.Client) -> None:
        broker.looked_up = answer
        with pytest.raises(errors.CorruptFrame):
            await client.find("t", key="k", start=0, end=10, max=2).all()

    asked()


@against_a_hostile_broker
async def test_a_look_up_that_leaves_more_than_before_ends(broker: HostileBroker, client: ledgermq.Client) -> None:
    broker.looked_up = look_up(9, left=(0, 2**64 - 1))
    with pytest.raises(errors.CorruptFrame):
        await client.find("t", key="k", start=0, end=9).all()
    broker.looked_up = look_up(8, left=(3, 3))
    assert [message.offset for message in await client.find("t", key="k", start=0, end=9).all()] == [8]
