"""Whole requests to a broker, in this process and in virtual time: each gets an answer or a typed
error, and the next client is served.

Every method of the table is asked, streams too: a stream of frames is the input twice, its end cut
off the second time. State carries over from one input to the next, so that topics and groups come
and go; a replay of one input begins afresh.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from typing import Any

from google.protobuf.message import Message

from ledgermq.errors import CorruptFrame, LedgerMQError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import Connection
from ledgermq.protocol.frames import Frame
from ledgermq.protocol.limits import DELAYED_BRANCH
from ledgermq.protocol.methods import (
    METHODS,
    PRODUCE,
    PRODUCE_DELAYED,
    PRODUCE_DELAYED_ONCE,
    PRODUCE_ONCE,
    STAGE,
    STAGE_DELAYED,
    Kind,
    Method,
)
from ledgermq.protocol.naming.exclusive_ids import exclusive_id
from tests.broker.cluster import Cluster, batch_header, cluster_of, encoded, frame_of, read_all
from tests.fuzz.mutation import filled, mutate_fields
from tests.fuzz.surface import Surface, Untyped
from tests.virtual_time import VirtualLoop
from tests.worlds.batches import mutate

ANSWER_S = 300.0
"""Virtual seconds: the longest long poll, and all that a broker waits for, are far below."""
STREAM_S = 2.0
HEALTH_EVERY = 50
INPUTS_A_CLUSTER = 1000
"""Then a new one: what a request meets must not grow forever."""
LIMITS = {"partitions_max": 8, "topics_max": 40, "fetch_wait_ms_max": 1000}
FRAMES = (PRODUCE, PRODUCE_ONCE, STAGE, STAGE_DELAYED, PRODUCE_DELAYED, PRODUCE_DELAYED_ONCE)
"""Methods whose requests are a header and a payload."""
ANSWERS_MAX = 3
"""Of a stream, which would otherwise go on forever."""


class Served:
    """One broker, and a topic that no input deletes. Made by the first input."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=VirtualLoop)
        self._stack = AsyncExitStack()
        self._cluster: Cluster | None = None
        self._served = 0

    def serve(self, data: bytes) -> None:
        self._runner.run(self._serve(data))

    def close(self) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.close()

    async def _serve(self, data: bytes) -> None:
        if self._cluster is None or self._served % INPUTS_A_CLUSTER == 0:
            await self._stack.aclose()
            self._cluster = await self.begin(self._stack)
        method = METHODS[data[0] % len(METHODS)] if data else PRODUCE_ONCE
        try:
            async with asyncio.timeout(ANSWER_S):
                for answer in await self.answers(self._cluster, method, data[1:]):
                    method.decode_response(method.encode_response(answer))
        finally:
            self._served += 1
            if self._served % HEALTH_EVERY == 0:
                await self.check_health(self._cluster)

    async def begin(self, stack: AsyncExitStack) -> Cluster:
        """A new cluster, which ends with `stack`."""
        cluster = await stack.enter_async_context(cluster_of("a:1", **LIMITS))
        await cluster.create("kept", 2)
        return cluster

    def line(self, cluster: Cluster) -> Connection:
        """By which inputs are sent."""
        return cluster.line("a:1")

    async def answers(self, cluster: Cluster, method: Method, data: bytes) -> list[Any]:
        call = getattr(self.line(cluster), method.attribute)
        if method.kind is Kind.UNARY:
            return [await call(method.decode_request(data))]
        stream = call(_requests(method, data) if method.kind is Kind.BIDI_STREAM else method.decode_request(data))
        found: list[Any] = []
        async with aclosing(stream):
            try:
                async with asyncio.timeout(STREAM_S):
                    async for answer in stream:
                        found.append(answer)
                        if len(found) == ANSWERS_MAX:
                            break
            except TimeoutError:
                pass  # a stream that has nothing to say at present
        return found

    async def check_health(self, cluster: Cluster) -> None:
        """The next client is served, and what is stored can be read."""
        try:
            async with asyncio.timeout(ANSWER_S):
                await cluster.produce("kept", 0, b"%d" % self._served)
                values = await read_all(cluster.line("a:1"), "kept", 0)
        except (LedgerMQError, TimeoutError) as error:
            raise Untyped(f"the next client was not served: {error!r}") from error
        if b"%d" % self._served not in values:
            raise Untyped("a record that was acknowledged is not read back")


