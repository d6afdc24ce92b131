"""Whatever a peer answers, within the protocol's messages: typed errors only, in time, and the
client goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

import ledgermq
from ledgermq.client.settings.values import ClientSettings
from ledgermq.errors import BY_CODE, LedgerMQError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import FetchFrame, Frame
from tests.unit.client.hostile import ADDRESS, HostileBroker, encoded, fetched
from tests.virtual_time import run_virtual, virtual_sources

NUMBERS = st.sampled_from([0, 1, 2, 5, 2**31, 2**32 - 1]) | st.integers(0, 2**32 - 1)
LARGE = NUMBERS | st.sampled_from([2**63 - 1, 2**63, 2**64 - 1])
NAMES = st.sampled_from(["t", "u", "", "\x00"])
ERRORS = st.none() | st.builds(
    pb.Error,
    code=st.sampled_from([*BY_CODE, "NEW"]),
    message=st.text(max_size=5),
    owner=st.sampled_from(["", ADDRESS, "nobody:1", "\n"]),
    retry_after_ms=NUMBERS,
)
DATA = st.sampled_from([encoded(b"a", b"b"), encoded(b"x" * 100), b"", b"garbage"])
BATCHES = st.builds(
    pb.FetchedBatch,
    base_offset=LARGE,
    record_count=NUMBERS,
    length=st.sampled_from([0, 7, 10**6]),
    crc=NUMBERS,
    object=st.just(0) | NUMBERS,
    position=LARGE,
)
PARTITIONS = st.builds(
    pb.FetchedPartition,
    topic=NAMES,
    topic_id=LARGE,
    partition=NUMBERS,
    high_watermark=LARGE,
    log_start=LARGE,
    batches=st.lists(BATCHES, max_size=2),
    error=ERRORS,
)
HEADERS = st.builds(
    pb.FetchHeader, partitions=st.lists(PARTITIONS, max_size=3), objects=st.lists(st.just("file:///x"), max_size=2)
)
FRAMES = st.builds(Frame, HEADERS, st.lists(DATA, max_size=2)) | st.builds(
    fetched, DATA, count=NUMBERS, base=st.sampled_from([0, 1, 3, 2**40, 2**64 - 1]), partition=st.integers(0, 1)
)
TOPICS = st.builds(
    pb.TopicInfo,
    name=NAMES,
    topic_id=LARGE,
    partitions=st.lists(
        st.builds(pb.PartitionInfo, bundle=NUMBERS, owner=st.sampled_from(["", ADDRESS, "?", "nobody:1"])), max_size=2
    ),
    settings=st.dictionaries(
        st.sampled_from(["max.message.bytes", "compression.type", "x"]), st.sampled_from(["", "-1", "zstd", "٣"])
    ),
    error=ERRORS,
)


def run(broker: HostileBroker, use: Callable[[ledgermq.Client], Awaitable[None]]) -> None:
    async def main() -> None:
        client = ledgermq.Client(broker, [ADDRESS], ClientSettings(timeout_s=3, attempt_timeout_s=1), virtual_sources())
        async with asyncio.timeout(600):
            await use(client)
            await client.abort()

    run_virtual(main)


def background_lives(made: ledgermq.Producer | ledgermq.Consumer) -> bool:
    background = made._reader._background if isinstance(made, ledgermq.Consumer) else made._background
    return background is None or not background.done()


@pytest.mark.slow
@given(st.lists(st.lists(FRAMES, max_size=3), max_size=4))
@settings(max_examples=200, deadline=None)
def test_fetch_answers(fetches: list[list[FetchFrame]]) -> None:
    broker = HostileBroker()
    broker.fetches = fetches

    async def use(client: ledgermq.Client) -> None:
        consumer = client.consumer("t", request_timeout_s=3, auto_offset_reset="earliest")
        for _ in range(6):
            try:
                for message in await consumer.fetch(timeout=2):
                    assert message.value in (b"a", b"b", b"x" * 100), "nothing is shown that failed its checks"
            except LedgerMQError:
                await asyncio.sleep(15)  # time for another stream, which begins where this one ended
                assert background_lives(consumer)
                await consumer.seek(0)
            assert background_lives(consumer)

    run(broker, use)


@given(
    st.lists(
        st.none() | st.lists(st.builds(pb.ProduceResult, base_offset=LARGE, topic_id=LARGE, error=ERRORS), max_size=3),
        max_size=5,
    )
)
@settings(max_examples=200, deadline=None)
def test_produce_answers(answers: list[list[pb.ProduceResult] | None]) -> None:
    broker = HostileBroker()

    def answer(frame: object) -> pb.ProduceResponse | None:
        results = answers.pop(0) if answers else None
        return None if results is None else pb.ProduceResponse(results=results)

    broker.on_produce = answer

    async def use(client: ledgermq.Client) -> None:
        producer = client.producer(delivery_timeout_s=3, request_timeout_s=1)
        for _ in range(3):
            deliveries = [producer.send("t", b"v", partition=partition) for partition in (0, 1, 0)]
            outcomes = await asyncio.gather(*deliveries, return_exceptions=True)
            assert all(isinstance(outcome, ledgermq.SendResult | LedgerMQError) for outcome in outcomes)
            assert background_lives(producer)
        assert producer.buffered_bytes == 0

    run(broker, use)


@given(st.lists(TOPICS, max_size=3))
@settings(max_examples=200, deadline=None)
def test_descriptions(topics: list[Message]) -> None:
    broker = HostileBroker()

    async def describe(request: pb.DescribeTopicsRequest) -> pb.DescribeTopicsResponse:
        return pb.DescribeTopicsResponse(topics=topics)

    broker.describe_topics = describe  # type: ignore[method-assign]

    async def use(client: ledgermq.Client) -> None:
        producer, consumer = client.producer(delivery_timeout_s=2), client.consumer("t", request_timeout_s=2)
        calls: list[Awaitable[object]] = [
            client.list_topics(),
            client.describe_topic("t"),
            client.list_offsets("t"),
            producer.send("t", b"v", key=b"k"),
            consumer.fetch(timeout=0.1),
        ]
        for call in calls:
            try:
                await call
            except LedgerMQError:
                continue
        assert background_lives(producer)
        assert background_lives(consumer)

    run(broker, use)
