"""The messages of one partition for one queue group: finished, leased, waiting, or open.

    offsets        0 … start … end … end of the partition
    below start    finished, or deleted
    start to end   each open, waiting for a time, leased to a member, or finished
    from end on    open, never delivered

A message is *finished* when a member accepted or rejected it, or when it is gone from the log. `start`
passes finished messages; `end` is at most `window_max` above it. Leases and waits are in memory only.
Fates and numbers of deliveries are stored by chunks of 256 offsets (`entries`). Which lease has finished a message,
or given it back, is in memory, of the last ones.

Invariants: a message has at most one lease, and is leased only while it is open. `start` grows, except by
`reset`. Times are those of one monotonic clock, in seconds. The rules are in docs/design.md, chapter 18.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import count, groupby

from ledgermq_broker.queues.state.limits import CHUNK, DELIVERIES_COUNTED_MAX, ENDED_RUNS_KEPT_MAX
from ledgermq_broker.queues.state.records import ChunkEntry, Entry, Fate, ShareKey, StartEntry
from ledgermq_broker.queues.state.spans import Grant, Known, Span, gaps, grants, spans
from ledgermq_ledger.log.partitions.shares import NO_PRINCIPAL

_FATE = 3
_ONE_DELIVERY = 4


class Word(Enum):
    """What a member says about messages that are leased to it."""

    ACCEPT = "accept"
    REJECT = "reject"
    RELEASE = "release"
    """It is leased again, to any member, now or at a time."""
    RETURN = "return"
    """As RELEASE, and the delivery does not count: the program did not get the message."""
    RENEW = "renew"
    """The lease lasts until a later time."""


FINAL = {Word.ACCEPT: Fate.ACCEPTED, Word.REJECT: Fate.REJECTED}
_ENDS = {Word.ACCEPT: Word.ACCEPT, Word.REJECT: Word.ACCEPT, Word.RELEASE: Word.RELEASE, Word.RETURN: Word.RETURN}
"""Words that end a lease. Those with one value repeat each other."""


@dataclass(eq=False, slots=True)
class Lease:
    number: int
    member: str
    until_s: float


@dataclass(frozen=True, slots=True)
class ShareCounts:
    """Numbers of messages between `start` and `end`, by what they wait for."""

    start: int
    end: int
    leased: int
    waiting: int
    """Released, and to be leased at a later time."""
    finished: int
    """Finished behind one that is not."""
    members: int
    """Members with a lease."""


class SharePartition:
    """Load it with `load_start` and `load_chunk`, then `loaded`; or `reset` a new one. `principal`: that began it."""

    def __init__(self, key: ShareKey, window_max: int, principal: int = NO_PRINCIPAL) -> None:
        self.key, self.principal = key, principal
        self.start = self.end = 0
        self.resets: tuple[bytes, ...] = ()
        self.begun = b""
        self._window_max = window_max
        self._chunks: dict[int, bytearray] = {}
        self._leases: dict[int, Lease] = {}
        self._waiting: dict[int, float] = {}
        self._ready: list[int] = []
        """Heap of offsets below `end` that may be open; it may have others, too."""
        self._timers: list[tuple[float, int, Sequence[int], Lease | None]] = []
        """Heap of (time, …, offsets, their lease or None): when leases and waits end, unless they changed."""
        self._timer_numbers = count()
        self._ended_by: deque[tuple[Span, int, Word]] = deque(maxlen=ENDED_RUNS_KEPT_MAX)
        """Runs of messages whose lease was ended by a word; the number of that lease, and the word (of `_ENDS`)."""
        self._stored: set[int] = set()
        self._stored_start: int | None = None
        self._dirty: set[int] = set()

    # Loading

    def load_start(self, stored: StartEntry) -> None:
        self.start, self._stored_start = stored.offset or 0, stored.offset
        self.resets, self.principal, self.begun = stored.resets, stored.principal, stored.begun

    def load_chunk(self, chunk: int, messages: bytes | None) -> None:
        if messages is None:
            self._chunks.pop(chunk, None)
            self._stored.discard(chunk)
        else:
            self._chunks[chunk] = bytearray(messages.ljust(CHUNK, b"\0"))
            self._stored.add(chunk)

    def loaded(self) -> None:
        """Derive everything else from what was loaded."""
        self.end = self.start
        for chunk, messages in self._chunks.items():
            used = len(bytes(messages).rstrip(b"\0"))
            self.end = max(self.end, chunk * CHUNK + used)
        self._advance()
        self._ready = [offset for offset in range(self.start, self.end) if self._fate(offset) is Fate.OPEN]

    # Changes

    def reset(self, start: int) -> None:
        """Begin at this offset with nothing known: all leases end."""
        self._dirty |= self._stored | self._chunks.keys()
        self.start, self.end, self._stored_start = start, start, None
        self._chunks.clear()
        self._leases.clear()
        self._waiting.clear()
        self._ready.clear()
        self._timers.clear()
        self._ended_by.clear()

    def log_starts_at(self, log_start: int) -> None:
        """Finish what was deleted below this offset; its leases end."""
        if log_start <= self.start:
            return
        self.gone(Span(self.start, min(log_start, self.end) - 1))
        if self.start < log_start:
            self.start = self.end = log_start
            self._stored_start = None
            self._drop_chunks()

    def gone(self, span: Span) -> None:
        """Finish messages below `end` that the log does not have."""
        self._finish(range(max(span.first, self.start), min(span.last + 1, self.end)), Fate.GONE)
        self._advance()

    def acquire(self, member: str, number: int, records_max: int, until_s: float, readable_end: int) -> list[Grant]:
        """Lease up to `records_max` open messages, those with the lowest offsets, until this time.
        `number` identifies the lease. Return them ascending; none if none is open.
        """
        offsets = self._take_ready(records_max)
        new_end = min(readable_end, self.start + self._window_max, self.end + records_max - len(offsets))
        if new_end > self.end:
            offsets += range(self.end, new_end)
            self.end = new_end
        if not offsets:
            return []
        lease = Lease(number, member, until_s)
        self._leases |= dict.fromkeys(offsets, lease)
        self._at(until_s, offsets, lease)
        return list(grants(offsets, [self._delivered(offset) for offset in offsets]))

    def answer(self, number: int, span: Span, word: Word, until_s: float) -> list[Span]:
        """Apply a member's word about messages of one of its leases. `until_s`: end of the lease (RENEW),
        or of the wait (RELEASE).

        Return those for which it does not count: they are not leased under this number. A word that ended
        the same lease before counts again, and changes nothing: its answer was lost. To accept and to reject is one
        word here.
        """
        above = Span(max(span.first, self.end), span.last)
        done = self._ended_under(number, span, word)
        late = list(gaps(Span(span.first, min(span.last, self.start - 1)), done))
        done_here = {offset for run in done for offset in range(max(run.first, self.start), run.last + 1)}
        held, refused = [], list[int]()
        for offset in range(max(span.first, self.start), min(span.last + 1, self.end)):
            lease = self._leases.get(offset)
            if lease is not None and lease.number == number:
                held.append(offset)
            elif offset not in done_here:
                refused.append(offset)
        if held:
            self._apply(held, word, until_s)
        return [*late, *spans(refused), *([above] if above.first <= above.last else [])]

    def _ended_under(self, number: int, span: Span, word: Word) -> list[Span]:
        """Return the messages of a span whose lease of this number was ended by the same word, as far as that is known;
        ascending.
        """
        ends = _ENDS.get(word)
        if ends is None:
            return []
        found = [
            Span(max(run.first, span.first), min(run.last, span.last))
            for run, by, ended in self._ended_by
            if by == number and ended is ends
        ]
        return sorted(run for run in found if run.first <= run.last)

    def expire(self, now_s: float) -> int:
        """End leases and waits whose time has come; return how many messages lost their lease."""
        ended = 0
        while self._timers and self._timers[0][0] <= now_s:
            _, _, offsets, lease = heapq.heappop(self._timers)
            if lease is None:
                for offset in offsets:
                    if self._waiting.get(offset, now_s + 1) <= now_s:
                        del self._waiting[offset]
                        heapq.heappush(self._ready, offset)
                continue
            mine = [offset for offset in offsets if self._leases.get(offset) is lease]
            ended += len(mine)
            self._reopen(mine)
        return ended

    def entries(self) -> list[Entry]:
        """Return the records of what has changed since the last call; they belong into one segment."""
        found: list[Entry] = []
        for chunk in sorted(self._dirty):
            messages = bytes(self._chunks.get(chunk, b"")).rstrip(b"\0")
            if messages:
                found.append(ChunkEntry(self.key, chunk, messages))
                self._stored.add(chunk)
            elif chunk in self._stored:
                found.append(ChunkEntry(self.key, chunk, None))
                self._stored.discard(chunk)
        self._dirty.clear()
        if self._stored_start is None or self._stored_start // CHUNK < self.start // CHUNK:
            found.append(StartEntry(self.key, self.start, self.resets, self.principal, self.begun))
            self._stored_start = self.start
        return found

    def removal(self) -> list[Entry]:
        """Return the records that remove this partition."""
        return [*(ChunkEntry(self.key, chunk, None) for chunk in sorted(self._stored)), StartEntry(self.key, None)]

    # Reading

    @property
    def spread(self) -> int:
        """Return how many offsets lie between the start and the end of the last chunk; 0 without a start."""
        return (max(self._chunks, default=0) + 1) * CHUNK - self.start if self.is_begun else 0

    @property
    def is_begun(self) -> bool:
        """Return whether it has a start."""
        return self._stored_start is not None

    @property
    def has_chunks_only(self) -> bool:
        """Return whether messages of it are stored, but no start; a broker never leaves it so."""
        return not self.is_begun and bool(self._chunks)

    @property
    def next_s(self) -> float | None:
        """Return when the next lease or wait ends, at the earliest; None: there is none."""
        return self._timers[0][0] if self._timers else None

    @property
    def has_leases(self) -> bool:
        return bool(self._leases)

    @property
    def has_ready(self) -> bool:
        """Return whether a message below `end` may be open."""
        return bool(self._ready)

    def counts(self) -> ShareCounts:
        finished = sum(self._fate(offset) is not Fate.OPEN for offset in range(self.start, self.end))
        members = {lease.member for lease in self._leases.values()}
        return ShareCounts(self.start, self.end, len(self._leases), len(self._waiting), finished, len(members))

    def known(self) -> Iterator[Known]:
        """Yield what is known of the messages from `start` to `end`, ascending."""
        begin = self.start
        for byte, run in groupby(map(self._byte, range(self.start, self.end))):
            length = sum(1 for _ in run)
            yield Known(begin, begin + length - 1, Fate(byte & _FATE), byte // _ONE_DELIVERY)
            begin += length

    def leases(self) -> list[tuple[str, int, float]]:
        """Return (member, messages leased to it, when the first of these leases ends), sorted."""
        found: dict[str, tuple[int, float]] = {}
        for lease in self._leases.values():
            messages, until_s = found.get(lease.member, (0, lease.until_s))
            found[lease.member] = (messages + 1, min(until_s, lease.until_s))
        return [(member, *found[member]) for member in sorted(found)]

    # Messages

    def _apply(self, held: Sequence[int], word: Word, until_s: float) -> None:
        if word in FINAL:
            self._finish(held, FINAL[word])
            self._advance()
        elif word is Word.RENEW:
            old = self._leases[held[0]]
            lease = Lease(old.number, old.member, until_s)
            self._leases |= dict.fromkeys(held, lease)
            self._at(until_s, held, lease)
        else:
            for offset in held:
                self._note_ended(offset, self._leases[offset].number, _ENDS[word])
            if word is Word.RETURN:
                self._forget_delivery(held)
            self._reopen(held, 0.0 if word is Word.RETURN else until_s)

    def _finish(self, offsets: Iterable[int], fate: Fate) -> None:
        for offset in offsets:
            lease = self._leases.pop(offset, None)
            self._waiting.pop(offset, None)
            chunk, at = divmod(offset, CHUNK)
            messages = self._messages(chunk)
            if messages[at] & _FATE == Fate.OPEN:
                messages[at] |= fate
                self._dirty.add(chunk)
                if lease is not None:
                    self._note_ended(offset, lease.number, Word.ACCEPT)

    def _note_ended(self, offset: int, number: int, ends: Word) -> None:
        """Note that a word, one of the values of `_ENDS`, ends the lease of a message."""
        if self._ended_by:
            run, by, word = self._ended_by[-1]
            if by == number and word is ends and run.last + 1 == offset:
                self._ended_by[-1] = Span(run.first, offset), number, ends
                return
        self._ended_by.append((Span(offset, offset), number, ends))

    def _reopen(self, offsets: Sequence[int], until_s: float = 0.0) -> None:
        """Let the messages be leased again, from this time on; 0: now. Their deliveries are to be stored."""
        for offset in offsets:
            del self._leases[offset]
            self._dirty.add(offset // CHUNK)
            if until_s:
                self._waiting[offset] = until_s
            else:
                heapq.heappush(self._ready, offset)
        if until_s and offsets:
            self._at(until_s, offsets, None)

    def _take_ready(self, records_max: int) -> list[int]:
        found: list[int] = []
        while self._ready and len(found) < records_max:
            offset = heapq.heappop(self._ready)
            is_open = offset >= self.start and offset not in self._leases and offset not in self._waiting
            if is_open and self._fate(offset) is Fate.OPEN and (not found or found[-1] != offset):
                found.append(offset)
        return found

    def _delivered(self, offset: int) -> int:
        """Count a delivery, and return the number of all."""
        chunk, at = divmod(offset, CHUNK)
        messages = self._messages(chunk)
        if messages[at] < DELIVERIES_COUNTED_MAX * _ONE_DELIVERY:
            messages[at] += _ONE_DELIVERY
        return messages[at] // _ONE_DELIVERY

    def _forget_delivery(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            self._chunks[offset // CHUNK][offset % CHUNK] -= _ONE_DELIVERY

    def _fate(self, offset: int) -> Fate:
        return Fate(self._byte(offset) & _FATE)

    def _byte(self, offset: int) -> int:
        messages = self._chunks.get(offset // CHUNK)
        return 0 if messages is None else messages[offset % CHUNK]

    def _messages(self, chunk: int) -> bytearray:
        found = self._chunks.get(chunk)
        if found is None:
            found = self._chunks[chunk] = bytearray(CHUNK)
        return found

    def _advance(self) -> None:
        """Let the start pass what is finished."""
        while self.start < self.end and self._fate(self.start) is not Fate.OPEN:
            self.start += 1
        self._drop_chunks()

    def _drop_chunks(self) -> None:
        first = self.start // CHUNK
        for chunk in [chunk for chunk in self._chunks if chunk < first]:
            del self._chunks[chunk]
            self._dirty.add(chunk)

    def _at(self, time_s: float, offsets: Sequence[int], lease: Lease | None) -> None:
        heapq.heappush(self._timers, (time_s, next(self._timer_numbers), offsets, lease))
