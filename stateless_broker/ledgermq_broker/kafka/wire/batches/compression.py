"""Decompress the records of a Kafka batch, with a bound on the result that the caller sets.

    0 none    1 gzip    2 snappy    3 lz4 (frames)    4 zstd

Snappy comes in two forms: one raw block (librdkafka), or the frames of Java's SnappyOutputStream:

    | 0x82 'SNAPPY' 0x00 | version i32 | compatible i32 | { length i32 | raw block } … |     big-endian

Invariant: whatever the bytes are, no more than the bound and one chunk is decompressed, and any fault of
them raises an error of `refusals`. A stream may claim any size, so its claim reserves no memory.
"""

from __future__ import annotations

import struct

import pyarrow as pa

from ledgermq.buffers import KIB, MIB, Buffer
from ledgermq_broker.kafka.wire.batches.refusals import BatchTooLarge, CodecNotSupported, RecordsRefused

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODEC_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
_STREAMS = {GZIP: "gzip", LZ4: "lz4", ZSTD: "zstd"}

_CHUNK_BYTES_MIN = 64 * KIB
_CHUNK_BYTES_MAX = MIB

_JAVA_MAGIC = b"\x82SNAPPY\0"
_JAVA_HEADER_BYTES = 16
_I32 = struct.Struct(">i")
_SNAPPY_RATIO_MAX = 64
"""Snappy writes at most 64 bytes for two or three bytes of input: a block that claims more is damaged."""
_PREAMBLE_BYTES_MAX = 5


def decompress(data: Buffer, codec: int, bytes_max: int) -> Buffer:
    """Return the decompressed bytes; `data` itself if it is not compressed.

    Raises CodecNotSupported, BatchTooLarge (it decodes to more than `bytes_max` bytes), RecordsRefused.
    """
    if codec == NONE:
        found: Buffer = data
    elif codec == SNAPPY:
        found = _snappy(memoryview(data), bytes_max)
    elif codec in _STREAMS:
        found = _stream(data, _STREAMS[codec], bytes_max)
    else:
        raise CodecNotSupported(f"compression type {codec} is unknown; supported are {', '.join(CODEC_NAMES)}")
    if len(found) > bytes_max:
        raise _too_large(bytes_max)
    return found


def _stream(data: Buffer, codec: str, bytes_max: int) -> bytes:
    found: list[bytes] = []
    size = 0
    chunk = min(max(4 * len(data), _CHUNK_BYTES_MIN), _CHUNK_BYTES_MAX)
    try:
        with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), codec) as stream:
            while piece := stream.read(min(chunk, bytes_max + 1 - size)):
                found.append(piece)
                size += len(piece)
                if size > bytes_max:
                    raise _too_large(bytes_max)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise RecordsRefused(f"the records cannot be decompressed as {codec}: {error}") from error
    return found[0] if len(found) == 1 else b"".join(found)


def _snappy(view: memoryview, bytes_max: int) -> bytes:
    if view[: len(_JAVA_MAGIC)] != _JAVA_MAGIC:
        return _block(view, bytes_max)
    found: list[bytes] = []
    at, left = _JAVA_HEADER_BYTES, bytes_max
    if len(view) < at:
        raise RecordsRefused("the records cannot be decompressed as snappy: the header of the frame is cut off")
    while at < len(view):
        if at + _I32.size > len(view):
            raise RecordsRefused("the records cannot be decompressed as snappy: the length of a block is cut off")
        [length] = _I32.unpack_from(view, at)
        at += _I32.size
        if not 0 < length <= len(view) - at:
            raise RecordsRefused(f"the records cannot be decompressed as snappy: a block claims {length} bytes")
        found.append(_block(view[at : at + length], left, bytes_max))
        left -= len(found[-1])
        at += length
    return b"".join(found)


def _block(view: memoryview, left: int, bytes_max: int | None = None) -> bytes:
    """Decompress a raw block to at most `left` bytes. `bytes_max`: of all blocks, for the error."""
    size = _claimed(view)
    if size > left:
        raise _too_large(left if bytes_max is None else bytes_max)
    if size > _SNAPPY_RATIO_MAX * len(view):
        raise RecordsRefused(f"the records cannot be decompressed as snappy: {len(view)} bytes claim to hold {size}")
    if not size:
        if len(view) > 1:
            raise RecordsRefused("the records cannot be decompressed as snappy: bytes are left after an empty block")
        return b""
    try:
        return bytes(pa.decompress(pa.py_buffer(view), decompressed_size=size, codec="snappy", asbytes=True))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise RecordsRefused(f"the records cannot be decompressed as snappy: {error}") from error


def _claimed(view: memoryview) -> int:
    """Return the decompressed size that a raw block begins with, a varint of seven bits a byte."""
    size = 0
    for place, byte in enumerate(view[:_PREAMBLE_BYTES_MAX]):
        size |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return size
    raise RecordsRefused("the records cannot be decompressed as snappy: the block does not begin with its size")


def _too_large(bytes_max: int) -> BatchTooLarge:
    return BatchTooLarge(
        f"the records of the batch decompress to more than {bytes_max} bytes; send smaller batches (batch.size,"
        " linger.ms, message.max.bytes of the producer)"
    )
