"""Bugs in appends with a condition (design P12)."""

from __future__ import annotations

from typing import Any

import pytest

from ledgermq.errors import ConditionFailed
from ledgermq_ledger.log.writing.in_flight import Append, fail
from ledgermq_ledger.log.writing.writer import LedgerWriter
from tests.simulation.mutants import mutant

LOADED = True
Patch = pytest.MonkeyPatch


def _failure(writer: LedgerWriter, append: Append) -> ConditionFailed | None:
    end = writer._issued.end(*append.batch.key)
    if append.batch.expect_end in (None, end):
        return None
    error = ConditionFailed(f"it ends at {end}")
    error.end = end
    return error


@mutant("ledger")
def condition_passed_over(patch: Patch) -> None:
    """A batch is appended wherever its partition ends."""
    patch.setattr(LedgerWriter, "_is_at_end", lambda self, append, building: True)


@mutant("ledger")
def condition_judged_by_a_stale_owner(patch: Patch) -> None:
    """A failure is told at once, by an owner that may have been fenced, about records that may never be durable."""

    def is_at_end(self: LedgerWriter, append: Append, building: Any) -> bool:
        error = _failure(self, append)
        if error is not None:
            fail(append, error)
        return error is None

    patch.setattr(LedgerWriter, "_is_at_end", is_at_end)


@mutant("ledger")
def condition_failure_before_it_is_durable(patch: Patch) -> None:
    """The owner looks whether it is fenced, and does not wait for the records that it tells of."""

    def is_at_end(self: LedgerWriter, append: Append, building: Any) -> bool:
        error = _failure(self, append)
        if error is not None:
            self._refuse(append, error)
        return error is None

    patch.setattr(LedgerWriter, "_is_at_end", is_at_end)


@mutant("ledger")
def condition_before_repetition(patch: Patch) -> None:
    """A repetition of a stored batch is refused, because its partition has gone on: by that very batch."""
    real = LedgerWriter._is_new

    def is_new(self: LedgerWriter, append: Append, building: Any) -> bool:
        if append.batch.expect_end is not None and not self._is_at_end(append, building):
            return False
        return real(self, append, building)

    patch.setattr(LedgerWriter, "_is_new", is_new)
