"""Model of the ledger protocol: one bundle, one partition, one record a segment.

Every operation of the store is parted into issue, apply and reply; a process may sleep between any
two of them and wake as a zombie. Brokers claim, append with several puts in flight, and answer
questions after a fence check; compactors freeze plans, commit them as checkpoints and delete what
finished plans name; readers follow the slots. Invariants: an offset has one value, acknowledged
values are stored, offsets are dense, a reader skips nothing and reaches the end, and no owner
answers from a state that a later owner has already surpassed.

Three rules are kept here and have no mutant, because another rule covers for each of them in a
model this small: a fold is believed only if it was not trimmed meanwhile, a plan is run only while
it is open (`tests.models.parquet` shows it), and deletion looks the checkpoint up anew (the
simulation shows it).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tests.models.walk import Model, Process, Violation, Walk

STEPS = 3000
SPEEDS = (0.2, 1, 1, 5)
ZOMBIE_SPEED = 0.3
PUTS_IN_FLIGHT = 3
Writer = tuple[str, int]

MUTANTS = {
    "link-ignored": "a segment is valid only if it names the last valid segment before it",
    "no-second-recovery": "a claim counts only if recovery, run after it, says that it opened the term",
    "acknowledged-out-of-order": "a segment is acknowledged when it and all below it are won",
    "refusal-forgotten": "what was put behind a refused put is void, and is not acknowledged",
    "issued-state-kept": "after a refused put the term goes on from what is durable",
    "narrow-fence-check": "a fence check looks at every slot from the lowest that is not known as won",
    "claims-deleted": "claims are never deleted",
    "voids-deleted": "void segments are never deleted",
    "void-believed": "a reader believes a void segment only if it is not trimmed",
    "narrow-reader-check": (
        "a reader checks the trim slot against where its last look began, not against where it stands"
    ),
}


@dataclass(frozen=True, slots=True)
class Segment:
    id: int
    kind: str
    epoch: int
    writer: Writer
    previous: int | None
    offset: int = -1
    value: int = -1


@dataclass(frozen=True, slots=True)
class State:
    """What a fold of slots knows."""

    epoch: int = 0
    writer: Writer | None = None
    last: int | None = None
    end: int = 0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`parquet`: (offset, value) of what is in files."""

    id: int = 0
    slot: int = 0
    trim: int = 0
    state: State = field(default_factory=State)
    parquet: tuple[tuple[int, int], ...] = ()
    finished: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """`named`: the slots that may go once it is finished."""

    slot: int
    state: State
    parquet: tuple[tuple[int, int], ...]
    named: tuple[int, ...]


class World:
    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.slots: dict[int, Segment] = {}
        self.checkpoints: dict[int, Checkpoint] = {}
        self.plans: dict[int, Plan] = {}
        self.acknowledged: dict[int, int] = {}
        self.delivered: dict[int, int] = {}
        self.zombies: list[Process] = []
        self._ids = 0

    def next_id(self) -> int:
        self._ids += 1
        return self._ids

    def number(self) -> int:
        return max(self.checkpoints, default=0)

    def newest(self) -> Checkpoint:
        return self.checkpoints.get(self.number(), Checkpoint())

    def breaks(self, rule: str) -> bool:
        return rule in self.walk.broken

    def fold(self, state: State, segment: Segment) -> tuple[State, bool]:
        """(state after the segment, whether it is valid). A void segment changes nothing."""
        linked = segment.previous == state.last or self.breaks("link-ignored")
        if segment.kind == "CLAIM" and linked and segment.epoch > state.epoch:
            return State(segment.epoch, segment.writer, segment.id, state.end), True
        if segment.kind == "DATA" and linked and (segment.epoch, segment.writer) == (state.epoch, state.writer):
            return replace(state, last=segment.id, end=state.end + 1), True
        return state, False

    def acknowledge(self, segment: Segment) -> None:
        if self.acknowledged.setdefault(segment.offset, segment.value) != segment.value:
            raise Violation(f"offset {segment.offset} acknowledged twice")


