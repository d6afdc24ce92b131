"""Bounds of a gateway: one budget of memory, and counts of streams. Beyond a bound a new call is refused; none that
is under way is ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from ledgermq_gateway.http.problems import Problem

RETRY_MS = 1000
ROWS_AT_FIRST = 16
"""Records of a stream's first chunk, before it is known how large they are."""


class Held:
    """What a call holds, within a `with` block: functions that give it back, called from the last to the first with the
    error that ends the call, if there is one. `ExitStack` takes three times as long, which each request would feel.
    """

    __slots__ = ("_endings",)

    def __init__(self) -> None:
        self._endings: list[Callable[[BaseException | None], object]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._endings:
            ending = self._endings.pop()
            try:
                ending(error)
            finally:
                self.__exit__(kind, error, trace)

    def add(self, ending: Callable[[BaseException | None], object]) -> None:
        self._endings.append(ending)

    def handed_on(self) -> Held:
        """Return what is held, for the block of another task; this one holds nothing more."""
        other = Held()
        other._endings, self._endings = self._endings, []
        return other


class Memory:
    """The budget. Calls take their `Share` before they use memory, and give it back at their end. A principal may
    hold as many bytes as are free: one alone half of them, so that there always is room for others.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0
        self.held_by: Counter[str] = Counter()

    def share(self, principal: str = "") -> Share:
        """`principal`: "" where callers are not told apart."""
        return Share(self, principal)


class Share:
    """What one call holds: within a `with` block, or until `give_back`."""

    __slots__ = ("_memory", "_principal", "held_bytes")

    def __init__(self, memory: Memory, principal: str) -> None:
        self._memory = memory
        self._principal = principal
        self.held_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ending: object) -> None:
        self.give_back()

    def take(self, count: int) -> None:
        """Take so many bytes more. Raises Problem (503) if the budget has no room."""
        memory, principal = self._memory, self._principal
        free = memory.bytes_max - memory.held_bytes
        if count > free or (principal and memory.held_by[principal] + count > free):
            raise Problem(
                "OVERLOADED",
                "the gateway has no memory left for this call at present: try again, or send less at a time",
                retry_after_ms=RETRY_MS,
            )
        memory.held_bytes += count
        memory.held_by[principal] += count
        self.held_bytes += count

    def give_back(self) -> None:
        memory = self._memory
        memory.held_bytes -= self.held_bytes
        memory.held_by[self._principal] -= self.held_bytes
        if not memory.held_by[self._principal]:
            del memory.held_by[self._principal]
        self.held_bytes = 0
        assert memory.held_bytes >= 0, "no call gives back more than it took"


class Room:
    """What a stream of records holds of the budget, of which its call has taken `taken_bytes`. A batch of a few bytes
    may decode to 256 MiB, which are held as long as the reader takes for it. `decoded_bytes`: of the batch that records
    are taken from now. `read_ahead_bytes`: held besides. `chunk_bytes`: how large a chunk shall be.
    """

    def __init__(
        self,
        share: Share,
        decoded_bytes: Callable[[], int],
        *,
        taken_bytes: int,
        read_ahead_bytes: int,
        chunk_bytes: int,
    ) -> None:
        self._share, self._decoded_bytes = share, decoded_bytes
        self._taken_bytes = taken_bytes
        self._read_ahead_bytes = read_ahead_bytes
        self._chunk_bytes = chunk_bytes
        self.rows = ROWS_AT_FIRST
        """How many records the next chunk may have: records may be large."""

    def hold(self, chunk: bytes, rows_max: int) -> bytes:
        """Return the chunk, when there is room for it and for the batch that it comes from. Raises Problem (503)."""
        self.rows = max(1, min(rows_max, 2 * self.rows, self.rows * self._chunk_bytes // (len(chunk) + 1)))
        wanted = self._read_ahead_bytes + self._decoded_bytes() + len(chunk)
        if wanted > self._taken_bytes:
            self._share.take(wanted - self._taken_bytes)
            self._taken_bytes = wanted
        return chunk


class Streams:
    """Counts calls that wait or stream: in all, and of each principal."""

    def __init__(self, most: int, most_of_principal: int) -> None:
        self._most = most
        self._most_of_principal = most_of_principal
        self._counts: Counter[str] = Counter()

    @property
    def count(self) -> int:
        return self._counts.total()

    @contextmanager
    def one(self, principal: str) -> Iterator[None]:
        """Count one for the block. Raises Problem (503)."""
        if self.count >= self._most or self._counts[principal] >= self._most_of_principal:
            raise Problem(
                "OVERLOADED",
                "as many calls wait or stream as the gateway allows: end one, or use another gateway",
                retry_after_ms=RETRY_MS,
            )
        self._counts[principal] += 1
        try:
            yield
        finally:
            self._counts[principal] -= 1
            if not self._counts[principal]:
                del self._counts[principal]


class KeyRates:
    """Bounds how many things that the cluster remembers a principal sends in a second: a bundle remembers 100,000 ids
    for all principals together. `what`: their name. `code`: of the refusal.
    """

    def __init__(self, per_second: int, what: str, code: str) -> None:
        self._per_second = per_second
        self._what = what
        self._code = code
        self._until_s: dict[str, float] = {}
        """By principal: when what it has sent is worth no wait any more (a leaky bucket of one second)."""

    def spend(self, principal: str, count: int, now_s: float) -> None:
        """Raises Problem (429)."""
        begin_s = max(now_s, self._until_s.get(principal, 0.0))
        if begin_s - now_s >= 1.0:
            raise Problem(
                self._code,
                f"more than {self._per_second} {self._what} in a second: send them later",
                retry_after_ms=int(1000 * (begin_s - now_s)),
            )
        self._until_s[principal] = begin_s + count / self._per_second
        if len(self._until_s) > 10_000:
            self._until_s = {name: until_s for name, until_s in self._until_s.items() if until_s > now_s}
