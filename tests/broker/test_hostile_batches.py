"""Batches whose headers look valid but whose contents are not: brokers refuse them, so that they
stop no consumer and park no partition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.batches.batch_header import walk_batch
from ledgermq.protocol.batches.records import SCHEMA
from ledgermq.protocol.frames import Frame, decode_produce, encode_frame
from ledgermq_broker.paths.received_batches import DECODED_BYTES_MAX, INLINE_BYTES_MAX, BatchChecks
from ledgermq_ledger.topics.topic import Topic
from tests.broker.cluster import Cluster, batch_header, encoded, in_cluster
from tests.worlds.batches import BUFFERS, batch_of, get_pair, serialize

ROW = {
    "key": b"kk",
    "value": b"vv",
    "tag": "tt",
    "headers": [{"key": "h", "value": b"v"}],
    "timestamp": 1_700_000_000_000_000,
}
GOOD = serialize(batch_of([ROW, ROW]))
YEAR_10_000_US = 253_402_300_800_000_000


async def takes_all(topic: Topic, records: pa.RecordBatch) -> None:
    """Check no values, as of a topic that does not ask for it."""


def with_content(buffer: int, content: bytes) -> bytes:
    start = 8 + int.from_bytes(GOOD[4:8], "little") + get_pair(GOOD, BUFFERS, buffer)[0]
    return GOOD[:start] + content + GOOD[start + len(content) :]


def of_other_schema(name: str, column: pa.Array) -> bytes:
    return serialize(batch_of([ROW] * len(column)).set_column(SCHEMA.get_field_index(name), name, column))


def spoiled_zstd() -> bytes:
    data = serialize(batch_of([{**ROW, "value": b"v" * 5000}] * 2), compression="zstd")
    start = 8 + int.from_bytes(data[4:8], "little") + get_pair(data, BUFFERS, 5)[0]
    return data[: start + 12] + bytes(8) + data[start + 20 :]


HOSTILE = {
    "a tag that is no UTF-8": with_content(21, b"\xff\xfe"),
    "a header's key that is no UTF-8": with_content(11, b"\xc0"),
    "value offsets that go back": with_content(4, b"\0\0\0\0\x03\0\0\0\x02\0\0\0"),
    "value offsets beyond the data": with_content(4, b"\0\0\0\0\x03\0\0\0\xff\xff\xff\x7f"),
    "large offsets in another schema": of_other_schema("value", pa.array([b"x" * 9, b"y", b"z"], pa.large_binary())),
    "compressed bytes that are none": spoiled_zstd(),
    "a time after the year 9999": serialize(batch_of([ROW, {**ROW, "timestamp": YEAR_10_000_US}])),
    "a time before the year 1": serialize(batch_of([ROW, {**ROW, "timestamp": -(2**62)}])),
}


@in_cluster("a:1")
async def test_unreadable_batches_are_refused_and_the_others_are_stored(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    good = encoded([b"good"])
    batches = [(good, 1), *((data, 3 if "large" in name else 2) for name, data in HOSTILE.items()), (good, 1)]
    frame = Frame(
        pb.ProduceHeader(batches=[batch_header("t", 0, data, rows) for data, rows in batches]),
        [data for data, _ in batches],
    )
    results = (await cluster.line("a:1").produce_once(frame)).results
    codes = dict(zip(HOSTILE, (result.error.code for result in results[1:-1]), strict=True))
    assert {name for name, code in codes.items() if code not in ("CORRUPT_FRAME", "INVALID_RECORD")} == set(), codes
    assert [result.error.code for result in (results[0], results[-1])] == ["", ""]
    assert await cluster.read_all("t", 0) == [b"good", b"good"]


@in_cluster("a:1")
async def test_the_index_says_what_the_records_say_of_time_not_what_the_sender_claims(cluster: Cluster) -> None:
    """Else one client's lie makes another's search by time go wrong."""
    await cluster.create("t", 1)
    early, late = 1_000_000, 9_000_000
    for claimed, true in ((late, early), (early, late)):
        data = serialize(batch_of([{"value": b"x", "timestamp": true}]))
        header = batch_header("t", 0, data, 1)
        header.timestamp_min_us = header.timestamp_max_us = claimed
        [result] = (await cluster.line("a:1").produce_once(Frame(pb.ProduceHeader(batches=[header]), [data]))).results
        assert not result.HasField("error")
    query = pb.OffsetQuery(topic="t", partition=0, timestamp_us=late)
    answer = await cluster.line("a:1").list_offsets(pb.ListOffsetsRequest(queries=[query]))
    assert answer.results[0].offset == 1


@in_cluster("a:1")
async def test_what_was_refused_is_not_kept_in_memory_by_what_was_taken(cluster: Cluster) -> None:
    """Else a batch of some hundred bytes counts as that in every bound, and holds a frame of
    megabytes.
    """
    await cluster.create("t", 1)
    value = b"small" * 600  # too large to be joined with others
    small, large = encoded([value]), encoded([b"x" * 500_000])
    wordy = [batch_header("no such topic " * 1000, 0, b"", 0) for _ in range(20)]
    for headers, payload in (
        ([batch_header("none", 0, large, 1), batch_header("t", 0, small, 1)], large + small),
        ([*wordy, batch_header("t", 0, small, 1)], small),
        ([batch_header("t", 0, small, 1)] * 3, small * 3),
    ):
        frame = decode_produce(encode_frame(Frame(pb.ProduceHeader(batches=headers), [payload])))
        results = (await cluster.line("a:1").produce_once(frame)).results
        assert not results[-1].HasField("error")
    cache = cluster.brokers["a:1"].ownership.terms.context.tail_cache
    segments = [segment for held in cache._bundles.values() for segment in held.values()]
    kept = [data for each in segments for data in ([each] if isinstance(each, bytes) else each.values())]
    held = {id(view.obj): memoryview(view.obj).nbytes for data in kept for view in [memoryview(data)]}
    assert sum(held.values()) <= 2 * cache.size_bytes
    assert await cluster.read_all("t", 0) == [value] * 5


@in_cluster("a:1")
async def test_bombs_are_refused_by_what_they_claim(cluster: Cluster) -> None:
    """A frame holds thousands of them, each of some kilobytes."""
    await cluster.create("t", 1, max_message_bytes="33554432")
    bomb = serialize(batch_of([{"value": bytes(DECODED_BYTES_MAX)}]), compression="zstd")
    large = serialize(batch_of([{"value": bytes(1 << 20)}]), compression="zstd")
    assert len(bomb) < 1 << 15
    headers = [*[batch_header("t", 0, bomb, 1)] * 1000, batch_header("t", 0, large, 1)]
    results = (
        await cluster.line("a:1").produce_once(Frame(pb.ProduceHeader(batches=headers), [bomb * 1000 + large]))
    ).results
    assert {result.error.code for result in results[:-1]} == {"MESSAGE_TOO_LARGE"}
    assert not results[-1].HasField("error")
    assert await cluster.read_all("t", 0) == [bytes(1 << 20)]


async def test_a_batch_that_takes_long_to_decompress_does_not_block_the_loop() -> None:
    """The runner of blocking work decodes it; small and plain batches are not worth the way."""
    ran = []

    async def run(step: Callable[[], Any]) -> Any:
        ran.append(step)
        return step()

    checks = BatchChecks(run, lambda topic, partition: None, lambda: 0, takes_all)
    small, large = batch_of([{"value": bytes(1000)}]), batch_of([{"value": bytes(INLINE_BYTES_MAX)}])
    for batch, compression, blocking in ((small, "zstd", 0), (large, None, 0), (large, "lz4", 1), (large, "zstd", 2)):
        data = memoryview(serialize(batch, compression=compression))
        assert (await checks._decode(data, walk_batch(data, decoded_bytes_max=DECODED_BYTES_MAX))).equals(batch)
        assert len(ran) == blocking
