"""What a broker asks of filter functions, and what it counts: apart from the processes that run them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ledgermq.errors import UnknownFunction
from ledgermq.filters.functions import GROUP
from ledgermq_ledger.log.segments.stored_batch import StoredBatch

OUTCOMES = ("kept", "left_out", "raised", "overtime")
"""What becomes of a message: a function keeps it, leaves it out, raises, or takes too long. The last two leave the
message out, too.
"""


class BatchPlace(NamedTuple):
    """Names a batch, for verdicts that are kept."""

    topic_id: int
    partition: int
    base_offset: int
    crc: int


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a function says of a batch. `passes`: a bit for each record, the lowest of a byte first. `failed`:
    records that are left out because the function failed on them.
    """

    passes: bytes
    kept: int
    failed: int

    @classmethod
    def of(cls, outcomes: Sequence[str]) -> Judgement:
        """Judge by one of OUTCOMES for each record."""
        passes = bytearray(-(-len(outcomes) // 8))
        for row, outcome in enumerate(outcomes):
            passes[row >> 3] |= (outcome == "kept") << (row & 7)
        return cls(bytes(passes), outcomes.count("kept"), outcomes.count("raised") + outcomes.count("overtime"))


class FilterFunctionCounts:
    """What is counted of filter functions; every method may be overridden."""

    def judged(self, function: str, outcome: str, records: int) -> None:
        """`outcome`: one of OUTCOMES."""

    def stopped(self, function: str) -> None:
        """The process of a function has ended, or was ended because it did not answer in time."""


class FilterFunctions(Protocol):
    """The filter functions of a broker."""

    async def judge(self, function: str, place: BatchPlace, batch: StoredBatch) -> Judgement:
        """Return what a function says of a batch. Raises UnknownFunction; Unavailable if it cannot be run, or is not
        done yet: the same call goes on where this one has stopped.
        """
        ...

    async def close(self) -> None: ...


class NoFilterFunctions:
    """Those of a broker that has none."""

    async def judge(self, function: str, place: BatchPlace, batch: StoredBatch) -> Judgement:
        raise unknown(function, ())

    async def close(self) -> None:
        pass


def unknown(function: str, names: Collection[str]) -> UnknownFunction:
    """Return the error for a function that is not installed."""
    there = f"it has {', '.join(sorted(names))}" if names else "it has none"
    return UnknownFunction(
        f"the broker has no filter function {function!r}, {there}: its operator installs functions as entry points of"
        f" the group {GROUP}"
    )
