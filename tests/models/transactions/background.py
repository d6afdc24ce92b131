"""What brokers do in the background: complete, copy, ask, carry forward, expire."""

from __future__ import annotations

from functools import partial

from tests.models.terms import Term
from tests.models.transactions.bundle import (
    admit,
    carry,
    complete,
    forget,
    keep_unresolved,
    next_chunk,
    show,
    stage,
    staged_values,
)
from tests.models.transactions.coordinator import ask, confirm, expire, finish, is_expired, may_expire
from tests.models.transactions.state import (
    ABORT,
    COMMIT,
    COORDINATORS,
    DONE,
    EXPIRED,
    LATE_WITHIN,
    OK,
    OUTPUTS,
    OVER,
    PREPARED,
    RETRY,
    UNRESOLVED,
    UNRESOLVED_LEDGER,
    UNSURE,
    Known,
    Part,
    Staged,
    State,
    TransactionId,
    World,
)
from tests.models.walk import Process

CARRY_AGE = 150
THIEF = "thief"


def thief(world: World) -> Process:
    """A program that has learned producer ids of others, and stages under them beside an id of its own."""
    made = 0
    while not world.healed:
        yield
        bundle = world.walk.random.choice(OUTPUTS)
        staged = [each for each in world.owner(bundle).state.staged if not each.name.startswith(THIEF)]
        if staged and world.walk.chance(0.02):
            made += 1
            other = world.walk.random.choice(staged)
            number = other.number + world.walk.random.randrange(2)
            stolen = other._replace(name=f"{THIEF}{made}", number=number)
            if (yield from world.call(world.walk.random.choice(OUTPUTS), stage, stolen, 0, (-made,))) == OK:
                world.walk.saw("a thief has staged")


def background(world: World) -> list[Process]:
    """Return what runs in the brokers of every world."""
    return [
        completer(world),
        completer(world),
        *(housekeeper(world, bundle) for bundle in OUTPUTS),
        expirer(world),
        *(forgetter(world, bundle) for bundle in OUTPUTS),
        *(copier(world, bundle) for bundle in (*OUTPUTS, *OUTPUTS)),
        *(carrier(world, bundle) for bundle in OUTPUTS),
    ]


def completer(world: World) -> Process:
    """Complete decided transactions. Any term that assumes that it is the coordinator's may try."""
    while not world.at_rest():
        yield
        for ledger in COORDINATORS:
            term = world.owner(ledger)
            for name, known in list(term.state.known.items()):
                if not known.complete and known.decided != PREPARED:
                    yield from complete_everywhere(world, term, name, known)


def complete_everywhere(world: World, term: Term[State], name: str, known: Known) -> Process:
    transaction = TransactionId(name, known.producer, known.epoch, known.number)
    assert known.decided is not None
    done = True
    for bundle, part in sorted(known.parts.items()):
        if bundle in known.given_up or (transaction, bundle) in term.memory:
            continue
        if known.decided == UNRESOLVED:
            answer = yield from set_aside(world, bundle, transaction, part)
        else:
            answer = yield from world.call(bundle, complete, transaction, known.decided, part)
        if answer == UNSURE:
            answer = yield from confirm_and_complete(world, bundle, transaction, part)
        done = done and answer == DONE
        if answer == DONE and world.breaks("complete-after-one"):
            done = True
            break
    if done:
        yield from world.call(term.ledger, finish, transaction)


def set_aside(world: World, bundle: int, transaction: TransactionId, part: Part) -> Process:
    """Copy a half message for operators. Its staged batch is dropped when the copy is durable."""
    values = yield from world.call(bundle, staged_values, transaction)
    if isinstance(values, str):
        return values
    if values:
        kept = yield from world.call(UNRESOLVED_LEDGER, keep_unresolved, transaction, values)
        if kept != OK and not world.breaks("gone-before-copied"):
            return kept
    return (yield from world.call(bundle, complete, transaction, ABORT, part))


