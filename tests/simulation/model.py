"""A partition as its clients may see it: an append-only log, linearizable. Independent of the
product's code.

The final log fixes the order of all appends. A history is linearizable against it when each
operation has a point between its invocation and its response that fits that order, and for a log
this comes down to comparing intervals:

    an append that ended before another began has the lower offset
    an end that is told is not below an append, a read or another told end that was over before it was asked for
    an end that is told is not above an append that began after it was told, acknowledged or not
    nothing is read before its append began

`PartitionModel` is fed a history in order and collects what does not fit.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.judges.violation import Violation
from tests.simulation.history import AskEnd, FinalLog, Outcome, Partition, Poll, Produce, Produced, ToldEnd


@dataclass(slots=True)
class PartitionModel:
    partition: Partition
    log: FinalLog
    violations: list[Violation] = field(default_factory=list)
    acknowledged: dict[int, str] = field(default_factory=dict)
    sends: dict[int, Produce] = field(default_factory=dict)
    sender: dict[str, Produce] = field(default_factory=dict)
    outcomes: dict[int, Produced] = field(default_factory=dict)
    log_start: int = 0
    sent_at_least: dict[int, int] = field(default_factory=dict)
    """By send: the end that was known before it began, so nothing of it may be stored below."""
    _seen: dict[int, str] = field(default_factory=dict)
    _end_at_least: int = 0
    _asks: dict[int, int] = field(default_factory=dict)
    _told_end: int = 0
    _positions: dict[str, int] = field(default_factory=dict)

    def report(self, kind: str, text: str) -> None:
        self.violations.append(Violation(kind, f"{self.partition[0]}-{self.partition[1]}: {text}"))

    def produce(self, event: Produce) -> None:
        self.sends[event.op] = event
        self.sent_at_least[event.op] = max(self._end_at_least, self._told_end)
        for value in event.values:
            self.sender[value] = event

    def produced(self, event: Produced) -> None:
        self.outcomes[event.op] = event
        if event.outcome is not Outcome.OK:
            return
        send = self.sends[event.op]
        if event.base_offset < 0:
            return  # acknowledged on receipt: no offset was told, nothing was promised
        for i, value in enumerate(send.values):
            self._see(event.base_offset + i, value, f"acknowledged to {send.client}")
            self.acknowledged[event.base_offset + i] = value
        least = self.sent_at_least[event.op]
        if event.base_offset < least:
            self.report(
                "stale append", f"{send.values} got offset {event.base_offset}; {least} was the end before it was sent"
            )
        self._end_at_least = max(self._end_at_least, event.base_offset + len(send.values))

    def assign(self, reader: str, offset: int) -> None:
        self._positions[reader] = offset

    def poll(self, event: Poll) -> None:
        for offset, value in event.records:
            at = self._positions.get(
                event.reader, min(offset, self.log_start)
            )  # first poll of who began at the earliest
            if offset < at:
                self.report("non-monotonic poll", f"{event.reader} stood at {at} and got {offset}")
            elif offset > at and offset > max(at, self.log_start):
                self.report(
                    "poll skip", f"{event.reader} stood at {at} and got {offset}; the log starts at {self.log_start}"
                )
            self._positions[event.reader] = offset + 1
            if value not in self.sender:
                self.report("phantom", f"{event.reader} read {value!r} at {offset}, which no producer had sent by then")
            self._see(offset, value, f"read by {event.reader}")
            self._end_at_least = max(self._end_at_least, offset + 1)

    def ask_end(self, event: AskEnd) -> None:
        self._asks[event.op] = max(self._end_at_least, self._told_end)

    def told_end(self, event: ToldEnd) -> None:
        least = self._asks.pop(event.op)
        if event.offset < least:
            self.report("stale end", f"told {event.offset}, though {least} was known before it was asked for")
        if event.offset > self.log.end:
            self.report("end above the log", f"told {event.offset}, the log never got beyond {self.log.end}")
        self._told_end = max(self._told_end, event.offset)

    @property
    def known_end(self) -> int:
        """Everything below it was acknowledged, read, or told; a send of unknown fate may land
        behind it at any time.
        """
        return max(self._end_at_least, self._told_end)

    def position(self, reader: str) -> int:
        return self._positions.get(reader, 0)

    def _see(self, offset: int, value: str, how: str) -> None:
        known = self._seen.setdefault(offset, value)
        if known != value:
            self.report("inconsistent offsets", f"{offset} is {value!r}, {how}; before it was {known!r}")
        stored = self.log.records.get(offset)
        if stored is None and offset < self.log.judged_from:
            return
        if stored is None:
            self.report("lost write", f"{value!r} at {offset}, {how}, is nowhere")
        elif stored != value:
            self.report("lost write", f"{value!r} at {offset}, {how}; {stored!r} is stored there")
