"""Rows of one call in a batch, and what a broker says of single rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ledgermq.client.producing.delivery import BatchResult, Outcome


class Stores(Protocol):
    """The batch."""

    outcome: Outcome

    def run_result(self, first: int, count: int) -> BatchResult: ...


@dataclass(frozen=True, slots=True)
class DuplicateOf:
    """The original of a duplicate: its offset, or an earlier row of the same batch."""

    offset: int | None
    row: int | None = None


class Run:
    """Rows of `send_batch` in a batch, where rows of other calls may stand beside them."""

    __slots__ = ("_batch", "_count", "_first")

    def __init__(self, batch: Stores, first: int, count: int) -> None:
        self._batch, self._first, self._count = batch, first, count

    @property
    def outcome(self) -> Outcome:
        return self._batch.outcome

    def batch_result(self) -> BatchResult:
        return self._batch.run_result(self._first, self._count)
