"""The owner of a share partition: its log, its state in memory, and what it decides.

The ledger below is taken for granted (`tests.models.ledger`). Decisions are in flight for a while; when
the partition changes hands, some of them have landed and the rest never will; a full store refuses one,
and with it all behind it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.models.terms import NOT_OWNER, Term, TermsWorld
from tests.models.walk import Violation, Walk

CHUNK = 4
"""Offsets of one record."""
WINDOW_MAX = 14
DELIVERIES_MAX = 3
LEASE = 300
RETRY = "RETRY"
LATE_WITHIN = 1200

Fate = Literal["open", "finished"]
Cell = tuple[Fate, int]
"""(fate, number of deliveries)"""
OPEN: Cell = ("open", 0)
FINISHED: Cell = ("finished", 0)
Chunk = tuple[Cell, ...]
Key = str | int
"""`start`, or the number of a chunk."""


@dataclass(slots=True)
class State:
    """The fold of the log. `end`: offset behind the last message. `log_start`: of what retention left.
    `generation`: the last reset.
    """

    records: dict[Key, Any] = field(default_factory=dict)
    end: int = 0
    log_start: int = 0
    generation: int = 0

    def copy(self) -> State:
        return State(dict(self.records), self.end, self.log_start, self.generation)


@dataclass(slots=True, eq=False)
class Append:
    """What one decision writes. A value None removes the key."""

    records: dict[Key, Any]
    messages: int = 0
    answer: Any = "ok"
    generation: int | None = None
    """Of a reset."""
    outcome: Any = None


Number = tuple[int, int, int]
"""(move that brought the partition, term of its ledger, number in it)"""


@dataclass(frozen=True, slots=True)
class Lease:
    number: Number
    member: str
    until: int


@dataclass(frozen=True, slots=True)
class Grant:
    """What a member is given. `moment`: when it was leased; `generation`: the reset before it."""

    offset: int
    count: int
    number: Number
    until: int
    moment: int
    generation: int
    life: object
    begun: int
    """Where the group began, as this life of the state knows it."""


class Memory:
    """The state as the owner decides on it: it is ahead of the log."""

    def __init__(self, owner: Owner) -> None:
        world, records = owner.world, owner.state.records
        self.start: int | None = records.get("start")
        self.cells: dict[int, Cell] = {}
        self.counted: dict[int, int] = {}
        """Deliveries in this life, also of what is below the start."""
        self.leases: dict[int, Lease] = {}
        self.delayed: dict[int, int] = {}
        self.finishers: dict[int, Number] = {}
        """The lease that finished a message, in this life."""
        self.begun = self.start
        self.life = object()
        self.generation = owner.state.generation
        if self.start is None or world.breaks("state-dropped-at-takeover"):
            return
        for number, chunk in records.items():
            if isinstance(number, int):
                self.cells |= {number * CHUNK + at: cell for at, cell in enumerate(chunk) if cell != OPEN}
        if world.breaks("counts-in-memory"):
            self.cells = {offset: (fate, 0) for offset, (fate, _) in self.cells.items()}
        self.skip_finished()

    def skip_finished(self) -> None:
        assert self.start is not None
        while self.cells.get(self.start, OPEN)[0] == "finished":
            self.start += 1

    def chunk(self, number: int) -> Chunk:
        assert self.start is not None
        offsets = range(number * CHUNK, (number + 1) * CHUNK)
        return tuple(FINISHED if offset < self.start else self.cells.get(offset, OPEN) for offset in offsets)


class Owner(Term[State]):
    """A term of the ledger that the partition came to by `move`. `issued`: the end of the log with what is in
    flight. `leaves`: it knows that the partition is to move to another ledger. `has_sealed`: it has moved; no owner
    claims the ledger for that, so its fence checks pass as before.
    """

    world: World

    def __init__(self, world: World, state: State, epoch: int, move: int = 0) -> None:
        super().__init__(world, 0, state)
        self.epoch = epoch
        self.move = move
        self.leaves = self.has_sealed = False
        self.flight: list[Append] = []
        self.is_over = False
        self.numbers = 0
        self.issued_end = state.end
        self.held = Memory(self)
        self.stored_chunks = {key for key in state.records if key != "start"}

    @property
    def is_current(self) -> bool:
        return self.has_sealed or super().is_current

    @property
    def serves(self) -> bool:
        """Return whether it takes calls about the group."""
        return not self.is_over and not (self.leaves and not self.world.breaks("changed-while-it-leaves"))

    # Calls

    def produce(self) -> Append | str:
        return NOT_OWNER if self.is_over or self.has_sealed else self._append({}, messages=1)

    def fetch(self, member: str, records_max: int) -> list[Grant] | Append | str:
        """Lease messages; a fence check follows before they are sent."""
        if not self.serves:
            return NOT_OWNER
        held = self.held
        if held.start is None:
            held.start = held.begun = self.state.end if self.world.latest else self.state.log_start
            return self._append({"start": held.start})
        if "start" not in self.state.records:
            return []
        self._end_of_leases()
        held.start = max(held.start, 0 if self.world.breaks("gone-stays") else self.state.log_start)
        found: list[Grant] = []
        for offset in range(held.start, min(self.state.end, held.start + WINDOW_MAX)):
            fate, count = held.cells.get(offset, OPEN)
            if len(found) == records_max:
                break
            if fate == "finished" or (offset in held.leases and not self.world.breaks("grant-of-the-leased")):
                continue
            if held.delayed.get(offset, 0) > self.world.now or offset < self.state.log_start:
                continue
            held.delayed.pop(offset, None)
            self.numbers += 1
            move = 0 if self.world.breaks("number-without-move") else self.move
            number = (move, 0 if self.world.breaks("number-without-term") else self.epoch, self.numbers)
            held.cells[offset] = (fate, count + 1)
            held.counted[offset] = count + 1
            lease = held.leases[offset] = Lease(number, member, self.world.now + LEASE)
            found.append(
                Grant(
                    offset, count + 1, number, lease.until, self.world.now, held.generation, held.life, held.begun or 0
                )
            )
        self.world.judge.granted(found)
        return found

    def acknowledge(self, grant: Grant, kind: str, delay: int = 0) -> Append | str:
        """Accept (or reject), release or renew one message."""
        if not self.serves:
            return NOT_OWNER
        held = self.held
        self._end_of_leases()
        if held.start is None:
            return self.final("stale")
        if grant.offset < held.start or self._is_finished(grant.offset):
            is_own = held.finishers.get(grant.offset) == grant.number
            if not is_own and not self.world.breaks("finished-counts-for-any-lease"):
                return self.final("stale")
            self.world.walk.saw("an acknowledgement was repeated")
            done = Append({}, answer="finished")
            self.flight.append(done) if not self.world.breaks("repeat-answered-at-once") else None
            if self.world.breaks("repeat-answered-at-once"):
                done.outcome = done.answer
            return done
        lease = held.leases.get(grant.offset)
        if lease is None or (lease.number != grant.number and not self.world.breaks("lease-not-fenced")):
            return self.final("stale")
        if kind == "renew":
            held.leases[grant.offset] = Lease(lease.number, lease.member, self.world.now + LEASE)
            self.world.judge.renewed(grant, self.world.now + LEASE)
            return self.final("ok")
        del held.leases[grant.offset]
        if kind == "release":
            if delay:
                held.delayed[grant.offset] = self.world.now + delay
            return self._append(self._records({grant.offset}))
        self.world.walk.saw("a message was acknowledged")
        held.cells[grant.offset] = ("finished", held.cells.get(grant.offset, OPEN)[1])
        held.finishers[grant.offset] = grant.number
        return self._append(self._records({grant.offset}))

    def reset(self, to: int) -> Append | str:
        if not self.serves or self.held.start is None or not self.is_current:
            return NOT_OWNER
        held = self.held
        held.start = held.begun = max(to, self.state.log_start)
        records: dict[Key, Any] = {"start": held.start}
        if not self.world.breaks("reset-keeps-chunks"):
            held.cells.clear()
            held.finishers.clear()
            records |= dict.fromkeys(self.stored_chunks)
            self.stored_chunks = set()
        if not self.world.breaks("reset-keeps-leases"):
            held.leases.clear()
            held.life = object()
        held.delayed.clear()
        held.generation = self.world.next_id()
        self.world.walk.saw("a group was reset")
        append = self._append(records)
        append.generation = held.generation
        return append

    # The log

    def settle(self) -> None:
        """The store does one thing to what is in flight."""
        if not self.is_current:
            self._lose(NOT_OWNER)
            self.is_over = True
        elif self.flight and not self.world.healed and self.world.walk.chance(self.world.refused):
            self._lose(RETRY)
            self.world.walk.saw("an append was refused")
            self.dropped(self.state)
            if not self.world.breaks("memory-kept-after-refusal"):
                self.held = Memory(self)
        elif self.flight:
            append = self.flight.pop(0)
            self.land(append)
            append.outcome = append.answer

    def dropped(self, state: State) -> None:
        """Note which deliveries the next life of the state does not know."""
        self.world.drops += 1
        for offset, count in self.held.counted.items():
            chunk = state.records.get(offset // CHUNK, (OPEN,) * CHUNK)
            known = chunk[offset % CHUNK][1] if state.generation == self.held.generation else 0
            self.world.lost[self.held.generation, offset] += max(0, count - known)

    def land(self, append: Append) -> None:
        for key, value in append.records.items():
            if value is None:
                self.state.records.pop(key, None)
            else:
                self.state.records[key] = value
        self.state.end += append.messages
        if append.generation is not None:
            self.state.generation = append.generation
            self.world.judge.reset(append.generation, append.records["start"])

    def _lose(self, outcome: str) -> None:
        for append in self.flight:
            append.outcome = outcome
        self.flight.clear()
        self.stored_chunks = {key for key in self.state.records if key != "start"}

    def _append(self, records: dict[Key, Any], messages: int = 0, answer: Any = "ok") -> Append:
        append = Append(records, messages, answer)
        if self.world.breaks("answered-before-durable") and records:
            append.outcome = answer
        if None in records.values() and "start" in records and self.world.breaks("start-behind-its-chunks"):
            self.flight.append(Append({key: value for key, value in records.items() if value is None}))
        self.flight.append(append)
        return append

    def _records(self, offsets: set[int]) -> dict[Key, Any]:
        """Return the chunks of these offsets, and drop those that lie below the start, with it."""
        held = self.held
        assert held.start is not None
        held.skip_finished()
        records: dict[Key, Any] = {}
        for number in {offset // CHUNK for offset in offsets}:
            if (number + 1) * CHUNK > held.start:
                records[number] = held.chunk(number)
                self.stored_chunks.add(number)
        gone = {
            number for number in self.stored_chunks if isinstance(number, int) and (number + 1) * CHUNK <= held.start
        }
        if gone or any((offset // CHUNK + 1) * CHUNK <= held.start for offset in offsets):
            records |= dict.fromkeys(gone)
            records["start"] = held.start
            self.stored_chunks -= gone
            self.world.walk.saw("a chunk was dropped")
        held.cells = {offset: cell for offset, cell in held.cells.items() if offset >= held.start}
        return records

    def _is_finished(self, offset: int) -> bool:
        return self.held.cells.get(offset, OPEN)[0] == "finished"

    def _end_of_leases(self) -> None:
        ended = {offset for offset, lease in self.held.leases.items() if lease.until <= self.world.now}
        if ended:
            self.world.walk.saw("a lease ended by its time", len(ended))
            for offset in ended:
                del self.held.leases[offset]
            self._append(self._records(ended))


class World(TermsWorld[State]):
    def __init__(self, walk: Walk) -> None:
        from tests.models.shares.judge import Judge

        self.latest = walk.chance(0.6)
        self.pace = walk.random.choice((0.05, 1.0, 1.0))
        """How often the store does something, when it has its turn."""
        self.refused = walk.random.choice((0.0, 0.02, 0.1))
        self.busy = {"producer", "operator", "mover"}
        """Processes that have something left to do."""
        self.drops = 0
        self.lost: Counter[tuple[int, int]] = Counter()
        """(generation, offset) -> deliveries that were in memory only when that was lost"""
        self.judge = Judge(self)
        self.over: list[Owner] = []
        super().__init__(walk, [State()], LATE_WITHIN)
        self.terms = [Owner(self, State(), 1)]

    def successor(self, before: Term[State]) -> Owner:
        """Some of what is in flight has landed, though the owner before does not know."""
        assert isinstance(before, Owner)
        landed, after = (
            before.flight[: self.walk.random.randrange(len(before.flight) + 1)],
            Owner(self, before.state.copy(), before.epoch + 1),
        )
        for append in landed:
            after.land(append)
        self.over.append(before)
        before.dropped(after.state)
        return Owner(self, after.state, before.epoch + 1, before.move)

    def move(self, before: Owner) -> None:
        """The owner seals the partition, and one of another ledger opens it, which may be in a term of the same
        number. It has read what is stored of the group.
        """
        state = before.state.copy()
        if self.breaks("opened-without-the-groups"):
            state.records.clear()
        before.has_sealed = True
        self.over.append(before)
        before.dropped(state)
        self.replace(0, Owner(self, state, self.walk.random.choice((1, before.epoch)), self.next_id()))
        self.walk.saw("a partition moved")

    @property
    def current(self) -> Owner:
        found = self.terms[0]
        assert isinstance(found, Owner)
        return found

    def owner(self, ledger: int) -> Owner:
        found = super().owner(ledger)
        assert isinstance(found, Owner)
        return found

    def check(self, holds: bool, text: str) -> None:
        if not holds:
            raise Violation(text)
