"""Divide the memory of one broker among answers on their way to readers.

`AnswerBudget` divides a `ByteBudget` among readers. A reader that takes its
answers slowly, or never, holds memory for an unlimited time, so each reader has a standing. Slow
readers together hold at most half of the budget; slow and new ones together hold three quarters.
The rest is reserved for readers that have proved to be fast. Readers without room wait in order of
arrival. While some wait, the broker breaks connections whose readers take nothing, because gRPC
frees an answer only when its reader takes it or its connection ends.
"""

from __future__ import annotations

import asyncio
import itertools
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from ledgermq_broker.bundle.shared.answer_pace import SLOW_S, AnswerPace, Standing
from ledgermq_broker.bundle.shared.byte_budget import ByteBudget

KIB = 1024

COPIES = 2
"""Memory that an answer takes while it is in line, as a multiple of its size: the encoded bytes,
and gRPC's copy of them. Before that, its batches and their encoding take the same.
"""
PATIENCE_S = 3.0
PATIENCE_BYTES_PER_S = 512 * KIB
"""An answer may be in line for `PATIENCE_S` plus the time that it takes at this rate. After that
its connection may be broken.
"""
CUT_EVERY_S = 1.0
CONNECTION_SHARE = 1 / 8
"""Share of the budget that one connection may hold, unless it holds a single answer."""


LIMITS = {Standing.SLOW: 1 / 2, Standing.NEW: 3 / 4, Standing.FAST: 1.0}
"""Share of the budget that readers of this standing, and slower ones, may hold together."""


@dataclass(eq=False)
class Caller:
    """The connection of the current call.

    `cut` breaks the connection, which ends all its calls.
    """

    connection: str
    cut: Callable[[], None]
    readers: list[AnswerReader] = field(default_factory=list)

    def ended(self) -> None:
        """Note that the call is over, and that what was sent has left the process."""
        for reader in self.readers:
            reader.leave()


CALLER: ContextVar[Caller] = ContextVar("ledgermq_caller")
"""Set by a server whose answers wait for their readers outside this program's own code."""


@dataclass(eq=False)
class _Turn:
    """A waiting reader's place in the queue."""

    number: int
    reader: AnswerReader
    size_bytes: int
    come: asyncio.Future[None]

    def __lt__(self, other: _Turn) -> bool:
        return self.number < other.number

    @property
    def place(self) -> tuple[int, int]:
        """Order among readers of the same standing: a new reader that has taken something goes
        before those that may never take anything.
        """
        return -self.reader.pace.credit, self.number