async def _requests(method: Method, data: bytes) -> AsyncIterator[Any]:
    yield method.decode_request(data)
    yield method.decode_request(data[: -1 - len(data) % 7])


def _number(method: Method) -> bytes:
    return bytes([METHODS.index(method)])


def _request_type(method: Method) -> type[Message]:
    """Of a method whose requests are messages, not frames."""
    return type(method.decode_request(b""))


def _about_topics() -> dict[str, list[Message]]:
    """By method."""
    return {
        "DescribeCluster": [pb.DescribeClusterRequest()],
        "DescribeTopics": [
            pb.DescribeTopicsRequest(topics=["kept", "t1"], auto_create=True),
            pb.DescribeTopicsRequest(),
        ],
        "CreateTopic": [
            pb.CreateTopicRequest(name=f"t{i}", partitions=2, settings={"retention.ms": "1000"}) for i in range(4)
        ],
        "AlterTopic": [
            pb.AlterTopicRequest(name="t1", partitions=3, set={"max.message.bytes": "9"}, unset=["retention.ms"])
        ],
        "DeleteRecords": [
            pb.DeleteRecordsRequest(
                topic="t1",
                partitions=[pb.RecordsToDelete(partition=0, offset=5), pb.RecordsToDelete(partition=9, end=True)],
            ),
            pb.DeleteRecordsRequest(
                topic="t2", partitions=[pb.RecordsToDelete(partition=1, timestamp_us=-5)], dry_run=True
            ),
        ],
        "DeleteTopic": [pb.DeleteTopicRequest(name=f"t{i}") for i in range(4)],
    }


def _of_queues() -> dict[str, list[Message]]:
    """By method."""
    return {
        "ShareFetch": [
            pb.ShareFetchRequest(
                group="g", member_id="m", partitions=[pb.SharePartition(topic="kept")], max_records=3, lease_ms=2000
            ),
            pb.ShareFetchRequest(
                group="g", member_id="n", partitions=[pb.SharePartition(topic="kept", partition=1)], latest=True
            ),
        ],
        "ShareAnswer": [
            pb.ShareAnswerRequest(
                group="g",
                member_id="m",
                partitions=[
                    pb.SharePartitionAnswer(
                        topic="kept", spans=[pb.SharedSpan(first=0, last=4, epoch=1, lease=1, word=pb.RELEASE_SHARE)]
                    )
                ],
            )
        ],
        "ResetShares": [pb.ResetSharesRequest(group="g", resets=[pb.ShareReset(topic="kept", offset=1)])],
        "ListShares": [pb.ListSharesRequest(bundle=1, members=True), pb.ListSharesRequest(bundle=2, group="g")],
    }


