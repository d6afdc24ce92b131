"""Model of the producer that has a partition for itself: how it is registered, replaced and fenced.

The ledger below is taken for granted (`tests.models.ledger`): its newest term appends, an older one
may live on and answer from what it knew. A *holder* is a record in the partition's own ledger: the
producer id that may write, and a number that every change of the holder raises. Its *lease* is known
to the term alone. An opener states the number it has seen.

Invariants: once an open is acknowledged, no record of an earlier holder, and none of a shared
producer, is appended. An exclusive producer never replaces one that was acknowledged within the
lease. A producer that lost the partition never has it again. A producer that is reported as fenced
is fenced, and the record that was refused is not stored. An acknowledged record is stored once, in
order. A *stranger* is another principal that has learnt the holder's id: nothing that it sends under this id is
appended, and the holder does not leave by it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from tests.models.terms import NOT_OWNER, Term, TermsWorld
from tests.models.walk import Model, Process, Violation, Walk

STEPS = 8000
STEPS_AT_REST = 3000
LEASE_STEPS = 700
OK, BUSY, CHANGED, FENCED, HELD = "ok", "busy", "changed", "fenced", "held"
EXCLUSIVE, WAIT, FENCING = "exclusive", "wait_for_exclusive", "exclusive_with_fencing"
SHARED = 0
"""The producer id of all shared producers."""

MUTANTS = {
    "opened-from-memory": "the record of a holder is durable before its open is acknowledged",
    "former-holder-writes": "only the present holder writes, not any producer that was one",
    "lease-over-at-takeover": "a new term gives the holder a whole lease",
    "shared-beside-exclusive": "shared producers are refused while a holder has the partition",
    "expired-holder-stays": "a record removes an expired holder before a shared producer writes",
    "late-open-counts": "an open counts only if the number is still the one that the opener saw",
    "refused-before-repetition": "a batch that is stored is acknowledged again, also when its producer is fenced",
    "fenced-by-an-old-owner": "a producer is reported as fenced only after a fence check",
    "renewed-by-an-old-owner": "a lease is renewed only after a fence check",
    "any-principal-is-the-holder": "the holder is a producer id and the principal that opened with it",
}


@dataclass(slots=True)
class State:
    """The fold of the ledger."""

    holder: int = SHARED
    number: int = 0
    log: list[tuple[int, int]] = field(default_factory=list)
    """(producer id, sequence)"""


class World(TermsWorld[State]):
    def __init__(self, walk: Walk) -> None:
        self.renewed_at: dict[Term[State], int] = {}
        super().__init__(walk, [State()], late_within=2500)
        self.renewed_at[self.terms[0]] = 0
        self.holder = SHARED
        """The last holder whose open was acknowledged, unless it left or was removed."""
        self.was_holder: set[int] = set()
        self.lost: set[int] = set()
        self.acknowledged_at: dict[int, int] = {}
        """Producer id -> when an owner last acknowledged that it holds the partition."""
        self.acknowledged: set[tuple[int, int]] = set()

    def successor(self, before: Term[State]) -> Term[State]:
        after = super().successor(before)
        expired = self.breaks("lease-over-at-takeover")
        self.renewed_at[after] = self.now - LEASE_STEPS - 1 if expired else self.now
        return after

    def renew(self, term: Term[State], producer: int) -> None:
        self.renewed_at[term] = self.now
        self.acknowledged_at[producer] = self.now

    def is_alive(self, term: Term[State]) -> bool:
        return self.now - self.renewed_at[term] <= LEASE_STEPS

    def opened(self, term: Term[State], producer: int) -> str:
        """Acknowledge an open."""
        self.renew(term, producer)
        self.holder = producer
        self.was_holder.add(producer)
        return OK

    def removed(self, producer: int) -> None:
        self.lost.add(producer)
        if self.holder == producer:
            self.holder = SHARED


def see(term: Term[State], world: World, seen: list[int]) -> str:
    """Report the number; it may come from a term that is over."""
    seen[:] = [term.state.number]
    return OK


def is_holder(term: Term[State], world: World, producer: int, stranger: bool) -> bool:
    return term.state.holder == producer and (not stranger or world.breaks("any-principal-is-the-holder"))


def open_producer(term: Term[State], world: World, producer: int, mode: str, seen: int) -> str:
    state = term.state
    if state.holder == producer:
        return world.opened(term, producer) if term.is_current else NOT_OWNER
    if state.number != seen and not world.breaks("late-open-counts"):
        return term.final(CHANGED)
    former = state.holder
    if former and mode != FENCING and world.is_alive(term):
        return term.final(BUSY)
    if world.breaks("opened-from-memory"):
        if not term.is_current:
            return NOT_OWNER
        answered = world.opened(term, producer)
        if world.walk.chance(0.3):  # the term ends before the record is stored
            world.claim(term.ledger)
            return answered

    def change(state: State) -> None:
        since = world.now - world.acknowledged_at.get(former, -LEASE_STEPS - 1)
        if former and mode != FENCING and since <= LEASE_STEPS:
            raise Violation(f"{producer} replaces {former}, which was acknowledged {since} steps ago")
        if producer in world.lost:
            raise Violation(f"{producer} lost the partition, and has it again")
        state.holder, state.number = producer, state.number + 1
        if former:
            world.removed(former)
            world.walk.saw("a holder was fenced" if mode == FENCING else "an expired holder was replaced")

    if not term.append(change):
        return NOT_OWNER
    world.walk.saw(f"opened as {mode}")
    return world.opened(term, producer)


def renew(term: Term[State], world: World, producer: int) -> str:
    if term.state.holder != producer:
        return FENCED if world.breaks("fenced-by-an-old-owner") else term.final(FENCED)
    if not term.is_current and not world.breaks("renewed-by-an-old-owner"):
        return NOT_OWNER
    world.renew(term, producer)
    return OK


def close(term: Term[State], world: World, producer: int, *, stranger: bool = False) -> str:
    if not is_holder(term, world, producer, stranger):
        return term.final(OK)

    def change(state: State) -> None:
        if stranger:
            raise Violation(f"a stranger ended the hold of {producer}")
        state.holder, state.number = SHARED, state.number + 1
        world.removed(producer)
        world.walk.saw("a holder left")

    return OK if term.append(change) else NOT_OWNER


def send(term: Term[State], world: World, producer: int, sequence: int, *, stranger: bool = False) -> str:
    state = term.state
    if stranger and not is_holder(term, world, producer, stranger):
        return term.final(FENCED)
    if (producer, sequence) in state.log and not world.breaks("refused-before-repetition"):
        return term.final(OK)
    if producer != state.holder:
        if producer == SHARED:
            return share(term, world, sequence)
        if not (world.breaks("former-holder-writes") and producer in world.was_holder):
            return FENCED if world.breaks("fenced-by-an-old-owner") else term.final(FENCED)
    if not append(term, world, producer, sequence, stranger=stranger):
        return NOT_OWNER
    if producer != SHARED:
        world.renew(term, producer)
    return OK


def share(term: Term[State], world: World, sequence: int) -> str:
    """Append a shared producer's record while the partition has a holder, if that one is expired."""
    holder = term.state.holder
    if world.is_alive(term) and not world.breaks("shared-beside-exclusive"):
        world.walk.saw("a shared producer was refused")
        return term.final(HELD)

    def remove(state: State) -> None:
        state.holder, state.number = SHARED, state.number + 1
        world.removed(holder)
        world.walk.saw("an expired holder was removed")

    stays = world.breaks("expired-holder-stays") or world.breaks("shared-beside-exclusive")
    if not stays and not term.append(remove):
        return NOT_OWNER
    return OK if append(term, world, SHARED, sequence) else NOT_OWNER


