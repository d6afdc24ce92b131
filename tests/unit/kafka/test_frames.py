"""What arrives is cut into frames, whatever the pieces are, and memory follows what has arrived."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest

from ledgermq.errors import CorruptFrame
from ledgermq_broker.kafka.wire.frames import (
    BUFFER_BYTES,
    FRAME_BYTES_MAX,
    PLAIN_FRAME_BYTES_MAX,
    FrameBuffer,
    read_head,
    read_response,
    request_frame,
    response_frame,
)
from ledgermq_broker.kafka.wire.messages import API_VERSIONS, METADATA, PRODUCE, read_whole, written


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


@pytest.mark.parametrize("seed", range(20))
def test_frames_come_out_as_they_went_in(seed: int) -> None:
    rng = random.Random(seed)
    payloads = [rng.randbytes(rng.choice((8, 9, 100, 20_000, BUFFER_BYTES, 3 * BUFFER_BYTES))) for _ in range(12)]
    stream = b"".join(map(framed, payloads))
    found: list[bytes] = []
    held: list[memoryview] = []
    frames = FrameBuffer()
    while stream:
        size = rng.choice((1, 3, 4, 5, 1000, BUFFER_BYTES, 5 * BUFFER_BYTES))
        held += frames.feed(stream[:size])
        stream = stream[size:]
    found = [bytes(frame) for frame in held]  # all at the end: what arrives later does not overwrite a frame
    assert found == payloads
    assert frames.unread_bytes == 0
    assert frames.held_bytes == 0


def test_memory_follows_what_has_arrived_and_not_what_was_announced() -> None:
    """10,000 connections that announce 100 MiB each would otherwise take all memory."""
    frames = FrameBuffer()
    assert frames.feed(struct.pack(">i", FRAME_BYTES_MAX) + bytes(100)) == []
    assert frames.held_bytes == BUFFER_BYTES
    frames.feed(bytes(10 * BUFFER_BYTES))
    assert frames.held_bytes <= 2 * 11 * BUFFER_BYTES


def test_a_frame_of_a_usual_size_is_moved_once_and_nothing_is_held_behind_it() -> None:
    frames, stream, held = FrameBuffer(), framed(bytes(1_000_000)), []
    for at in range(0, len(stream), 5000):
        found = frames.feed(stream[at : at + 5000])
        held.append(frames.held_bytes)
    assert list(map(len, found)) == [1_000_000]
    assert list(dict.fromkeys(held)) == [BUFFER_BYTES, len(stream), 0]


@pytest.mark.parametrize("length", [-1, 0, 7, FRAME_BYTES_MAX + 1, 2**31 - 1])
def test_a_length_out_of_bounds_is_refused(length: int) -> None:
    with pytest.raises(CorruptFrame, match="a frame of"):
        FrameBuffer().feed(struct.pack(">i", length))


def test_a_bound_of_a_connection_counts_from_the_next_frame_on() -> None:
    frames = FrameBuffer(bytes_max=64)
    frames.feed(framed(bytes(64)))
    with pytest.raises(CorruptFrame):
        frames.feed(framed(bytes(65)))


def test_a_request_that_carries_no_records_is_bounded_closer() -> None:
    head = struct.pack(">hhih", METADATA.key, 0, 1, -1)
    with pytest.raises(CorruptFrame, match="Metadata request of"):
        read_head(head + bytes(PLAIN_FRAME_BYTES_MAX))
    read_head(struct.pack(">hhih", PRODUCE.key, 3, 1, -1) + bytes(PLAIN_FRAME_BYTES_MAX))


@pytest.mark.parametrize("version", [0, 9, 13])
def test_a_request_is_read_back(version: int) -> None:
    request: Any = METADATA.request(topics=[])  # type: ignore[call-arg]
    frame = request_frame(METADATA, version, 77, "client", written(request, version))
    head, reader = read_head(frame[4:])
    assert (head.api_key, head.version, head.correlation_id, head.client_id) == (METADATA.key, version, 77, "client")
    assert read_whole(METADATA.request, reader, version) == request


def test_a_request_of_an_unknown_version_still_has_a_head() -> None:
    """So that ApiVersions of a newer client gets its answer."""
    head, _ = read_head(struct.pack(">hhih", API_VERSIONS.key, 99, 7, 1) + b"x\x01\x01\x01\x00")
    assert (head.version, head.correlation_id, head.client_id) == (99, 7, "x")


@pytest.mark.parametrize(
    ("api", "version", "tagged"), [(API_VERSIONS, 4, False), (METADATA, 9, True), (METADATA, 8, False)]
)
def test_the_head_of_a_response(api: Any, version: int, tagged: bool) -> None:
    pieces = response_frame(api, version, 5, [b"ab", b"c"])
    assert b"".join(pieces) == framed(struct.pack(">i", 5) + (b"\x00" if tagged else b"") + b"abc")
    correlation_id, reader = read_response(api, version, b"".join(pieces)[4:])
    assert (correlation_id, reader.left) == (5, 3)


def test_a_length_that_was_only_announced_gets_no_memory() -> None:
    """Small frames fill the buffer but for the length of a large one, of which nothing comes."""
    frames = FrameBuffer()
    room = frames.room()
    small = framed(bytes(1020)) * (BUFFER_BYTES // 1024 - 1) + framed(bytes(1016))
    room[:] = small + struct.pack(">i", FRAME_BYTES_MAX)
    assert len(frames.filled(len(room))) == BUFFER_BYTES // 1024
    frames.room()
    assert (frames.unread_bytes, frames.held_bytes) == (4, BUFFER_BYTES)
