"""What clients and brokers send each other: frames, record batches, heartbeats."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pyarrow as pa
from google.protobuf.message import Message

from ledgermq.client.consuming.fetching.direct_reads import ranges_of
from ledgermq.client.consuming.message import messages_of
from ledgermq.client.delayed import merged
from ledgermq.client.messages.descriptions import TopicPartition, cluster_description, topic_description
from ledgermq.client.messages.handles import data_of, handle_of, request_of, text_of
from ledgermq.client.queues.leases.handles import PREFIX as LEASE_PREFIX
from ledgermq.client.queues.leases.handles import LeaseHandle, LeaseName, handle_of_lease, lease_of_handle
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.batches.batch_header import walk_batch
from ledgermq.protocol.batches.records import decode_batch, encode_batch, largest_record_bytes, timestamps_of
from ledgermq.protocol.frames import Frame, decode_fetch, decode_produce, decode_stage, encode_frame
from ledgermq.protocol.limits import FRAME_PAYLOAD_BYTES_MAX
from ledgermq.protocol.methods import METHODS
from ledgermq.protocol.status import error_from_proto
from ledgermq_broker.cluster.heartbeat import Heartbeat, decode_heartbeat, encode_heartbeat
from tests.fuzz.mutation import filled, mutate_fields
from tests.fuzz.surface import Surface, Untyped
from tests.worlds.batches import (
    BUFFERS,
    NODES,
    ROWS,
    batch_of,
    get_pair,
    mutate,
    nulls_with_content,
    position,
    seeded_batch,
    serialize,
    with_pair,
)

VALIDITY_OF_NODE = (0, 3, 6, 8, 9, 12, 15, 17, 19)
DECODED_BYTES_MAX = 16 * 1024 * 1024
_rng = random.Random(1)


def batch_seeds() -> list[bytes]:
    found = []
    for compression in (None, "lz4", "zstd"):
        for version in (pa.ipc.MetadataVersion.V4, pa.ipc.MetadataVersion.V5):
            found += [
                serialize(seeded_batch(_rng), compression=compression, metadata_version=version) for _ in range(4)
            ]
    found.append(serialize(batch_of([{"value": bytes(100_000)}]), compression="zstd"))
    found.append(serialize(batch_of([{}] * 500)))
    found += [serialize(nulls_with_content(), compression=compression) for compression in (None, "zstd")]
    return found


def spoil_batch(rng: random.Random, data: bytes) -> bytes:
    """Half of the edits in the header, which is small beside the body; some make other values null,
    as the bitmaps then say.
    """
    body = 8 + int.from_bytes(data[4:8], "little")
    if rng.random() < 0.4:
        return mutate(rng, data, data)
    if rng.random() < 0.3:
        return with_other_nulls(rng, data, body)
    table = position(data, ROWS) & ~7
    begin = rng.choice((0, max(0, table - 64), table))
    edited = mutate(rng, data[begin:body], data)
    padded = edited[: body - begin].ljust(body - begin, b"\0")
    return data[:begin] + padded + data[body:]


def with_other_nulls(rng: random.Random, data: bytes, body: int) -> bytes:
    """Of a batch without compression: one column's bitmap drawn anew, and its count of nulls with
    it.
    """
    node = rng.randrange(9)
    offset, length = get_pair(data, BUFFERS, VALIDITY_OF_NODE[node])
    count = get_pair(data, NODES, node)[0]
    if length * 8 < count or count > 10_000:
        return mutate(rng, data, data)
    bits = rng.getrandbits(count) if count else 0
    drawn = bits.to_bytes(length, "little")[:length]
    changed = data[: body + offset] + drawn + data[body + offset + length :]
    return with_pair(changed, NODES, node, count, count - bits.bit_count())


def check_batch(data: bytes) -> None:
    info = walk_batch(data, decoded_bytes_max=DECODED_BYTES_MAX)
    batch = decode_batch(data, DECODED_BYTES_MAX)
    if batch.num_rows != info.record_count:
        raise Untyped(f"the walker counts {info.record_count} rows, pyarrow {batch.num_rows}")
    if batch.get_total_buffer_size() > info.decoded_bytes + 64 * 22:
        raise Untyped(f"the walker counts {info.decoded_bytes} bytes, pyarrow took {batch.get_total_buffer_size()}")
    if (
        sum(len(message.value or b"") + len(message.key or b"") for message in messages_of(batch, "t", 0, 7))
        > info.decoded_bytes
    ):
        raise Untyped("the messages are longer than the batch")
    largest_record_bytes(batch)
    timestamps_of(batch)
    for message in messages_of(batch, "t", 0, 7):
        _ = message.timestamp
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
    there = pb.FetchedBatch(base_offset=10, record_count=3, length=4, crc=9, object=1, position=2**40)
    located = pb.FetchedPartition(topic="t", topic_id=4, high_watermark=13, batches=[fetched, there])
    headers = [
        pb.FetchHeader(partitions=[partition, failed]),
        pb.FetchHeader(partitions=[located], objects=["file:///root/segment"]),
    ]
    return [encode_frame(Frame(header, [b"data", b"data"])) for header in headers]


def check_produce(data: bytes) -> None:
    frame = decode_produce(data)
    request = pb.ProduceRequest.FromString(data)
    if (frame.header, b"".join(frame.payload)) != (request.header, request.payload):
        raise Untyped("our decoder and the generated code disagree")


def stage_seeds() -> list[bytes]:
    ref = pb.TransactionRef(transactional_id="orders-7", coordinator=1, producer_id=b"p" * 16, epoch=3, number=12)
    data = encode_batch(seeded_batch(_rng))
    batch = pb.ProduceBatch(topic="t", partition=1, length=len(data), crc=7, record_count=2, schema=1)
    two = [pb.StageBatch(batch=batch, sequence=sequence) for sequence in range(2)]
    headers = [pb.StageHeader(transaction=ref), pb.StageHeader(transaction=ref, branch=b"branch", batches=two)]
    return [b"", *(encode_frame(Frame(header, [data, data])) for header in headers)]


def check_stage(data: bytes) -> None:
    frame = decode_stage(data)
    request = pb.StageRequest.FromString(data)
    if (frame.header, b"".join(frame.payload)) != (request.header, request.payload):
        raise Untyped("our decoder and the generated code disagree")


def check_fetch(data: bytes) -> None:
    frame = decode_fetch(data)
    response = pb.FetchResponse.FromString(data)
    if (frame.header, b"".join(frame.payload)) != (response.header, response.payload):
        raise Untyped("our decoder and the generated code disagree")
    ranges = ranges_of(frame.header)
    if sum(wanted.length for wanted in ranges) > FRAME_PAYLOAD_BYTES_MAX:
        raise Untyped("more would be read than a frame may hold")


def check_heartbeat(data: bytes) -> None:
    found = decode_heartbeat(data)
    if found is not None and decode_heartbeat(encode_heartbeat(found)) != found:
        raise Untyped("a heartbeat that was accepted does not survive being encoded again")


HEARTBEATS = [
    encode_heartbeat(Heartbeat("b1", "127.0.0.1:9650", 3, "s", 17, {1: 4, 3: 9}, {2: "why"}, leaving=True)),
    encode_heartbeat(Heartbeat("b2", "h:1", 0, "", loads={1: 3_000_000}, promised={3: "b1"})),
    b"[" * 100_000,
    b'{"broker": ' * 20_000,
    (
        b'{"broker": "b", "address": "a", "incarnation": 1e999, "session": "s", "counter": 0, "bundles": {},'
        b' "troubles": {}, "leaving": 0}'
    ),
    (
        b'{"broker": "\\ud800", "address": "a", "incarnation": 1, "session": "s", "counter": 0, "bundles": {},'
        b' "troubles": {}, "leaving": 0}'
    ),
]


def answer_seeds() -> list[bytes]:
    """The number of a method, then its answer with every field set.

    Frames have surfaces of their own.
    """
    found = []
    for number, method in enumerate(METHODS):
        kind = type(method.decode_response(b""))
        if kind is not Frame:
            found.append(bytes([number]) + filled(kind).SerializeToString())
    return found


def spoil_answer(rng: random.Random, data: bytes) -> bytes:
    if rng.random() < 0.4:
        return data[:1] + mutate(rng, data[1:], data)
    answer = METHODS[data[0]].decode_response(data[1:])
    mutate_fields(rng, answer)
    return data[:1] + METHODS[data[0]].encode_response(answer)


HANDLES = [
    handle_of(
        pb.RecallDelayedRequest(topic="orders", topic_id=7, partition=3, offset=2**40, row=9, due_us=-5)
    ).encode(),
    handle_of(pb.RecallDelayedRequest(topic="t", topic_id=1)).encode(),
]


def check_handle(data: bytes) -> None:
    text = data.decode(errors="replace")
    if handle_of(request_of(text)) != text:
        raise Untyped("a handle that was accepted is another one when it is encoded again")


LEASES = [
    handle_of_lease(
        LeaseHandle("workers", TopicPartition("jobs", 3), 2**40, LeaseName(7, 9, 11), 2, 5, 30_000, True, 13)
    ).encode(),
    handle_of_lease(LeaseHandle("g", TopicPartition("t", 0), 0, LeaseName(1, 0, 0), 0, 0, 0, False, 0)).encode(),
]


def check_lease(data: bytes) -> None:
    text = data.decode(errors="replace")
    if handle_of_lease(lease_of_handle(text)) != text:
        raise Untyped("a handle that was accepted is another one when it is encoded again")


def spoil_lease(rng: random.Random, data: bytes) -> bytes:
    """Mostly, change what a handle holds, and let its checksum fit."""
    if rng.random() < 0.2:
        return mutate(rng, data, data)
    try:
        inner = bytearray(data_of(LEASE_PREFIX, data.decode()))
    except ValueError:
        return data
    for _ in range(rng.randint(1, 4)):
        inner[rng.randrange(len(inner))] = rng.randrange(256)
    return text_of(LEASE_PREFIX, bytes(inner[: rng.choice((len(inner), rng.randint(1, len(inner))))])).encode()


def check_answer(data: bytes) -> None:
    """What the SDK makes of a broker's answers; property tests give whole hostile conversations to
    it.
    """
    method = METHODS[data[0] % len(METHODS) if data else 0]
    answer = method.decode_response(data[1:])
    for error in _errors_in(answer) if isinstance(answer, Message) else ():
        str(error_from_proto(error))
    if isinstance(answer, pb.DescribeClusterResponse):
        cluster_description(answer)
    if isinstance(answer, pb.ListDelayedResponse):
        merged([(1, answer), (2, answer)], 10, {})
    if isinstance(answer, pb.DescribeTopicsResponse):
        for topic in answer.topics:
            topic_description(topic)


def _errors_in(message: Message) -> Iterator[pb.Error]:
    if isinstance(message, pb.Error):
        yield message
    for field, value in message.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for inner in value if field.is_repeated else [value]:
                yield from _errors_in(inner)


def surfaces() -> list[Surface]:
    return [
        Surface("record-batch", batch_seeds(), check_batch, spoil_batch, weight=6),
        Surface("produce-frame", produce_seeds(), check_produce, weight=2),
        Surface("stage-frame", stage_seeds(), check_stage),
        Surface("fetch-frame", fetch_seeds(), check_fetch),
        Surface("delayed-handle", HANDLES, check_handle),
        Surface("lease-handle", LEASES, check_lease, spoil_lease),
        Surface("answer", answer_seeds(), check_answer, spoil_answer),
        Surface("heartbeat", HEARTBEATS, check_heartbeat),
    ]
