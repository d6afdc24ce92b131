"""Progress of `ledgermq produce`: how many records are stored, and up to which line of the input.

Invariant: every record up to line `line` is stored. If one record failed, records of later lines
may be stored, too.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import ledgermq
from ledgermq.errors import InvalidRecord, LedgerMQError, MessageTooLarge, OutcomeUnknown

DELAYED_MAX = 100


@dataclass(slots=True)
class StoredRun:
    """Ranges of stored offsets in one partition."""

    records: int = 0
    first_offset: int | None = None
    last_offset: int | None = None


class Sent:
    """Deliveries in the order of their lines. Only unsettled ones are kept; the producer's buffer
    bounds their number.

    `skipped`: number of lines that the run skipped. `verb`: what the cluster did with a record that
    counts as sent.
    """

    def __init__(self, name: str = "stdin", skipped: int = 0, verb: str = "stored") -> None:
        self.partitions: dict[int, StoredRun] = {}
        self.delayed: list[ledgermq.SendResult] = []
        """Results of the first DELAYED_MAX delayed records."""
        self.records = 0
        self.duplicates = 0
        """Records of these that were not stored again, because of their ids."""
        self.line = skipped
        self._name = name
        self._skipped = skipped
        self._verb = verb
        self._waiting: deque[tuple[ledgermq.Delivery, int]] = deque()

    def add(self, delivery: ledgermq.Delivery, line: int) -> None:
        self._waiting.append((delivery, line))

    def take_in(self) -> None:
        """Count stored records, up to the first one that is unsettled or failed."""
        while self._waiting and (first := self._waiting[0][0]).done() and first.exception() is None:
            delivery, self.line = self._waiting.popleft()
            self._count(delivery.result())

    def _count(self, result: ledgermq.SendResult) -> None:
        self.records += 1
        if result.duplicate:
            self.duplicates += 1
            return
        run = self.partitions.setdefault(result.partition, StoredRun())
        run.records += 1
        if result.handle is not None and len(self.delayed) < DELAYED_MAX:
            self.delayed.append(result)
        if result.offset is not None and result.offset >= 0:
            run.first_offset = result.offset if run.first_offset is None else min(run.first_offset, result.offset)
            run.last_offset = max(run.last_offset or 0, result.offset)

    def raise_failure(self) -> None:
        """Raise the error of the first record that failed, once everything before it is settled."""
        self.take_in()
        if self._waiting and self._waiting[0][0].done():
            delivery, line = self._waiting[0]
            error = delivery.exception()
            assert error is not None, "every stored record has been counted"
            raise at_line(error, self._name, line)

    def awaited(self) -> object:
        """Return a value that changes with each stored record; None while no answer is awaited."""
        self.take_in()
        is_waiting = bool(self._waiting) and not self._waiting[0][0].done()
        return self.records if is_waiting else None

    def unknown(self) -> int:
        """Return the number of records that may or may not be stored."""
        return sum(
            delivery.done() and isinstance(delivery.exception(), OutcomeUnknown) for delivery, _ in self._waiting
        )

    def summary(self, ended_by: str) -> str:
        """Return a sentence or two for a run that was interrupted: what is stored, and how to
        resume.
        """
        self.take_in()
        later = sum(delivery.done() and delivery.exception() is None for delivery, _ in self._waiting)
        text = f"{_records(self.records + later)} {self._verb} before the {ended_by}"
        if self.records:
            text += f": lines {self._skipped + 1:,} to {self.line:,} of {self._name}"
        text += f", and {later:,} of later lines, which would be sent again" if later else ""
        text += f". --skip {self.line} resumes after them." if self.records or self._skipped else "."
        if unknown := self.unknown():
            text += f" {unknown:,} more records of later lines may or may not be {self._verb}."
        return text


def at_line(error: LedgerMQError, name: str, line: int) -> LedgerMQError:
    """Return the error; an error about a record gets the record's line."""
    if isinstance(error, MessageTooLarge | InvalidRecord):
        return type(error)(f"{name}, line {line}: {error.message}")
    return error


def _records(count: int) -> str:
    return {0: "no record was", 1: "1 record was"}.get(count, f"{count:,} records were")