def confirm_and_complete(world: World, bundle: int, transaction: TransactionId, part: Part) -> Process:
    """Ask the coordinator whether a commit is a late one, because the bundle's note may be gone."""
    term = world.owner(bundle)
    notes_gone = term.state.notes_gone
    said = yield from world.call(world.coordinator(transaction.name), confirm, transaction)
    until = world.now + (0 if world.healed or world.walk.chance(0.8) else world.walk.random.randrange(LATE_WITHIN))
    while world.now < until and not world.healed:
        yield  # the answer is late
    if said != COMMIT:
        world.walk.saw("a late commit was not confirmed", said == OVER)
        return DONE if said == OVER else said
    if term.state.notes_gone != notes_gone and not world.breaks("confirmed-before"):
        return RETRY
    return complete(term, transaction, COMMIT, part, confirmed=True)


def expirer(world: World) -> Process:
    """The coordinator forgets ids that nothing has used for long."""
    while not world.at_rest():
        yield
        for ledger in COORDINATORS:
            term = world.owner(ledger)
            for name, known in list(term.state.known.items()):
                old = world.now - known.at > 3 * world.ask_after and may_expire(world, name, known)
                if old and term.append(partial(expire, name=name)):
                    world.walk.saw("an id expired")


def forgetter(world: World, bundle: int) -> Process:
    """Drop notes of producers whose id has expired."""
    while not world.at_rest():
        yield
        term = world.owner(bundle)
        for note in [note for note in term.state.notes.values() if note.finished]:
            if not world.walk.chance(0.2):
                continue
            coordinator = world.coordinator(note.transaction.name)
            if (
                not world.breaks("note-by-age")
                and (yield from world.call(coordinator, is_expired, note.transaction)) != EXPIRED
            ):
                continue
            if term.state.notes.get(note.transaction.producer) == note and term.append(partial(forget, note=note)):
                world.walk.saw("a note went")


def housekeeper(world: World, bundle: int) -> Process:
    """Ask the coordinator about what has been staged for too long."""
    while not world.at_rest():
        yield
        state = world.owner(bundle).state
        staged = [transaction for transaction, kept in state.staged.items() if world.now - kept.at > world.ask_after]
        pending = [
            transaction for transaction, (at, _) in state.group.pending.items() if world.now - at > world.ask_after
        ]
        for transaction in sorted({*staged, *pending}):
            batches = len(state.staged.get(transaction, Staged(0)).references)
            coordinator = world.coordinator(transaction.name)
            if (yield from world.call(coordinator, ask, transaction, {bundle: Part(batches, False)})) == ABORT:
                yield from world.call(bundle, complete, transaction, ABORT, Part(0, False))


def copier(world: World, bundle: int) -> Process:
    """Continue the completions that have begun by the bundle's log."""
    while not world.at_rest():
        yield
        term = world.owner(bundle)
        for producer, note in list(term.state.notes.items()):
            if note.finished or (world.breaks("resume-from-memory") and note.transaction not in term.memory):
                continue
            copies, after = next_chunk(term, note)
            for _ in range(world.walk.random.choice((2, 20))):
                yield  # the staged bytes are read
            if term.state.notes.get(producer) != note and not world.breaks("chunk-not-judged-again"):
                continue
            if world.breaks("note-after-chunk"):
                term.append(partial(show, term, transaction=note.transaction, values=copies))
                copies = ()
                yield
            if term.append(partial(admit, term, copies=copies, note=after)):
                world.walk.saw("a chunk was copied")


def carrier(world: World, bundle: int) -> Process:
    while not world.at_rest():
        yield
        term = world.owner(bundle)
        aged = [
            (transaction, reference)
            for transaction, staged in term.state.staged.items()
            for reference in staged.references
            if world.now - reference.at > CARRY_AGE
        ]
        if aged:
            transaction, reference = world.walk.random.choice(aged)
            for _ in range(2):
                yield  # the staged bytes are read
            carry(term, transaction, reference)