def put(
    world: World, chain: dict[int, Segment] | dict[int, Checkpoint], number: int, value: Segment | Checkpoint
) -> Process:
    """Put if absent; returns "won", "lost", "unknown" or "refused". A lost reply is settled by
    reading back.

    "refused": the store is full, and certainly has put nothing.
    """
    objects: dict[int, Segment | Checkpoint] = chain  # type: ignore[assignment]
    yield
    if world.walk.chance(0.05):
        return world.walk.random.choice(("unknown", "refused"))
    if number not in objects:
        objects[number] = value
        if not world.walk.chance(0.1):
            yield
            return "won"
    yield
    found = objects.get(number)
    if found is None and value is objects.setdefault(number, value):
        world.walk.saw("an object was created again after it was deleted")
        return "won"
    return "won" if found is not None and found.id == value.id else "lost"


def recover(world: World) -> Process:
    """(last slot + 1, state) from the newest checkpoint to the first empty slot."""
    while True:
        checkpoint = world.newest()
        yield
        slot, state = checkpoint.slot + 1, checkpoint.state
        while (segment := world.slots.get(slot)) is not None:
            state, _ = world.fold(state, segment)
            slot += 1
            yield
        if world.newest().trim <= checkpoint.slot + 1:
            return slot, state
        world.walk.saw("a fold was not believed")
        yield


@dataclass(slots=True)
class InFlight:
    """`void`: a put at its slot or below it was refused, so it will never count."""

    put: Process
    segment: Segment
    slot: int
    outcome: str | None = None
    void: bool = False


def broker(world: World, name: str) -> Process:
    while True:
        slot, state = yield from recover(world)
        for _ in range(world.walk.random.randrange(6)):
            yield
        claim = Segment(world.next_id(), "CLAIM", state.epoch + 1, (name, world.next_id()), state.last)
        if (yield from put(world, world.slots, slot, claim)) != "won":
            continue
        if world.breaks("no-second-recovery"):
            slot, state = slot + 1, world.fold(state, claim)[0]
        else:
            slot, state = yield from recover(world)
            if state.writer != claim.writer:
                world.walk.saw("a claim was won and opened no term")
                continue
        world.walk.saw("a term was opened")
        yield
        yield from serve(world, slot, state)


@dataclass(slots=True)
class Serving:
    """One term. `durable`: what is acknowledged; `issued`: the same and what is in flight."""

    world: World
    issued_slot: int
    issued: State
    durable_slot: int
    durable: State
    flight: list[InFlight] = field(default_factory=list)
    refusing: bool = False
    """A put was refused, and others behind it are not settled yet: nothing is appended meanwhile."""
    own_voids: set[int] = field(default_factory=set)

    def append(self) -> None:
        world = self.world
        assert self.issued.writer is not None
        while self.issued_slot + 1 in self.own_voids:
            self.issued_slot += 1
        self.issued_slot += 1
        state, id_ = self.issued, world.next_id()
        segment = Segment(id_, "DATA", state.epoch, self.issued.writer, state.last, state.end, world.next_id())
        self.flight.append(InFlight(put(world, world.slots, self.issued_slot, segment), segment, self.issued_slot))
        self.issued = replace(state, last=id_, end=state.end + 1)

    def settle(self) -> None:
        """Void what stands behind a refused put, acknowledge what is won, and go on when all is
        settled.
        """
        world = self.world
        for one in self.flight:
            refused = one.outcome == "refused" and not one.void
            if refused and not world.breaks("refusal-forgotten"):
                self.refusing = True
                for later in self.flight:
                    later.void = later.void or later.slot >= one.slot
                break
        while self.flight and self.flight[0].outcome in ("won", "refused") and not self.flight[0].void:
            self._acknowledge(self.flight.pop(0))
        if self.refusing and all(one.outcome in ("won", "refused") for one in self.flight):
            world.walk.saw("a term went on after a put was refused")
            self.own_voids |= {one.slot for one in self.flight if one.outcome == "won"}
            self.flight.clear()
            self.refusing = False
            if not world.breaks("issued-state-kept"):
                self.issued = self.durable
            self.issued_slot = self.durable_slot

    def _acknowledge(self, one: InFlight) -> None:
        self.world.acknowledge(one.segment)
        self.durable_slot = one.slot
        self.durable = replace(self.durable, last=one.segment.id, end=one.segment.offset + 1)