def _about_records() -> dict[str, list[Message]]:
    """By method: of producers and of readers."""
    fetched = pb.FetchPartition(topic="kept", partition=1)
    topic = pb.TopicPartition(topic="kept", partition=1)
    queries = [pb.OffsetQuery(topic="kept", earliest=True), pb.OffsetQuery(topic="kept", partition=1, timestamp_us=5)]
    return {
        "ListOffsets": [pb.ListOffsetsRequest(queries=[*queries, pb.OffsetQuery(topic="kept", latest=True)])],
        "OpenProducer": [pb.OpenProducerRequest(partitions=[topic, topic])],
        "RecallDelayed": [
            pb.RecallDelayedRequest(topic="kept", topic_id=1, partition=1, offset=offset, row=offset, due_us=5)
            for offset in range(2)
        ],
        "HoldPartitions": [
            pb.HoldPartitionsRequest(
                producer_id=exclusive_id(b"i" * 16),
                name="n",
                partitions=[pb.WantedPartition(topic="kept", partition=number, number=number) for number in range(2)],
            ),
            pb.HoldPartitionsRequest(partitions=[pb.WantedPartition(topic="kept")]),
        ],
        "ReleasePartitions": [
            pb.ReleasePartitionsRequest(
                producer_id=exclusive_id(b"i" * 16), partitions=[pb.WantedPartition(topic="kept")]
            )
        ],
        "FindMessages": [
            pb.FindMessagesRequest(topic="kept", partition=1, key=b"key", max_messages=2),
            pb.FindMessagesRequest(
                topic="kept", partition=1, key=b"", first=1, end=9, oldest_first=True, max_read_bytes=1
            ),
            pb.FindMessagesRequest(topic="kept", partition=1, offset=0),
        ],
        "ListDelayed": [
            pb.ListDelayedRequest(bundle=2, max_messages=9),
            pb.ListDelayedRequest(bundle=2, topic="kept", partition=1, max_messages=2),
            pb.ListDelayedRequest(bundle=1),
        ],
        "FetchOnce": [pb.FetchRequest(partitions=[fetched], max_bytes=1000, max_wait_ms=5, min_bytes=1)],
    }


def seeds() -> list[bytes]:
    good, odd = encoded([b"good"]), encoded([None, b"x" * 100], b"key")
    session = pb.ProducerSession(id=b"i" * 16, epoch=1, opened_slot=99)
    two = [batch_header("kept", 1, good, 1), batch_header("kept", 1, odd, 2, session)]
    requests = _about_records() | _about_topics() | _of_queues()
    requests["Fetch"] = requests["FetchOnce"]
    frame = frame_of("kept", 1, b"one", b"two")
    frame.header.batches.extend(two)
    whole = PRODUCE_ONCE.encode_request(type(frame)(frame.header, [*frame.payload, good, odd]))
    staged = pb.StageHeader(transaction=pb.TransactionRef(transactional_id="kept", producer_id=b"i" * 16))
    staged.batches.add(batch=batch_header("kept", 1, good, 1))
    found = [_number(PRODUCE_ONCE) + whole] * 3 + [_number(PRODUCE) + whole] * 2
    found += [_number(method) + whole for method in (PRODUCE_DELAYED, PRODUCE_DELAYED_ONCE) for _ in range(2)]
    found.append(_number(STAGE) + STAGE.encode_request(Frame(staged, [good])))
    later = pb.StageHeader(branch=DELAYED_BRANCH)
    later.MergeFrom(staged)
    found.append(_number(STAGE_DELAYED) + STAGE_DELAYED.encode_request(Frame(later, [good])))
    for method in METHODS:
        if method not in FRAMES:
            messages = requests.get(method.name) or [filled(_request_type(method))]
            found += [_number(method) + message.SerializeToString() for message in messages]
    return found


def spoil(rng: random.Random, data: bytes) -> bytes:
    """Mostly requests that can be parsed, with fields that no client sends."""
    method = METHODS[data[0]]
    if rng.random() < 0.3:
        return data[:1] + mutate(rng, data[1:], data)
    try:
        request = method.decode_request(data[1:])
    except CorruptFrame:
        return data
    if method in FRAMES:
        payload = [b"".join(request.payload)]
        mutate_fields(rng, request.header)
        if rng.random() < 0.3:
            payload = [mutate(rng, payload[0], data)]
        return data[:1] + method.encode_request(type(request)(request.header, payload))
    mutate_fields(rng, request)
    return data[:1] + method.encode_request(request)


def surfaces() -> list[Surface]:
    service = Served()
    return [Surface("service", seeds(), service.serve, spoil, weight=2, close=service.close)]