class AnswerBudget(ByteBudget):
    """Use it within one event loop. All sizes inside are memory: `COPIES` times the size of the
    answer.
    """

    def __init__(self, bytes_max: int) -> None:
        super().__init__(bytes_max)
        self.held = dict.fromkeys(Standing, 0)
        """Bytes held, by the standing of their readers."""
        self.cuts = 0
        """Number of connections that were broken."""
        self._numbers = itertools.count()
        self._turns: dict[Standing, list[_Turn]] = {standing: [] for standing in Standing}
        self._at_work: dict[Standing, Counter[str]] = {standing: Counter() for standing in Standing}
        self._of_connection: Counter[str] = Counter()
        self._in_line: dict[AnswerReader, float] = {}
        """When each reader's answer got in line, oldest first; readers that have become slow since
        are in `_late`.
        """
        self._late: dict[AnswerReader, float] = {}
        self._cutting: asyncio.TimerHandle | None = None
        self._newest_next = False

    @property
    def in_line_bytes(self) -> int:
        """Return the bytes of answers that were handed to their connections."""
        return sum(reader.held for reader in (*self._in_line, *self._late))

    @property
    def waiting(self) -> int:
        """Return the number of readers that wait for room."""
        return sum(map(len, self._turns.values()))

    def take_bound(self, bytes_max: int) -> None:
        """Set the bound from now on. Memory held above a smaller bound is freed as its readers take
        their answers.
        """
        self.bytes_max = bytes_max
        self._serve()

    def reader(self, *, once: bool = False, urgent: bool = False) -> AnswerReader:
        """Return a reader of this budget; `once`: the call waits for a single answer.

        `urgent`: it never waits, but its bytes count.
        """
        return AnswerReader(self, CALLER.get(None), next(self._numbers), once=once, urgent=urgent)

    # -- what readers call
    # ---------------------------------------------------------------------------------------------

    def share(self, reader: AnswerReader) -> int:
        """Return the memory that an answer of this reader may take if every active reader gets the
        same.
        """
        at_work = self._at_work[reader.standing]
        connections = len(at_work) + (reader.connection not in at_work)
        room = self.bytes_max - self.held[Standing.SLOW] if reader.standing is Standing.FAST else self.bytes_max // 4
        return int(min(room / connections, self.bytes_max * CONNECTION_SHARE)) // max(1, at_work[reader.connection])

    def queue(self, reader: AnswerReader, size_bytes: int) -> _Turn:
        """Queue a turn; its `come` is done once the reader holds `size_bytes`, which is at once if
        there is room.
        """
        number = next(self._numbers) if reader.number is None else reader.number
        turn = _Turn(number, reader, size_bytes, asyncio.get_running_loop().create_future())
        if reader.urgent:
            self._hold(reader, size_bytes)
            turn.come.set_result(None)
            return turn
        insort(self._turns[reader.standing], turn, key=lambda each: each.place)
        self._serve()
        if self._cutting is None and not turn.come.done():
            self._cut_late()
        return turn

    def withdraw(self, turn: _Turn) -> None:
        self._turns[turn.reader.standing].remove(turn)
        turn.come.cancel()
        self._serve()

    def resize(self, reader: AnswerReader, size_bytes: int) -> bool:
        """Hold `size_bytes` instead, without waiting.

        Return False if there is no room, or if others wait for it.
        """
        if size_bytes > reader.held and not reader.urgent and (self.waiting or self._obstacle(reader, size_bytes)):
            return False
        freed = size_bytes < reader.held
        self._hold(reader, size_bytes)
        if freed:
            self._serve()
        return True

    def stand(self, reader: AnswerReader, standing: Standing) -> None:
        """Set the reader's standing after its speed has changed."""
        size_bytes = reader.held
        self._hold(reader, 0)
        reader.pace.standing = standing
        self._hold(reader, size_bytes)

    def line_up(self, reader: AnswerReader) -> None:
        self._in_line[reader] = asyncio.get_running_loop().time()

    def leave_line(self, reader: AnswerReader) -> float:
        """Take the reader out of line; return how long its answer was there."""
        now_s = asyncio.get_running_loop().time()
        return now_s - (self._in_line.pop(reader) if reader in self._in_line else self._late.pop(reader, now_s))

    # -- who is next
    # ---------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Give room to waiting readers, oldest first.

        No reader overtakes one that waits for the budget itself.
        """
        self._age()
        blocked: set[Standing] = set()
        while heads := [
            turn for standing in Standing if standing not in blocked and (turn := self._head(standing)) is not None
        ]:
            turn = min(heads)
            obstacle = self._obstacle(turn.reader, turn.size_bytes)
            if obstacle == "budget":
                return
            if obstacle is not None:
                blocked.add(turn.reader.standing)
                continue
            self._turns[turn.reader.standing].remove(turn)
            self._newest_next ^= turn.reader.standing is Standing.NEW
            self._hold(turn.reader, turn.size_bytes)
            turn.come.set_result(None)

    def _head(self, standing: Standing) -> _Turn | None:
        """Return the first turn whose own connection has room: the oldest, and among new readers
        every other time the newest.

        Otherwise a reader that takes its answers would wait behind all earlier readers that take
        nothing.
        """
        turns = self._turns[standing]
        if standing is Standing.NEW and self._newest_next and turns and not turns[0].reader.pace.credit:
            turns = turns[::-1]
        return next((turn for turn in turns if not self._is_full(turn.reader, turn.size_bytes)), None)

    def _obstacle(self, reader: AnswerReader, size_bytes: int) -> str | None:
        if self._is_full(reader, size_bytes):
            return "connection"
        for standing in (reader.standing, Standing.FAST):
            others = sum(held for each, held in self.held.items() if each <= standing) - reader.held
            if others and others + size_bytes > self.bytes_max * LIMITS[standing]:
                return "budget" if standing is Standing.FAST else "standing"
        return None

    def _is_full(self, reader: AnswerReader, size_bytes: int) -> bool:
        """Return whether the reader's connection already holds its share."""
        others = self._of_connection[reader.connection] - reader.held
        return bool(others) and others + size_bytes > self.bytes_max * CONNECTION_SHARE

    def _hold(self, reader: AnswerReader, size_bytes: int) -> None:
        at_work = self._at_work[reader.standing]
        at_work[reader.connection] += bool(size_bytes) - bool(reader.held)
        self.give(reader.held - size_bytes)
        self.held[reader.standing] += size_bytes - reader.held
        self._of_connection[reader.connection] += size_bytes - reader.held
        for counter in (at_work, self._of_connection):
            if not counter[reader.connection]:
                del counter[reader.connection]
        reader.held = size_bytes

    # -- who takes nothing
    # ---------------------------------------------------------------------------------------------

    def _age(self) -> None:
        """Make readers slow while their answers are in line, not only when they take them at last."""
        now_s = asyncio.get_running_loop().time()
        for reader, since_s in list(itertools.takewhile(lambda each: each[1] <= now_s - SLOW_S, self._in_line.items())):
            del self._in_line[reader]
            self._late[reader] = since_s
            self.stand(reader, Standing.SLOW)

    def _cut_late(self) -> None:
        """Break the connections of answers that are far too late, the latest first, while other
        readers wait.

        Break as many as the waiting readers need, and as many as hold slow readers above their
        limit: those began as new readers, and hold the room of new ones.
        """
        self._cutting = None
        self._serve()
        if not self.waiting:
            return
        now_s = asyncio.get_running_loop().time()
        self._cutting = asyncio.get_running_loop().call_later(CUT_EVERY_S, self._cut_late)
        wanted = max(
            sum(turn.size_bytes for turns in self._turns.values() for turn in turns),
            self.held[Standing.SLOW] - int(self.bytes_max * LIMITS[Standing.SLOW]),
        )
        for reader, since_s in list(self._late.items()):
            patience_s = PATIENCE_S + reader.held / COPIES / PATIENCE_BYTES_PER_S
            if wanted > 0 and reader.caller is not None and now_s - since_s >= patience_s:
                wanted -= reader.held
                self.cuts += reader.cut()


