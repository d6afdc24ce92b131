"""What waits for a put of a ledger: batches and moves, each with the future of its offset, and the segments in flight
that hold them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

from ledgermq.errors import ConditionFailed, DuplicateMessage, LedgerMQError
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.segments.segment import Batch
from ledgermq_ledger.object_store.contract import Buffer
from ledgermq_ledger.object_store.wrappers.payers import Payer


@dataclass(frozen=True, slots=True)
class Append:
    """A batch, and the future of its base offset; `done` fails with an error of `ledgermq.errors`. `is_own`: the
    broker's own batch, or one that it accepted before; nothing may stand in its way.
    """

    batch: Batch
    done: asyncio.Future[int]
    is_own: bool = False
    principal: str = ""
    """Who pays for its part of the segment; "": the caller has no name."""


class Waiter(Protocol):
    @property
    def done(self) -> asyncio.Future[int]: ...


@dataclass(frozen=True, slots=True)
class Moved:
    """The future of the offset at which a partition was sealed or opened."""

    done: asyncio.Future[int]


@dataclass(slots=True)
class InFlight:
    """A segment in flight. `answers`: the waiters and their base offsets once it is acknowledged, or
    which records are duplicates of what it holds, or where a partition ends because of it.

    `void`: a put at its slot or below was refused, so it will never count. `settled`: the outcome
    of this segment's put is known.
    """

    index: fmt.SegmentIndex
    data: list[Buffer] = field(default_factory=list)
    keys: list[PartitionId] = field(default_factory=list)
    answers: list[tuple[Waiter, int | DuplicateMessage | ConditionFailed]] = field(default_factory=list)
    shares: dict[Payer, int] = field(default_factory=dict)
    """Bytes of its batches by who pays for them."""
    won: bool = False
    void: bool = False
    settled: bool = False


def failed(error: LedgerMQError) -> asyncio.Future[int]:
    waiter = Moved(asyncio.get_running_loop().create_future())
    fail(waiter, error)
    return waiter.done


def fail(append: Waiter, error: LedgerMQError) -> None:
    if not append.done.done():
        append.done.set_exception(error)
        append.done.exception()  # the waiter gets it; without one, asyncio must not log it


def succeed(append: Waiter, base_offset: int) -> None:
    if not append.done.done():
        append.done.set_result(base_offset)
