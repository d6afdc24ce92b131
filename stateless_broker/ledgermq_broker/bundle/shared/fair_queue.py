"""A queue whose senders take turns: one that floods delays the others by what is in flight, not by all
that it has queued.

Each entry gets a start, by the size of what its sender has queued before (start-time fair queueing, Goyal,
Vin and Cheng, 1996), and the lowest start is next. So senders that always have something queued get the
same bytes, and one that is seldom here is next at once. Entries of one sender stay in order. An entry
without a sender is the broker's own: it stays behind all that came before it, and ahead of all that comes
after it.

`SharedRoom` bounds what waits in the same spirit: the less is free, the less one sender may hold.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from ledgermq_ledger.log.writing.in_flight import Append

FREE_TIMES = 4
"""A sender may hold at most so many times what is free (dynamic threshold, Choudhury and Hahne, 1998): alone
four fifths of the room, beside a second one four ninths.
"""


@dataclass(eq=False, slots=True)
class Entry:
    """What goes into one segment: a single batch, or batches that were admitted together. `sender`: "" if it
    is the broker's own. `arrived_s`: by the loop's clock.
    """

    appends: Sequence[Append]
    size_bytes: int
    sender: str
    arrived_s: float
    is_taken: bool = False


@dataclass(slots=True)
class _Section:
    """Entries that may pass each other, if they have senders. `heap`: by start, then by arrival."""

    has_senders: bool
    heap: list[tuple[int, int, Entry]] = field(default_factory=list)


class StartTimes:
    """The starts of what waits: each where its sender's last one ends, in bytes, or where the queue is now."""

    def __init__(self) -> None:
        self._ends: dict[str, int] = {}
        self._now = 0
        """Start of the last one that was taken."""

    def of(self, sender: str, size_bytes: int) -> int:
        start = max(self._now, self._ends.get(sender, 0))
        self._ends[sender] = start + size_bytes
        return start

    def taken(self, start: int) -> None:
        self._now = max(self._now, start)

    def clear(self) -> None:
        """Begin again, because nothing waits."""
        self._ends.clear()
        self._now = 0


class FairQueue:
    def __init__(self) -> None:
        self.batches = self.size_bytes = 0
        self._sections: deque[_Section] = deque()
        self._arrivals: deque[Entry] = deque()
        """In order of arrival, with those taken out of their turn until they come to the front."""
        self._starts = StartTimes()
        self._numbers = count()

    def __bool__(self) -> bool:
        return bool(self._sections)

    def __iter__(self) -> Iterator[Entry]:
        """Yield what waits, in order of arrival."""
        return (entry for entry in self._arrivals if not entry.is_taken)

    def push(self, entry: Entry) -> None:
        has_senders = bool(entry.sender)
        if not self._sections or self._sections[-1].has_senders != has_senders:
            self._sections.append(_Section(has_senders))
        start = self._starts.of(entry.sender, entry.size_bytes) if has_senders else 0
        heapq.heappush(self._sections[-1].heap, (start, next(self._numbers), entry))
        self._arrivals.append(entry)
        self.batches += len(entry.appends)
        self.size_bytes += entry.size_bytes

    def first(self) -> Entry:
        return self._sections[0].heap[0][2]

    def pop(self) -> Entry:
        """Take the first entry."""
        section = self._sections[0]
        start, _, entry = heapq.heappop(section.heap)
        self._starts.taken(start)
        if not section.heap:
            self._sections.popleft()
        if not self._sections:
            self._starts.clear()
        entry.is_taken = True
        while self._arrivals and self._arrivals[0].is_taken:
            self._arrivals.popleft()
        self.batches -= len(entry.appends)
        self.size_bytes -= entry.size_bytes
        return entry

    @property
    def oldest_s(self) -> float | None:
        """Return when the entry arrived that waits longest; None: there is none."""
        return self._arrivals[0].arrived_s if self._arrivals else None


class SharedRoom:
    """Counts what is held, by sender. The bound is given with each question, because settings change."""

    def __init__(self) -> None:
        self.taken = 0
        self._held: dict[str, int] = {}

    def has_room(self, amount: int, bound: int, sender: str = "") -> bool:
        """Return whether a sender may take so much more. "": the broker itself, which may fill the room."""
        if self.taken + amount > bound:
            return False
        return not sender or self._held.get(sender, 0) + amount <= FREE_TIMES * (bound - self.taken)

    def take(self, amount: int, sender: str = "") -> None:
        self.taken += amount
        if sender:
            self._held[sender] = self._held.get(sender, 0) + amount

    def give(self, amount: int, sender: str = "") -> None:
        self.taken -= amount
        assert self.taken >= 0
        if sender:
            self._held[sender] -= amount
            assert self._held[sender] >= 0
            if not self._held[sender]:
                del self._held[sender]
