"""What clients and brokers send each other: frames, record batches, heartbeats."""

from __future__ import annotations

import random

import pyarrow as pa

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.batch_header import walk_batch
from ledgermq.protocol.frames import Frame, decode_fetch, decode_produce, encode_frame
from ledgermq.protocol.records import decode_batch, encode_batch, largest_record_bytes
from stateless_broker.heartbeat import Heartbeat, decode_heartbeat, encode_heartbeat
from tests.batches import ROWS, batch_of, mutate, position, seeded_batch, serialize
from tests.fuzz.surface import Surface, Untyped

DECODED_BYTES_MAX = 16 * 1024 * 1024
_rng = random.Random(1)


def batch_seeds() -> list[bytes]:
    found = []
    for compression in (None, "lz4", "zstd"):
        for version in (pa.ipc.MetadataVersion.V4, pa.ipc.MetadataVersion.V5):
            found += [serialize(seeded_batch(_rng), compression=compression, metadata_version=version) for _ in range(4)]
    found.append(serialize(batch_of([{"value": bytes(100_000)}]), compression="zstd"))
    found.append(serialize(batch_of([{}] * 500)))
    return found


def spoil_batch(rng: random.Random, data: bytes) -> bytes:
    """Half of the edits in the header, which is small beside the body."""
    body = 8 + int.from_bytes(data[4:8], "little")
    if rng.random() < 0.5:
        return mutate(rng, data, data)
    table = position(data, ROWS) & ~7
    begin = rng.choice((0, max(0, table - 64), table))
    edited = mutate(rng, data[begin:body], data)
    padded = edited[: body - begin].ljust(body - begin, b"\0")
    return data[:begin] + padded + data[body:]


def check_batch(data: bytes) -> None:
    info = walk_batch(data, decoded_bytes_max=DECODED_BYTES_MAX)
    batch = decode_batch(data, DECODED_BYTES_MAX)
    if batch.num_rows != info.record_count:
        raise Untyped(f"the walker counts {info.record_count} rows, pyarrow {batch.num_rows}")
    if batch.get_total_buffer_size() > info.decoded_bytes + 64 * 22:
        raise Untyped(f"the walker counts {info.decoded_bytes} bytes, pyarrow took {batch.get_total_buffer_size()}")
    for column in batch.columns:
        (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
    largest_record_bytes(batch)
    again = decode_batch(encode_batch(batch.slice(batch.num_rows // 2), "zstd"))
    if not again.equals(batch.slice(batch.num_rows // 2)):
        raise Untyped("a batch that was accepted does not survive being encoded again")


def produce_seeds() -> list[bytes]:
    session = pb.ProducerSession(id=b"p" * 16, epoch=1, sequence=7, opened_slot=3)
    data = encode_batch(seeded_batch(_rng))
    batch = pb.ProduceBatch(topic="t", partition=1, length=len(data), crc=7, record_count=2, schema=1, producer=session)
    headers = [pb.ProduceHeader(), pb.ProduceHeader(acks=pb.RECEIVED, batches=[batch, batch])]
    return [b"", *(encode_frame(Frame(header, [data, data])) for header in headers)]


def fetch_seeds() -> list[bytes]:
    fetched = pb.FetchedBatch(base_offset=7, record_count=3, length=4, crc=9)
    partition = pb.FetchedPartition(topic="t", topic_id=4, high_watermark=9, log_start=1, batches=[fetched, fetched])
    failed = pb.FetchedPartition(topic="u", error=pb.Error(code="NOT_OWNER", message="m", owner="o", retry_after_ms=5))
    return [encode_frame(Frame(pb.FetchHeader(partitions=[partition, failed]), [b"data", b"data"]))]


def check_produce(data: bytes) -> None:
    frame = decode_produce(data)
    request = pb.ProduceRequest.FromString(data)
    if (frame.header, b"".join(frame.payload)) != (request.header, request.payload):
        raise Untyped("our decoder and the generated code disagree")


def check_fetch(data: bytes) -> None:
    frame = decode_fetch(data)
    response = pb.FetchResponse.FromString(data)
    if (frame.header, b"".join(frame.payload)) != (response.header, response.payload):
        raise Untyped("our decoder and the generated code disagree")


def check_heartbeat(data: bytes) -> None:
    found = decode_heartbeat(data)
    if found is not None and decode_heartbeat(encode_heartbeat(found)) != found:
        raise Untyped("a heartbeat that was accepted does not survive being encoded again")


HEARTBEATS = [
    encode_heartbeat(Heartbeat("b1", "127.0.0.1:9650", 3, "s", 17, {1: 4, 3: 9}, {2: "why"}, leaving=True)),
    encode_heartbeat(Heartbeat("b2", "h:1", 0, "")),
    b"[" * 100_000,
    b'{"broker": ' * 20_000,
    b'{"broker": "b", "address": "a", "incarnation": 1e999, "session": "s", "counter": 0, "bundles": {}, "troubles": {}, "leaving": 0}',
    b'{"broker": "\\ud800", "address": "a", "incarnation": 1, "session": "s", "counter": 0, "bundles": {}, "troubles": {}, "leaving": 0}',
]

SURFACES = [
    Surface("record-batch", batch_seeds(), check_batch, spoil_batch, weight=6),
    Surface("produce-frame", produce_seeds(), check_produce, weight=2),
    Surface("fetch-frame", fetch_seeds(), check_fetch),
    Surface("heartbeat", HEARTBEATS, check_heartbeat),
]