def serve(world: World, slot: int, state: State) -> Process:
    """One term: append with several puts in flight until one is lost or unknown."""
    assert state.writer is not None
    term = Serving(world, slot - 1, state, slot - 1, state)
    over = False
    for _ in range(world.walk.random.randrange(40)):
        if len(term.flight) < PUTS_IN_FLIGHT and not term.refusing and world.walk.chance(0.6):
            term.append()
        advance(world, term.flight)
        if world.breaks("acknowledged-out-of-order"):
            for one in [one for one in term.flight if one.outcome == "won"]:
                world.acknowledge(one.segment)
                term.flight.remove(one)
        term.settle()
        if world.walk.chance(0.15):
            lowest = term.flight[0].slot if term.flight else term.issued_slot + 1
            highest = max(term.issued_slot, *term.own_voids, 0)
            over = yield from fence_check(world, state.writer, lowest, highest, term.durable.end)
        if any(one.outcome in ("lost", "unknown") for one in term.flight):
            world.walk.saw("a term was lost")
            over = True
        yield
        if over:
            break
    world.zombies += [one.put for one in term.flight if one.outcome is None]  # these may still land


def advance(world: World, flight: list[InFlight]) -> None:
    waiting = [one for one in flight if one.outcome is None]
    if waiting:
        one = world.walk.random.choice(waiting)
        try:
            next(one.put)
        except StopIteration as ended:
            one.outcome = ended.value


def fence_check(world: World, writer: Writer, slot: int, highest: int, acknowledged: int) -> Process:
    """May the owner answer a question about its state? Return True when it is fenced.

    An empty slot proves nothing if the owner has put it itself: the put may have landed and been
    deleted.
    """
    truth = max(world.acknowledged, default=-1) + 1
    while True:
        yield
        segment = world.slots.get(slot)
        if segment is None and (slot > highest or world.breaks("narrow-fence-check")):
            world.walk.saw("a question was answered after a fence check")
            if acknowledged < truth:
                raise Violation(f"answered {acknowledged}; {truth} was acknowledged before the question")
            return False
        if segment is not None and segment.kind == "CLAIM" and segment.writer != writer:
            world.walk.saw("a fence check found a later claim")
            return True
        slot += 1


def compactor(world: World) -> Process:
    """Freeze a plan that names each valid DATA slot, commit it as a checkpoint, delete exactly what
    finished plans name.
    """
    while True:
        for _ in range(world.walk.random.randrange(8)):
            yield
        base = world.newest()
        yield
        plan = yield from make_plan(world, base)
        if plan is None or world.newest().trim > base.slot + 1:
            continue
        number = base.finished + 1
        yield
        plan = world.plans.setdefault(number, plan)
        yield
        if world.newest().finished != number - 1:
            world.walk.saw("a plan was overtaken while it was run")
            continue
        chain, newest = world.number(), world.newest()
        if newest.finished != number - 1:
            continue
        commit = Checkpoint(world.next_id(), plan.slot, plan.slot + 1, plan.state, plan.parquet, number)
        if (yield from put(world, world.checkpoints, chain + 1, commit)) != "won":
            continue
        world.walk.saw("a plan was finished")
        yield
        yield from delete(world, world.newest())


def make_plan(world: World, base: Checkpoint) -> Process:
    slot, state, parquet, named = base.slot, base.state, list(base.parquet), []
    for _ in range(world.walk.random.randrange(1, 8)):
        segment = world.slots.get(slot + 1)
        if segment is None:
            break
        state, valid = world.fold(state, segment)
        slot += 1
        if valid and segment.kind == "DATA":
            parquet.append((segment.offset, segment.value))
            named.append(slot)
        yield
    return Plan(slot, state, tuple(parquet), tuple(named)) if slot > base.slot else None


def delete(world: World, checkpoint: Checkpoint) -> Process:
    yield
    if world.breaks("claims-deleted") or world.breaks("voids-deleted"):
        for slot in sorted(slot for slot in world.slots if slot < checkpoint.trim):
            if world.breaks("claims-deleted") or (slot in world.slots and world.slots[slot].kind != "CLAIM"):
                world.slots.pop(slot, None)
                yield
    for number in sorted(number for number in world.plans if number <= checkpoint.finished):
        plan = world.plans.get(number)
        for slot in plan.named if plan is not None else ():
            if slot < checkpoint.trim and slot in world.slots:
                del world.slots[slot]
                world.walk.saw("a segment was deleted")
            yield
        world.plans.pop(number, None)
        yield
    for number in [number for number in world.checkpoints if number < world.number()]:
        world.checkpoints.pop(number, None)


