"""Hold one block in memory: which of its rows wait, and its body, which may be dropped and read again."""

from __future__ import annotations

from dataclasses import replace

from ledgermq_broker.timed.state.blocks import Block, Key, Source
from ledgermq_broker.timed.state.memory.rows import Index, Rows
from ledgermq_broker.timed.state.sizes import BLOCK_BYTES, Size


class Waiter:
    """A block with rows in memory: [at, stop) of its index. `block_bytes`: of the block as it is stored. `size`: what
    it takes; its stored bytes count there only if it is in the intake, because ranges count theirs themselves.
    """

    __slots__ = (
        "at",
        "block",
        "block_bytes",
        "body_bytes",
        "index",
        "number",
        "principal",
        "size",
        "source",
        "stop",
        "topic_id",
    )

    def __init__(self, number: int, source: Source, index: Index, block: Block) -> None:
        self.number = number
        self.source = source
        self.index = index
        self.at = 0
        self.stop = len(index)
        self.block: Block | None = block
        self.body_bytes = body_bytes(block)
        self.topic_id = block.topic_id
        self.principal = block.principal
        self.block_bytes = block.size_bytes
        self.size = Size(self.block_bytes if source.range_id is None else 0, index.size_bytes + BLOCK_BYTES)

    @property
    def head(self) -> Key:
        return self.index.key(self.at)


def with_bodies(rows: Rows, waiters: list[Waiter]) -> Rows:
    return replace(rows, blocks={waiter.number: waiter.block for waiter in waiters if waiter.block is not None})


def without_bodies(waiters: list[Waiter]) -> tuple[Source, ...]:
    """Return where they are read, in the order in which few reads find them all."""
    missing = (waiter.source for waiter in waiters if waiter.block is None)
    return tuple(sorted(missing, key=lambda source: (source.range_id or (False, 0), source.offset)))


def body_bytes(block: Block) -> int:
    return max(block.size_bytes, int(block.records.get_total_buffer_size()))
