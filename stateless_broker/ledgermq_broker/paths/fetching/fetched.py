"""Hold where a reader is in a partition, and what a fetch found there; cut that into frames."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ledgermq.buffers import Buffer
from ledgermq.errors import CorruptFrame
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_ledger.topics.topic import Topic
from ledgermq_ledger.view.partition_index import NOTHING_LEFT_OUT, LeftOut

FRAME_BYTES = 1024 * 1024
"""Frames of a stream have about this size; a single batch may exceed it. A frame is copied twice on its way to
gRPC, and no other thread of the process can run meanwhile, so that a large frame would delay the puts of
producers, each several times.
"""


@dataclass(slots=True)
class Cursor:
    """Where a reader is in one partition.

    `shown`: the high watermark that the reader received last. `masks`: of the tags that it wants; None: it wants
    all records. `function`: the filter function that says which it wants; empty: none.
    """

    name: str
    partition: int
    topic_id: int
    offset: int
    topic: Topic | None = None
    bundle: int | None = None
    masks: tuple[int, ...] | None = None
    function: str = ""
    high_watermark: int = 0
    shown: int = -1


@dataclass(slots=True)
class Found:
    """`urls`: of the batches that are not in `data`; one for each of the header's batches."""

    header: pb.FetchedPartition
    data: list[Buffer] = field(default_factory=list)
    left_out: LeftOut = NOTHING_LEFT_OUT
    urls: list[str] = field(default_factory=list)

    @property
    def payload_bytes(self) -> int:
        return sum(len(piece) for piece in self.data)

    @property
    def answer_bytes(self) -> int:
        return self.payload_bytes + self.header.ByteSize()

    @property
    def size_bytes(self) -> int:
        """Return the bytes of the answer, including those that the caller reads itself."""
        return sum(batch.length for batch in self.header.batches)


def is_news(part: Found, cursor: Cursor) -> bool:
    header = part.header
    return (
        bool(header.batches or header.next_offset) or header.HasField("error") or header.high_watermark > cursor.shown
    )


def news_first(cursors: Sequence[Cursor], is_still: Callable[[Cursor], bool]) -> tuple[list[Cursor], int]:
    """Return the cursors, those with news first, and how many these are. Both parts keep their order."""
    news: list[Cursor] = []
    still: list[Cursor] = []
    for cursor in cursors:
        (still if is_still(cursor) else news).append(cursor)
    return news + still, len(news)


def advance(cursor: Cursor, part: Found) -> None:
    cursor.shown = max(cursor.shown, part.header.high_watermark)
    if part.header.batches:
        last = part.header.batches[-1]
        if last.base_offset + last.record_count <= cursor.offset:
            raise CorruptFrame(f"{cursor.name}/{cursor.partition}: batches below offset {cursor.offset} were read")
        cursor.offset = last.base_offset + last.record_count
    cursor.offset = max(cursor.offset, part.header.next_offset)


def pieces(found: Sequence[Found]) -> Iterator[list[Found]]:
    """Yield what was found in pieces of about `FRAME_BYTES`, of whole batches, in order."""
    piece: list[Found] = []
    size_bytes = 0
    for part in (part for whole in found for part in _parts(whole)):
        if piece and size_bytes + part.payload_bytes > FRAME_BYTES:
            yield piece
            piece, size_bytes = [], 0
        piece.append(part)
        size_bytes += part.payload_bytes
    if piece:
        yield piece


def _parts(found: Found) -> Iterator[Found]:
    """Yield what was found in a partition in parts of about `FRAME_BYTES`."""
    if found.payload_bytes <= FRAME_BYTES or len(found.data) == 1:
        yield found
        return
    batches, data = list(found.header.batches), found.data
    first = 0
    while first < len(data):
        end, size_bytes = first + 1, len(data[first])
        while end < len(data) and size_bytes + len(data[end]) <= FRAME_BYTES:
            size_bytes += len(data[end])
            end += 1
        header = pb.FetchedPartition()
        header.CopyFrom(found.header)
        del header.batches[:]
        header.batches.extend(batches[first:end])
        is_last = end == len(data)
        if not is_last:
            header.next_offset = header.failed = 0
        yield Found(header, data[first:end], found.left_out if is_last else NOTHING_LEFT_OUT)
        first = end