def append(term: Term[State], world: World, producer: int, sequence: int, *, stranger: bool = False) -> bool:
    def change(state: State) -> None:
        if stranger:
            raise Violation(f"a record of a stranger under the id of {producer}")
        if producer != world.holder:
            raise Violation(f"a record of {producer or 'a shared producer'} while {world.holder} has the partition")
        state.log.append((producer, sequence))

    return term.append(change)


def exclusive(world: World) -> Process:
    """A program that opens the partition again and again, and writes while it has it."""
    random = world.walk.random
    while not world.healed:
        seen: list[int] = []
        mode = random.choice((EXCLUSIVE, WAIT, FENCING))
        producer = world.next_id()
        answer = yield from world.call(0, see, world, seen)
        while seen and not world.healed:
            answer = yield from world.call(0, open_producer, world, producer, mode, seen[0])
            if answer in (OK, CHANGED) or (answer == BUSY and mode != WAIT):
                break
        if answer == BUSY:
            world.walk.saw("an exclusive producer was refused")
        if answer == OK:
            yield from write(world, producer)
        for _ in range(random.randrange(60)):
            yield


def write(world: World, producer: int) -> Process:
    random = world.walk.random
    for sequence in range(random.randrange(1, 12)):
        answer = ""
        while answer != OK and not world.healed:
            answer = yield from world.call(0, send, world, producer, sequence)
            if answer == FENCED:
                if (producer, sequence) in world.terms[0].state.log:
                    raise Violation(f"sequence {sequence} of {producer} is reported as fenced, and is stored")
                return check_fenced(world, producer)
        if answer != OK:
            return
        world.acknowledged.add((producer, sequence))
        for _ in range(random.randrange(12)):
            yield
        if random.random() < 0.3:
            answer = yield from world.call(0, renew, world, producer)
            if answer == FENCED:
                return check_fenced(world, producer)
    if random.random() < 0.6:
        yield from world.call(0, close, world, producer)