@dataclass(slots=True)
class Reader:
    """Delivers offsets in order.

    On any surprise it begins again, by offset, from the newest checkpoint.
    """

    world: World
    position: int = 0

    def deliver(self, offset: int, value: int) -> None:
        if offset > self.position:
            raise Violation(f"a reader skipped from {self.position} to {offset}")
        if offset == self.position:
            if self.world.delivered.setdefault(offset, value) != value:
                raise Violation(f"offset {offset} has two values")
            self.position += 1

    def run(self) -> Process:
        world = self.world
        checkpoint = world.newest()
        slot, state = self._begin(checkpoint)
        since = slot
        while True:
            yield
            segment = world.slots.get(slot)
            if segment is not None:
                after, valid = world.fold(state, segment)
                if valid and segment.kind == "DATA":
                    self.deliver(state.end, segment.value)
                if valid:
                    state, slot = after, slot + 1
                    continue
                if world.breaks("void-believed"):
                    slot += 1
                    since = slot
                    continue
            checkpoint = world.newest()
            yield
            if checkpoint.trim > (slot if world.breaks("narrow-reader-check") else since):
                world.walk.saw("a reader began again")
                slot, state = self._begin(checkpoint)
                since = slot
            elif segment is not None:  # void, and not trimmed
                slot += 1
                since = slot

    def _begin(self, checkpoint: Checkpoint) -> tuple[int, State]:
        for offset, value in checkpoint.parquet:
            self.deliver(offset, value)
        return checkpoint.slot + 1, checkpoint.state


def check(world: World) -> int:
    """Judge what is stored at the end; return the number of records."""
    checkpoint = world.newest()
    slot, state, stored = checkpoint.slot + 1, checkpoint.state, dict(checkpoint.parquet)
    while (segment := world.slots.get(slot)) is not None:
        after, valid = world.fold(state, segment)
        if valid and segment.kind == "DATA":
            stored[state.end] = segment.value
        state, slot = after, slot + 1
    if sorted(stored) != list(range(len(stored))):
        raise Violation("offsets are not dense")
    for what, expected in (("acknowledged", world.acknowledged), ("delivered", world.delivered)):
        for offset, value in expected.items():
            if stored.get(offset) != value:
                raise Violation(f"{what} {offset}={value}, stored {stored.get(offset)}")
    return len(stored)


def run(walk: Walk) -> None:
    world = World(walk)
    readers = [Reader(world), Reader(world)]
    reading = [reader.run() for reader in readers]
    processes = [*(broker(world, f"b{i}") for i in range(3)), compactor(world), compactor(world), *reading]
    speeds = [walk.random.choice(SPEEDS) for _ in processes]
    asleep: set[int] = set()
    for _ in range(STEPS):
        everyone = [*processes, *world.zombies]
        if walk.chance(0.03):
            asleep.add(walk.random.randrange(len(everyone)))
        if asleep and walk.chance(0.02):
            asleep.discard(walk.random.choice(sorted(asleep)))
        weights = speeds + [ZOMBIE_SPEED] * len(world.zombies)
        (chosen,) = walk.random.choices(range(len(everyone)), weights)
        if chosen not in asleep:
            next(everyone[chosen], None)
    total = check(world)
    for reader, process in zip(readers, reading, strict=True):
        for _ in range(3 * (len(world.slots) + total) + 50):
            next(process)
        if reader.position != total:
            raise Violation(f"a reader that was left alone is stuck at {reader.position} of {total}")
    walk.saw("records acknowledged", len(world.acknowledged))


LEDGER = Model(
    "ledger",
    run,
    MUTANTS,
    (
        "a term was opened",
        "a term was lost",
        "a term went on after a put was refused",
        "a claim was won and opened no term",
        "a fold was not believed",
        "a question was answered after a fence check",
        "a fence check found a later claim",
        "a plan was finished",
        "a plan was overtaken while it was run",
        "a segment was deleted",
        "a reader began again",
        "records acknowledged",
    ),
)
