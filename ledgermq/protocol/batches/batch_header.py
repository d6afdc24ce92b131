"""Check the header of one Arrow IPC record batch message without decoding a value.

The broker checks that the batch's checksum fits, how many rows it claims, that every buffer lies
inside the message, that the buffers are large enough for the rows (so a tiny message cannot claim a
billion offsets), and that decompression stays below a cap. It reads only the metadata (a flatbuffer
of Arrow's Message.fbs and the eight length bytes of compressed buffers).

    | 0xFFFFFFFF | metadata length i32 | metadata (flatbuffer Message > RecordBatch) | body: the buffers |

Every part begins on a multiple of 8 bytes, so that concatenated batches are an Arrow stream. Two
inputs are refused: Arrow's format before 0.15 (no marker), and custom metadata in version 4, which
may name a codec that readers apply and this header does not show.

Invariant: any input gives a BatchInfo or CorruptFrame / MessageTooLarge, in time linear in the
number of buffers.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from operator import lt
from typing import Literal

from crc32c import crc32c

from ledgermq.buffers import Buffer
from ledgermq.errors import CorruptFrame, MessageTooLarge

DICTIONARY_BATCH, RECORD_BATCH = 2, 3
ALIGNMENT = 8
_V4, _V5 = 3, 4
Codec = Literal["none", "lz4", "zstd"]
CODECS: dict[int, Codec] = {0: "lz4", 1: "zstd"}
_PREFIX = struct.Struct("<II")
_PAIR = struct.Struct("<qq")
_I64 = struct.Struct("<q")
_I32 = struct.Struct("<i")
_U32 = struct.Struct("<I")
_U16 = struct.Struct("<H")
_U8 = struct.Struct("<B")
_PAIRS_MAX = 64
HEADERS_REMEMBERED = 2048
METADATA_REMEMBERED_MAX = 1024
REMEMBERED_BYTES_MAX = 16 * 1024
"""Headers of larger batches are not remembered: no two are alike, and reading one costs little beside its records."""

# The columns of schema version 1 in Arrow's order: (node that counts the rows, contents of the
# buffers). V validity bitmap, O offsets of 4 bytes, D data of any length, 4 and 8: values of that many
# bytes.
_LAYOUT = (
    (0, "VOD"),  # key
    (1, "VOD"),  # value
    (2, "VO"),  # headers
    (3, "V"),  # headers.item
    (4, "VOD"),  # headers.item.key
    (5, "VOD"),  # headers.item.value
    (6, "V8"),  # timestamp
    (7, "V4"),  # timestampType
    (8, "VOD"),  # tag
)
_WIDTHS = {"D": 0, "4": 4, "8": 8}
_NODES_OF_ROWS = (0, 1, 2, 6, 7, 8)
_BUFFERS = sum(len(kinds) for _, kinds in _LAYOUT)


@dataclass(frozen=True, slots=True)
class BatchInfo:
    """Facts of a checked batch. `decoded_bytes`: size of the buffers once decompressed.

    `codec`: "none", "lz4" or "zstd".
    """

    record_count: int
    decoded_bytes: int
    codec: Codec


@dataclass(frozen=True, slots=True)
class _Header:
    """What the metadata of a message says. `buffers`: as in `BatchLayout`. `needed`: the smallest decoded length of
    each. `decoded_bytes`: of all buffers, if they are not compressed.
    """

    rows: int
    buffers: list[tuple[int, int]]
    needed: list[int]
    decoded_bytes: int
    codec: Codec


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """The parts of a valid message. `nodes`: (values, nulls) of each column; `buffers`: (position in the body,
    length) of each buffer, where an empty one may have any position.
    """

    body_start: int
    rows: int
    nodes: list[tuple[int, int]]
    buffers: list[tuple[int, int]]
    codec: Codec


@dataclass(frozen=True, slots=True)
class HeaderPlaces:
    """Positions in a message of the numbers in its header; `nodes` and `buffers`: of the first pair."""

    body_length: int
    rows: int
    nodes: int
    buffers: int


def check_crc(data: Buffer, crc: int) -> None:
    """Check the checksum of a batch. Raises CorruptFrame."""
    if (found := crc32c(data)) != crc:
        raise CorruptFrame(f"the checksum of the batch is {found:#010x}, not {crc:#010x}")


def walk_batch(data: Buffer, *, decoded_bytes_max: int) -> BatchInfo:
    """Check the header of `data`, which is exactly one message.

    Raises CorruptFrame, MessageTooLarge (decoded size over the cap).
    """
    view = memoryview(data)
    try:
        return _walk(view, decoded_bytes_max)
    except (struct.error, IndexError) as error:
        raise CorruptFrame(f"the header of the record batch points outside of it ({error})") from error


def read_layout(data: Buffer) -> BatchLayout:
    """Return the parts of a message that `walk_batch` has accepted."""
    body_start, _, batch = _tables(memoryview(data))
    return BatchLayout(body_start, batch.i64(0), batch.pairs(1), batch.pairs(2), _codec(batch))


def header_places(data: Buffer) -> HeaderPlaces:
    """Return where the numbers are in a message that `walk_batch` has accepted."""
    _, message, batch = _tables(memoryview(data))
    places = message.place(3), batch.place(0), batch.first_of(1), batch.first_of(2)
    return HeaderPlaces(*(_PREFIX.size + place for place in places))


def check_uncompressed(metadata: Buffer) -> None:
    """Check by its metadata that a message of an Arrow stream, of any schema, is not compressed. Raises
    CorruptFrame.
    """
    try:
        message = _Table.root(memoryview(metadata))
        kind = message.u8(1)
        _require(message.u8(0) == _V5, "the stream has an old version of Arrow's format: write version 5")
        if kind not in (DICTIONARY_BATCH, RECORD_BATCH):
            return
        batch = message.table(2) if kind == RECORD_BATCH else message.table(2).table(1)
        _require(not batch.has(3), "its buffers are compressed: send them without compression")
    except (struct.error, IndexError) as error:
        raise CorruptFrame(f"the metadata of an Arrow message points outside of it ({error})") from error


def _tables(view: memoryview) -> tuple[int, _Table, _Table]:
    body_start = _PREFIX.size + _PREFIX.unpack_from(view)[1]
    message = _Table.root(view[_PREFIX.size : body_start])
    return body_start, message, message.table(2)


def _walk(view: memoryview, decoded_bytes_max: int) -> BatchInfo:
    marker, metadata_length = _PREFIX.unpack_from(view)
    body_start = _PREFIX.size + metadata_length
    _require(marker == 0xFFFFFFFF and body_start <= len(view), "not an Arrow IPC message")
    if body_start % ALIGNMENT or len(view) % ALIGNMENT:
        raise _refused(f"the parts of the message do not end on multiples of {ALIGNMENT} bytes")
    is_small = metadata_length <= METADATA_REMEMBERED_MAX and len(view) <= REMEMBERED_BYTES_MAX
    read = _remembered if is_small else _read_header
    header = read(bytes(view[_PREFIX.size : body_start]), len(view) - body_start)
    decoded = header.decoded_bytes
    if header.codec != "none":
        body = view[body_start:]
        lengths = [_decoded_length(body[at : at + length]) if length else 0 for at, length in header.buffers]
        decoded = sum(lengths)
        _check_lengths(lengths, header.needed)
    if decoded > decoded_bytes_max:
        raise MessageTooLarge(
            f"a record batch that decodes to {decoded} bytes; at most {decoded_bytes_max} are allowed"
        )
    return BatchInfo(header.rows, decoded, header.codec)


def _read_header(metadata: bytes, body_bytes: int) -> _Header:
    """Check all that the metadata says by itself. Raises CorruptFrame, struct.error, IndexError."""
    message = _Table.root(memoryview(metadata))
    version = message.u8(0)
    _require(
        version == _V5 or (version == _V4 and not message.has(4)),
        f"metadata version {version + 1}, or custom metadata in version 4",
    )
    _require(message.u8(1) == RECORD_BATCH, f"the message has type {message.u8(1)}, which is not a record batch")
    _require(message.i64(3) == body_bytes, f"its body has {body_bytes} bytes, the header says {message.i64(3)}")
    batch = message.table(2)
    rows = batch.i64(0)
    _require(rows > 0, f"it has {rows} rows")
    nodes, buffers = batch.pairs(1), batch.pairs(2)
    _require(len(nodes) == len(_LAYOUT) and len(buffers) == _BUFFERS, "its columns are not those of record schema 1")
    codec = _codec(batch)
    _check_places(buffers, body_bytes)
    needed = _needed_lengths(rows, nodes)
    lengths = [length for _, length in buffers]
    if codec == "none":
        _check_lengths(lengths, needed)
    return _Header(rows, buffers, needed, sum(lengths), codec)


_remembered = lru_cache(HEADERS_REMEMBERED)(_read_header)
"""Small batches often have the same header: the same number of records of the same sizes."""


def _codec(batch: _Table) -> Codec:
    if not batch.has(3):
        return "none"
    compression = batch.table(3)
    codec, method = compression.u8(0), compression.u8(1)
    _require(codec in CODECS and method == 0, f"unknown compression {codec}/{method}")
    return CODECS[codec]


def _check_places(buffers: list[tuple[int, int]], body_bytes: int) -> None:
    """Check that the buffers lie one after the other in the body."""
    end = 0
    for offset, length in buffers:
        if not length:  # some writers give an arbitrary position to a buffer without bytes
            if not 0 <= offset <= body_bytes:
                raise _refused("an empty buffer lies outside of the message")
            continue
        if offset < end or length < 0 or offset + length > body_bytes:
            raise _refused("a buffer lies outside of the message or in another")
        if offset % ALIGNMENT:
            raise _refused(f"a buffer does not begin on a multiple of {ALIGNMENT} bytes")
        end = offset + length


def _decoded_length(buffer: memoryview) -> int:
    """Return the decoded size of a buffer. Compressed buffers begin with it; −1: this one was not
    compressed.
    """
    (length,) = _I64.unpack_from(buffer)
    _require(length >= -1, f"a buffer claims to decode to {length} bytes")
    return int(length) if length >= 0 else len(buffer) - _I64.size


def _needed_lengths(rows: int, nodes: list[tuple[int, int]]) -> list[int]:
    """Check that every column has the same number of rows. Return the bytes that each buffer needs for them."""
    _require(all(nodes[i][0] == rows for i in _NODES_OF_ROWS), "its columns differ in length")
    _require(nodes[3][0] == nodes[4][0] == nodes[5][0], "the parts of its headers differ in length")
    needed = []
    for node, kinds in _LAYOUT:
        count, nulls = nodes[node]
        if not 0 <= nulls <= count:
            raise _refused(f"{nulls} nulls among {count} values")
        for kind in kinds:
            if kind == "V":
                needed.append((count + 7) // 8 if nulls else 0)
            elif kind == "O":
                needed.append(4 * (count + 1) if count else 0)
            else:
                needed.append(_WIDTHS[kind] * count)
    return needed


def _check_lengths(lengths: list[int], needed: list[int]) -> None:
    if any(map(lt, lengths, needed)):
        at = next(at for at, length in enumerate(lengths) if length < needed[at])
        raise _refused(f"a buffer of {lengths[at]} bytes is too short: its values need {needed[at]}")


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise _refused(what)


def _refused(what: str) -> CorruptFrame:
    """Return the error for an invalid batch. Checks that run for each buffer raise it directly,
    because making a text for each would cost more than the check.
    """
    return CorruptFrame(f"not a record batch of LedgerMQ: {what}")


class _Table:
    """A flatbuffer table. Reads outside of the buffer raise struct.error or IndexError, and never
    access other memory.
    """

    def __init__(self, view: memoryview, at: int) -> None:
        if at < 0:
            raise IndexError(at)
        self._view = view
        self._at = at
        self._fields = at - self._unpack(_I32, at)
        self._fields_end = self._fields + self._unpack(_U16, self._fields)

    @classmethod
    def root(cls, view: memoryview) -> _Table:
        return cls(view, _U32.unpack_from(view)[0])

    def _unpack(self, form: struct.Struct, at: int) -> int:
        if at < 0:
            raise IndexError(at)
        (value,) = form.unpack_from(self._view, at)
        return value  # type: ignore[no-any-return]

    def place(self, number: int) -> int:
        """Return the position of a field's value; 0: it is absent, so its default applies."""
        entry = self._fields + 4 + 2 * number
        offset = self._unpack(_U16, entry) if entry + 2 <= self._fields_end else 0
        return self._at + offset if offset else 0

    def has(self, number: int) -> bool:
        return bool(self.place(number))

    def u8(self, number: int) -> int:
        at = self.place(number)
        return self._unpack(_U8, at) if at else 0

    def i64(self, number: int) -> int:
        at = self.place(number)
        return self._unpack(_I64, at) if at else 0

    def table(self, number: int) -> _Table:
        at = self.place(number)
        if not at:
            raise IndexError(f"field {number} is absent")
        return _Table(self._view, at + self._unpack(_U32, at))

    def pairs(self, number: int) -> list[tuple[int, int]]:
        """Return a vector of structs of two 64-bit integers: at most `_PAIRS_MAX` of them, which
        is more than any LedgerMQ batch has.
        """
        at = self.place(number)
        if not at:
            return []
        start = at + self._unpack(_U32, at)
        count = self._unpack(_U32, start)
        if count > _PAIRS_MAX:
            raise IndexError(f"{count} entries")
        vector = self._view[start + 4 : start + 4 + count * _PAIR.size]
        if len(vector) != count * _PAIR.size:
            raise IndexError(f"{count} entries in {len(vector)} bytes")
        return list(_PAIR.iter_unpack(vector))

    def first_of(self, number: int) -> int:
        """Return the position of the first entry of a vector that is there."""
        at = self.place(number)
        return at + self._unpack(_U32, at) + 4