def check_fenced(world: World, producer: int) -> None:
    if world.terms[0].state.holder == producer:
        raise Violation(f"{producer} is reported as fenced, and has the partition")
    world.walk.saw("a producer learned that it is fenced")


def shared(world: World) -> Process:
    sequence = 0
    while not world.healed:
        answer = yield from world.call(0, send, world, SHARED, sequence)
        if answer == OK:
            world.acknowledged.add((SHARED, sequence))
            sequence += 1
        for _ in range(world.walk.random.randrange(30)):
            yield


def thief(world: World) -> Process:
    """Another principal, which has learnt the id of the holder."""
    random = world.walk.random
    while not world.healed:
        producer = world.holder
        if producer != SHARED:
            following = sum(id_ == producer for id_, _ in world.terms[0].state.log)
            call = random.choice((partial(send, sequence=following), close))
            answer = yield from world.call(0, partial(call, stranger=True), world, producer)
            if answer == FENCED:
                world.walk.saw("a stranger was refused")
        for _ in range(random.randrange(60)):
            yield


def run(walk: Walk) -> None:
    world = World(walk)
    world.run(
        [exclusive(world), exclusive(world), exclusive(world), shared(world), thief(world)],
        STEPS,
        STEPS_AT_REST,
        sleep=range(100, 2500),
    )
    check(world)


def check(world: World) -> None:
    state = world.terms[0].state
    if lost := world.acknowledged - set(state.log):
        raise Violation(f"acknowledged and lost: {sorted(lost)[:4]}")
    if len(state.log) != len(set(state.log)):
        raise Violation("a record is stored twice")
    last: dict[int, int] = {}
    for producer, sequence in state.log:
        if sequence != last.get(producer, -1) + 1:
            raise Violation(f"sequence {sequence} of {producer} comes after {last.get(producer)}")
        last[producer] = sequence
    world.walk.saw("records stored", len(state.log))
    former = state.holder
    if open_producer(world.terms[0], world, world.next_id(), FENCING, state.number) != OK:
        raise Violation("the partition cannot be taken over at rest")
    if former and send(world.terms[0], world, former, last.get(former, -1) + 1) != FENCED:
        raise Violation(f"{former} was replaced, and may write")


ACCESS = Model(
    "access",
    run,
    MUTANTS,
    (
        "a ledger changed hands",
        "an old owner was called",
        "a late double of a call",
        f"opened as {EXCLUSIVE}",
        f"opened as {WAIT}",
        f"opened as {FENCING}",
        "a holder was fenced",
        "a holder left",
        "an expired holder was replaced",
        "an expired holder was removed",
        "an exclusive producer was refused",
        "a shared producer was refused",
        "a producer learned that it is fenced",
        "a stranger was refused",
        "records stored",
    ),
)