class AnswerReader:
    """What one call holds of the budget: nothing while it waits for new records, otherwise room for
    one answer.

    Call `take`, then `fit` with the size found, then `sent` while the answer is in line. `rest` or
    `leave` returns everything.
    """

    def __init__(self, budget: AnswerBudget, caller: Caller | None, number: int, *, once: bool, urgent: bool) -> None:
        self.caller = caller
        self.connection = caller.connection if caller is not None else f"reader {number}"
        self.urgent = urgent
        self.held = 0
        self.number: int | None = None
        """Number of the turn that it waits for. It is kept during the whole wait, also when the
        reader pauses to send its caller a sign of life.
        """
        self._turn: _Turn | None = None
        self._budget = budget
        self.pace = AnswerPace(once=once)
        self._is_cut = False
        if caller is not None:
            caller.readers.append(self)

    @property
    def standing(self) -> Standing:
        return self.pace.standing

    def room(self, asked: int) -> int:
        """Return how many bytes the next answer may have."""
        return self.pace.room(asked, self._budget.share(self) // COPIES)

    async def take(self, payload_bytes: int, until_s: float) -> bool:
        """Hold room for `size_bytes`; return False if there was none until this time of the loop's
        clock. The next call continues the wait.
        """
        turn = self._turn = self._budget.queue(self, payload_bytes * COPIES)
        self.number = turn.number
        try:
            if not turn.come.done():
                async with asyncio.timeout_at(until_s):
                    await asyncio.shield(turn.come)
        except TimeoutError:
            pass
        finally:
            if not turn.come.done():
                self._budget.withdraw(turn)
        if self.held:
            self.number = None
        return self.held > 0

    def fit(self, payload_bytes: int) -> bool:
        """Hold room for exactly this size.

        Return False if it is more than was taken and there is no room for it now.
        """
        return self._budget.resize(self, payload_bytes * COPIES)

    def hand_over(self) -> None:
        """Put the answer in line until the call ends."""
        self._budget.line_up(self)

    @contextmanager
    def sent(self) -> Iterator[None]:
        """Put the answer in line for the block; when the block ends, the reader has taken it."""
        self._budget.line_up(self)
        try:
            yield
        except BaseException:
            self.leave()
            raise
        self._budget.stand(self, self.pace.took(self.held // COPIES, self._budget.leave_line(self)))
        self.rest()

    def rest(self) -> None:
        """Give everything back to the budget."""
        self._budget.resize(self, 0)

    def leave(self) -> None:
        """End the use of the budget because the call has ended. Idempotent."""
        if self._turn is not None and not self._turn.come.done():
            self._budget.withdraw(self._turn)
        self._budget.leave_line(self)
        self.rest()

    def cut(self) -> bool:
        """Break the connection; return False if that was already done."""
        is_first, self._is_cut = not self._is_cut, True
        if is_first and self.caller is not None:
            self.caller.cut()
        return is_first

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()
