"""Frames are the protobuf encoding of ProduceRequest and FetchResponse: held to the generated code,
both ways.
"""

from __future__ import annotations

import random

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.errors import CorruptFrame
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import Frame, decode_fetch, decode_produce, encode_frame
from ledgermq.protocol.limits import FRAME_HEADER_BYTES_MAX
from tests.worlds.batches import mutate

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
pieces = st.lists(st.binary(max_size=300), max_size=4)

produce_headers = st.builds(
    pb.ProduceHeader,
    acks=st.sampled_from([pb.DURABLE, pb.RECEIVED]),
    batches=st.lists(
        st.builds(
            pb.ProduceBatch,
            topic=st.text(max_size=9),
            topic_id=u64,
            partition=u32,
            length=u32,
            crc=u32,
            record_count=u32,
            timestamp_min_us=i64,
            timestamp_max_us=i64,
            schema=u32,
            producer=st.builds(pb.ProducerSession, id=st.binary(max_size=16), epoch=u32, sequence=u64, opened_slot=u64),
        ),
        max_size=4,
    ),
)
fetch_headers = st.builds(
    pb.FetchHeader,
    partitions=st.lists(
        st.builds(
            pb.FetchedPartition,
            topic=st.text(max_size=9),
            topic_id=u64,
            partition=u32,
            high_watermark=u64,
            log_start=u64,
            batches=st.lists(
                st.builds(pb.FetchedBatch, base_offset=u64, record_count=u32, length=u32, crc=u32), max_size=3
            ),
            error=st.builds(pb.Error, code=st.text(max_size=5), message=st.text(max_size=9), owner=st.text(max_size=5)),
        ),
        max_size=3,
    ),
)


def joined(frame: Frame) -> bytes:
    return b"".join(bytes(piece) for piece in frame.payload)


@given(produce_headers, pieces)
def test_what_we_write_of_a_produce_request_the_generated_code_reads(
    header: pb.ProduceHeader, payload: list[bytes]
) -> None:
    request = pb.ProduceRequest.FromString(encode_frame(Frame(header, payload)))
    assert request.header == header
    assert request.payload == b"".join(payload)


@given(fetch_headers, pieces)
def test_what_we_write_of_a_fetch_response_the_generated_code_reads(
    header: pb.FetchHeader, payload: list[bytes]
) -> None:
    response = pb.FetchResponse.FromString(encode_frame(Frame(header, payload)))
    assert response.header == header
    assert response.payload == b"".join(payload)


@given(produce_headers | st.none(), st.binary(max_size=300))
def test_what_the_generated_code_writes_of_a_produce_request_we_read(
    header: pb.ProduceHeader | None, payload: bytes
) -> None:
    frame = decode_produce(pb.ProduceRequest(header=header, payload=payload).SerializeToString())
    assert frame.header == (header or pb.ProduceHeader())
    assert joined(frame) == payload


@given(fetch_headers | st.none(), st.binary(max_size=300))
def test_what_the_generated_code_writes_of_a_fetch_response_we_read(
    header: pb.FetchHeader | None, payload: bytes
) -> None:
    frame = decode_fetch(pb.FetchResponse(header=header, payload=payload).SerializeToString())
    assert frame.header == (header or pb.FetchHeader())
    assert joined(frame) == payload


@given(produce_headers, st.binary(min_size=1, max_size=300))
def test_fields_may_come_in_the_other_order(header: pb.ProduceHeader, payload: bytes) -> None:
    swapped = (
        pb.ProduceRequest(payload=payload).SerializeToString() + pb.ProduceRequest(header=header).SerializeToString()
    )
    frame = decode_produce(swapped)
    assert (frame.header, joined(frame)) == (header, payload)


@given(st.integers(0, 2**32), pieces)
def test_the_generated_code_reads_every_accepted_frame_alike(seed: int, payload: list[bytes]) -> None:
    rng = random.Random(seed)
    header = pb.ProduceHeader(acks=pb.RECEIVED, batches=[pb.ProduceBatch(topic="t", length=3, crc=7, record_count=2)])
    valid = encode_frame(Frame(header, payload))
    data = mutate(rng, valid + (valid if rng.random() < 0.3 else b""), valid)
    try:
        frame = decode_produce(data)
    except CorruptFrame:
        return
    request = pb.ProduceRequest.FromString(data)
    assert (frame.header, joined(frame)) == (request.header, request.payload)


def test_the_payload_is_not_copied() -> None:
    data = encode_frame(Frame(pb.ProduceHeader(), [b"abc" * 100]))
    [piece] = decode_produce(data).payload
    assert isinstance(piece, memoryview)
    assert piece.obj is data


def frame_bytes(header: Message, payload: bytes = b"payload") -> bytes:
    return encode_frame(Frame(header, [payload]))


GOOD = frame_bytes(pb.ProduceHeader(acks=pb.RECEIVED, batches=[pb.ProduceBatch(topic="t", length=7)]))


@pytest.mark.parametrize("length", range(1, len(GOOD)))
def test_a_frame_that_was_cut_off_is_refused_or_holds_a_whole_header_alone(length: int) -> None:
    """Protobuf has no end mark: a frame cut exactly behind its header is a frame without payload."""
    header_end = 2 + GOOD[1]
    if length == header_end:
        assert joined(decode_produce(GOOD[:length])) == b""
        return
    with pytest.raises(CorruptFrame):
        decode_produce(GOOD[:length])


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x08\x01", id="a field that is a number"),
        pytest.param(b"\x1a\x00", id="an unknown field"),
        pytest.param(b"\x0b\x0c", id="a group"),
        pytest.param(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", id="a length of eleven bytes"),
        pytest.param(b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", id="a length of 2**64 - 1"),
        pytest.param(b"\x12\x80", id="the end inside of a length"),
        pytest.param(b"\x0a\x02\xff\xff", id="a header that is no protobuf"),
        pytest.param(b"\x0a\x04\x12\x02\x0a\xff", id="a batch that ends behind the header"),
        pytest.param(b"\x0a\x05\x12\x03\x0a\x01\xff", id="a topic that is no UTF-8"),
        pytest.param(GOOD + GOOD, id="both fields twice"),
        pytest.param(b"\x0a\x00\x0a\x00", id="the header twice"),
        pytest.param(b"\xff" * 40, id="garbage"),
    ],
)
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptFrame):
        decode_produce(data)


def test_an_oversized_header_is_refused_before_it_is_parsed() -> None:
    header = pb.ProduceHeader(batches=[pb.ProduceBatch(topic="x" * FRAME_HEADER_BYTES_MAX)])
    with pytest.raises(CorruptFrame, match="at most"):
        decode_produce(frame_bytes(header))


def test_an_empty_frame_is_an_empty_request() -> None:
    frame = decode_produce(b"")
    assert frame.header == pb.ProduceHeader()
    assert frame.payload_bytes == 0
