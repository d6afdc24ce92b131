"""Model of transactions: staged batches, one decision record, copies at completion.

The ledger below is taken for granted (`tests.models.ledger`): only a bundle's newest term appends,
an older one may live on and answer from what it knew. Bundle 0 holds the coordinator, bundle 1
output 0 and the group's offsets, bundle 2 output 1. Workers read items 0, 1, … of one input
partition, write each to both outputs and commit the input offset, in one transaction. Two workers
share a transactional id; all of them pause, die and come back as zombies. A bundle completes a
commit chunk by chunk, one batch in each; what is staged for long is carried forward. A manager
prepares transactions, each with an id of its own, and resolves them later. The group's member
commits plainly too; ids that are idle expire, and the notes about them go. Invariants: each item
below the committed offset is visible once in each output, in order; none above it is; what was
prepared is committed or rolled back as the manager said; no part of an aborted transaction ever
becomes visible; once all is quiet nothing is staged, pending or undecided.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from tests.models.terms import NOT_OWNER, UNKNOWN, Term, TermsWorld
from tests.models.walk import Model, Process, Violation, Walk

STEPS = 12_000
STEPS_AT_REST = 40_000
STAGED_AGE_MAX = 300
CARRY_AGE = 150
ID_AGE_MAX = 1000
LATE_WITHIN = 3000
ITEMS_AT_REST = 40
RETRY = "RETRY"
OK, OVER, FENCED, DONE, COMMIT, ABORT = "ok", "over", "fenced", "done", "commit", "abort"
GAP, CONFLICT = "gap", "conflict"
EXPIRED, KEPT, UNSURE, PREPARED = "expired", "kept", "unsure", "prepared"
XID = "xid"
XIDS_OPEN_MAX = 3
NO_ANSWER = (NOT_OWNER, UNKNOWN, RETRY)

MUTANTS = {
    "init-during-commit": "a new epoch waits until the commit of the epoch before is complete",
    "ask-without-fence": (
        "a coordinator answers a bundle only after a fence check, and never about a later epoch than it knows"
    ),
    "ask-does-not-decide": "an abort that is answered to a question is recorded first",
    "order-without-epoch": "the order of transactions is that of pairs (epoch, number)",
    "no-finished-memory": "a bundle remembers the last transaction of each producer that it has completed",
    "offsets-not-fenced": "staged offsets are fenced by the group's member and epoch",
    "no-count": "completion links just as many batches as the decision counted",
    "pending-ignored": "a committed offset is not answered while another is pending",
    "complete-after-one": "a transaction is complete when all of its bundles are",
    "done-when-begun": "a bundle says done once the last chunk of a completion is durable",
    "copied-not-counted": "a decision's counts are compared with what is copied and what is staged",
    "resume-from-memory": "the next owner resumes a completion from its log",
    "chunk-not-judged-again": "a chunk is judged again, after its bytes were read, in the turn that admits it",
    "carry-of-the-dead": "carry-forward replaces only references that are alive in the turn that admits it",
    "leftovers-stay": "a completion at or below the note drops leftovers before it says done",
    "xid-in-order": "each xid is a transactional id of its own, with a producer id of its own",
    "init-aborts-prepared": "a new epoch never aborts what is prepared",
    "age-aborts-prepared": "a question about age never aborts what is prepared",
    "expire-prepared": "an id with something prepared never expires",
    "plain-over-pending": "a plain commit waits while an offset of its partition is pending",
    "offset-key-without-epoch": "keys of pending offsets carry the pair (epoch, number)",
    "duplicate-by-sequence": "a duplicate is a batch that equals the one stored, else the transaction can only abort",
    "note-by-age": "a note goes only when the coordinator says that the id expired",
    "expiry-without-fence": "a coordinator says that an id expired only after a fence check",
    "expire-incomplete": "an id with an incomplete commit never expires",
    "note-by-abort": "an abort moves a note on, and writes none where there is none: that one would confirm commits",
    "commit-unconfirmed": "a commit for a producer without a note is confirmed with the coordinator",
    "confirmed-before": "a confirmation counts only while no note has gone since it was asked for",
    "note-after-chunk": "a chunk's copies, the end of their references and the note are one segment",
}


class TransactionId(NamedTuple):
    name: str
    """The transactional id that the program chose."""
    producer: int
    epoch: int
    number: int


@dataclass(frozen=True, slots=True)
class Part:
    """What a decision counts of one bundle."""

    batches: int
    has_offset: bool


@dataclass(frozen=True, slots=True)
class Known:
    """The coordinator's record of one transactional id."""

    producer: int
    epoch: int
    number: int = 0
    decided: str | None = None
    parts: dict[int, Part] = field(default_factory=dict)
    complete: bool = True
    at: int = 0
    """when it was last used"""


@dataclass(frozen=True, slots=True)
class Reference:
    """One staged batch. `at`: when it was written, or carried forward."""

    at: int
    sequence: int
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Staged:
    at: int
    references: tuple[Reference, ...] = ()
    """In the order of sequences; a completion takes them away from the front."""


@dataclass(frozen=True, slots=True)
class Note:
    """How far a bundle is with the last transaction of a producer that it completes."""

    transaction: TransactionId
    part: Part
    copied: int
    """the next sequence to copy"""
    finished: bool

    @property
    def pair(self) -> tuple[int, int]:
        return self.transaction.epoch, self.transaction.number


@dataclass(slots=True)
class Group:
    epoch: int = 0
    member: str | None = None
    committed: int = 0
    pending: dict[TransactionId, tuple[int, int]] = field(default_factory=dict)
    """(staged at, offset)"""
    plain_at: int = 0
    """when an offset was last committed plainly"""


@dataclass(slots=True)
class State:
    """The fold of one bundle's log, as far as a term knows it."""

    known: dict[str, Known] = field(default_factory=dict)
    staged: dict[TransactionId, Staged] = field(default_factory=dict)
    notes: dict[int, Note] = field(default_factory=dict)
    """producer -> its last transaction that is, or was, completed here"""
    notes_gone: int = 0
    visible: list[int] = field(default_factory=list)
    visible_of_xids: list[int] = field(default_factory=list)
    group: Group = field(default_factory=Group)


class World(TermsWorld[State]):
    def __init__(self, walk: Walk) -> None:
        super().__init__(walk, [State() for _ in range(3)], late_within=LATE_WITHIN)
        self.aborted: set[TransactionId] = set()
        self.prepared: dict[TransactionId, int] = {}
        """what the manager was told is prepared -> its value"""
        self.committed: list[int] = []
        """values of what was prepared and then committed"""
        self.working = 0
        """how many workers have something left to do"""

    def at_rest(self) -> bool:
        """Nothing will happen any more: background processes may end."""
        if not self.healed or self.working or not all(known.complete for known in self.terms[0].state.known.values()):
            return False
        return not any(term.state.staged or term.state.group.pending for term in self.terms)


def call_until_answered(world: World, bundle: int, method: Callable[..., Any], *arguments: Any) -> Process:
    while True:
        answer = yield from world.call(bundle, method, *arguments)
        if answer not in NO_ANSWER:
            return answer
        yield


# The coordinator, in bundle 0.


def init(term: Term[State], name: str) -> tuple[int, int] | str:
    """Return (producer, epoch), and fence whatever worked under this transactional id before.

    What an older epoch left undecided is thereby aborted.
    """
    known = term.state.known.get(name)
    if known and known.decided == COMMIT and not known.complete and not term.world.breaks("init-during-commit"):
        return RETRY
    if known and known.decided == PREPARED and not term.world.breaks("init-aborts-prepared"):
        return term.final(PREPARED)
    now = term.world.now
    shared = name.startswith(XID) and term.world.breaks("xid-in-order")
    producer = known.producer if known else 0 if shared else term.world.next_id()
    new = Known(producer, known.epoch + 1 if known and not shared else 1, at=now)
    return (new.producer, new.epoch) if term.append(lambda state: state.known.update({name: new})) else NOT_OWNER


def decide(term: Term[State], transaction: TransactionId, outcome: str, parts: dict[int, Part]) -> str:
    """Record the outcome; answer the one that counts. Numbers count from 1 in each epoch."""
    known = term.state.known.get(transaction.name)
    if known is None or (known.producer, known.epoch) != (transaction.producer, transaction.epoch):
        return term.final(FENCED)
    if transaction.number == known.number and known.decided == PREPARED != outcome:
        return _record(term, transaction, known, outcome, known.parts, complete=False)
    if transaction.number == known.number and known.decided:
        return term.final(known.decided)
    if transaction.number <= known.number:
        return term.final(FENCED)
    if not known.complete:
        return RETRY  # the one before has to be completed first
    return _record(term, transaction, known, outcome, parts, complete=False)


def _record(
    term: Term[State], transaction: TransactionId, known: Known, outcome: str, parts: dict[int, Part], complete: bool
) -> str:
    new = replace(known, number=transaction.number, decided=outcome, parts=parts, complete=complete, at=term.world.now)
    if not term.append(lambda state: state.known.update({transaction.name: new})):
        return NOT_OWNER
    if transaction.name.startswith(XID):
        term.world.walk.saw(f"{XID}: {outcome}")
    if outcome == ABORT:
        term.world.aborted.add(transaction)
    return outcome


def ask(term: Term[State], transaction: TransactionId) -> str:
    """A bundle holds something staged for too long.

    Presumed abort, but only as a fact that lasts.
    """
    known, broken = term.state.known.get(transaction.name), term.world.breaks("ask-without-fence")
    abort = ABORT if broken else term.final(ABORT)
    if known is None or known.producer != transaction.producer or known.epoch > transaction.epoch:
        return abort  # an epoch begins only once all commits before it are complete
    if known.epoch < transaction.epoch:
        return abort if broken else term.final(RETRY)
    if transaction.number < known.number:
        return abort
    if transaction.number == known.number and known.decided == PREPARED:
        aged = term.world.breaks("age-aborts-prepared")
        return _record(term, transaction, known, ABORT, {}, complete=True) if aged else RETRY
    if transaction.number == known.number:
        completing = known.decided == COMMIT and not known.complete
        return RETRY if completing else abort  # complete: what is still staged is a late double that was not counted
    if term.world.breaks("ask-does-not-decide"):
        return abort
    if not known.complete:
        return RETRY
    term.world.walk.saw("a transaction timed out")
    return _record(term, transaction, known, ABORT, {}, complete=True)


def finish(term: Term[State], transaction: TransactionId) -> None:
    known = term.state.known.get(transaction.name)
    if known and (known.producer, known.epoch, known.number) == transaction[1:] and not known.complete:
        term.append(lambda state: state.known.update({transaction.name: replace(known, complete=True)}))


def is_expired(term: Term[State], transaction: TransactionId) -> str:
    """May a bundle forget what it completed of this producer?"""
    known = term.state.known.get(transaction.name)
    if known and known.producer == transaction.producer:
        return KEPT
    return EXPIRED if term.world.breaks("expiry-without-fence") else term.final(EXPIRED)


def confirm(term: Term[State], transaction: TransactionId) -> str:
    """COMMIT: it is decided, and some bundle has not completed it."""
    known = term.state.known.get(transaction.name)
    same = known is not None and (known.producer, known.epoch, known.number) == transaction[1:]
    return term.final(COMMIT if known and same and known.decided == COMMIT and not known.complete else OVER)


# Bundles with data.


def is_over(term: Term[State], transaction: TransactionId) -> bool:
    """Was this transaction, or a later one of its producer, completed here?"""
    note = term.state.notes.get(transaction.producer)
    if note is None or term.world.breaks("no-finished-memory") or is_begun(term, transaction):
        return False
    return not_after(term, (transaction.epoch, transaction.number), note.pair)


def is_begun(term: Term[State], transaction: TransactionId) -> bool:
    """Is this very transaction being copied?"""
    note = term.state.notes.get(transaction.producer)
    return note is not None and note.transaction == transaction and not note.finished


def not_after(term: Term[State], one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one <= other or (term.world.breaks("order-without-epoch") and one[1] <= other[1])


def stage(term: Term[State], transaction: TransactionId, sequence: int, values: tuple[int, ...]) -> str:
    """Store a batch, durable and invisible. Sequences count from 0 in each transaction."""
    if is_over(term, transaction) or is_begun(term, transaction):
        return term.final(OVER)
    now = term.world.now
    staged = term.state.staged.get(transaction, Staged(now))
    if sequence != len(staged.references):
        if sequence > len(staged.references):
            return term.final(GAP)
        same = staged.references[sequence].values == values or term.world.breaks("duplicate-by-sequence")
        return term.final(OK if same else CONFLICT)
    new = replace(staged, references=(*staged.references, Reference(now, sequence, values)))
    return OK if term.append(lambda state: state.staged.update({transaction: new})) else NOT_OWNER


def stage_offset(term: Term[State], transaction: TransactionId, member: str, group_epoch: int, offset: int) -> str:
    group = term.state.group
    if is_over(term, transaction) or is_begun(term, transaction):
        return term.final(OVER)
    if (group.member, group.epoch) != (member, group_epoch) and not term.world.breaks("offsets-not-fenced"):
        return term.final(FENCED)
    staged = {offset_key(term, transaction): (term.world.now, offset)}
    return OK if term.append(lambda state: state.group.pending.update(staged)) else NOT_OWNER


def offset_key(term: Term[State], transaction: TransactionId) -> TransactionId:
    return transaction._replace(epoch=0) if term.world.breaks("offset-key-without-epoch") else transaction


def commit_plainly(term: Term[State], member: str, group_epoch: int) -> str:
    """Commit the offset in force once more: the least that a plain commit may do."""
    group, now = term.state.group, term.world.now
    if (group.member, group.epoch) != (member, group_epoch):
        return term.final(FENCED)
    if group.pending and not term.world.breaks("plain-over-pending"):
        return RETRY
    return OK if term.append(lambda state: setattr(state.group, "plain_at", now)) else NOT_OWNER


def complete(term: Term[State], transaction: TransactionId, outcome: str, part: Part, confirmed: bool = False) -> str:
    """Drop what is staged (abort), or begin to copy it (commit), one chunk in each segment."""
    world = term.world
    if is_over(term, transaction):
        left = transaction in term.state.staged and not world.breaks("leftovers-stay")
        return DONE if not left or term.append(lambda state: drop_at_or_below(term, state, transaction)) else NOT_OWNER
    if outcome == ABORT:
        if transaction.producer not in term.state.notes and not world.breaks("note-by-abort"):
            return DONE if term.append(lambda state: drop_at_or_below(term, state, transaction)) else NOT_OWNER
        dropped = Note(transaction, Part(0, False), 0, finished=True)
        return DONE if term.append(partial(note_and_drop, term, note=dropped)) else NOT_OWNER
    if not confirmed and transaction.producer not in term.state.notes and not world.breaks("commit-unconfirmed"):
        return UNSURE
    begun = is_begun(term, transaction)
    count = len(term.state.staged.get(transaction, Staged(0)).references)
    if begun and not world.breaks("copied-not-counted"):
        count += term.state.notes[transaction.producer].copied
    too_few = count < part.batches or (
        part.has_offset and offset_key(term, transaction) not in term.state.group.pending
    )
    if too_few and not world.breaks("no-count"):
        if term.is_current:
            raise Violation(f"{transaction} is decided, and bundle {term.ledger} has not what was counted")
        return NOT_OWNER
    if not begun:
        if world.breaks("no-count"):
            part = replace(part, batches=count)
        copies, note = next_chunk(term, Note(transaction, part, 0, finished=False))
        if not term.append(partial(admit, term, copies=copies, note=note)):
            return NOT_OWNER
        term.memory.add(transaction)
        if note.finished:
            return DONE
    return DONE if world.breaks("done-when-begun") else RETRY


def next_chunk(term: Term[State], note: Note) -> tuple[tuple[int, ...], Note]:
    """Return what the next chunk makes visible, and the note that goes with it."""
    references = term.state.staged.get(note.transaction, Staged(0)).references[: note.part.batches - note.copied]
    copied = note.copied + len(references[:1])
    values = references[0].values if references else ()
    return values, replace(note, copied=copied, finished=copied >= note.part.batches)


def admit(term: Term[State], state: State, copies: tuple[int, ...], note: Note) -> None:
    """One segment: a chunk's copies, the end of their references, the note."""
    show(term, state, note.transaction, copies)
    note_and_drop(term, state, note)


def show(term: Term[State], state: State, transaction: TransactionId, values: tuple[int, ...]) -> None:
    if transaction in term.world.aborted:
        raise Violation(f"{transaction} was aborted and becomes visible")
    shown = state.visible_of_xids if transaction.name.startswith(XID) else state.visible
    shown += values


def note_and_drop(term: Term[State], state: State, note: Note) -> None:
    transaction = note.transaction
    state.notes[transaction.producer] = note
    staged, pending = state.staged.get(transaction), state.group.pending.get(offset_key(term, transaction))
    if staged:
        left = tuple(reference for reference in staged.references if reference.sequence >= note.copied)
        state.staged[transaction] = replace(staged, references=left)
    if note.finished and pending is not None and note.part.has_offset:
        if pending[0] < state.group.plain_at:
            raise Violation(f"{transaction} puts an offset in the place of one that was committed after it")
        state.group.committed = pending[1]
    drop_at_or_below(term, state, transaction, being_copied=not note.finished)


def drop_at_or_below(term: Term[State], state: State, last: TransactionId, being_copied: bool = False) -> None:
    """A producer's transactions are completed in turn: what is older is a late double."""
    for kept in (state.staged, state.group.pending):
        for old in [
            old
            for old in kept
            if old.producer == last.producer
            and not_after(term, (old.epoch, old.number), (last.epoch, last.number))
            and not (being_copied and old in (last, offset_key(term, last)))
        ]:
            del kept[old]


def carry(term: Term[State], transaction: TransactionId, reference: Reference) -> None:
    """Stage a batch again and replace its reference, so that the old segment may go."""
    staged = term.state.staged.get(transaction)
    alive = staged is not None and reference in staged.references
    if not alive:
        term.world.walk.saw("a reference died while its bytes were read")
    if alive or breaks_carry(term.world):
        others = [kept for kept in staged.references if kept != reference] if staged else []
        carried = sorted([*others, replace(reference, at=term.world.now)], key=lambda kept: kept.sequence)
        new = Staged(staged.at if staged else term.world.now, tuple(carried))
        if term.append(lambda state: state.staged.update({transaction: new})):
            term.world.walk.saw("a batch was carried forward")
            if is_over(term, transaction) and not term.world.breaks("leftovers-stay"):
                raise Violation(f"{transaction} is complete, and what was staged comes back")


def breaks_carry(world: World) -> bool:
    """Leftovers come only from carrying the dead: each rule alone protects from what breaks the other."""
    return world.breaks("carry-of-the-dead") or world.breaks("leftovers-stay")


def fetch_committed(term: Term[State]) -> int | str:
    if not term.is_current:
        return NOT_OWNER
    return (
        RETRY if term.state.group.pending and not term.world.breaks("pending-ignored") else term.state.group.committed
    )


def assign(term: Term[State], member: str) -> bool:
    epoch = term.state.group.epoch + 1

    def change(state: State) -> None:
        state.group.member, state.group.epoch = member, epoch

    return term.append(change)


def assignment(term: Term[State]) -> tuple[str | None, int]:
    """May be old: heartbeats have no fence check."""
    return term.state.group.member, term.state.group.epoch


# Processes.


def worker(world: World, name: str, transactional_id: str) -> Process:
    world.working += 1
    yield from work_until_rest(world, name, transactional_id)
    world.working -= 1


def work_until_rest(world: World, name: str, transactional_id: str) -> Process:
    while True:
        identity = yield from world.call(0, init, transactional_id)
        if isinstance(identity, str):
            continue
        last = TransactionId(transactional_id, identity[0], identity[1], 0)
        alive = True
        while alive:
            member, group_epoch = yield from call_until_answered(world, 1, assignment)
            if member != name:
                if world.healed:
                    return
                yield
                continue
            at = yield from world.call(1, fetch_committed)
            if isinstance(at, str):
                continue
            last, alive = yield from work(world, name, group_epoch, last, at)
            if world.healed and at >= ITEMS_AT_REST:
                return


def work(world: World, name: str, group_epoch: int, last: TransactionId, at: int) -> Process:
    """Transaction after transaction, while the assignment seems to last; (last transaction, whether
    the worker lives on).
    """
    while not (world.healed and at >= ITEMS_AT_REST):
        last = last._replace(number=last.number + 1)
        decided, end, whole = yield from one_transaction(world, name, group_epoch, last, at)
        if decided == FENCED:
            return last, False
        if not whole:
            return last, True
        at = end if decided == COMMIT else at
        if world.walk.chance(0.1):
            world.walk.saw("a worker died")
            return last, False
        yield
    return last, True


def one_transaction(world: World, name: str, group_epoch: int, transaction: TransactionId, at: int) -> Process:
    """Return (what was decided, end of its items, whether all of it was staged).

    A batch without an answer may be left out, although it may be staged all the same.
    """
    walk = world.walk
    items = tuple(range(at, at + 1 + walk.random.randrange(3)))
    whole, count, end = True, len(items), items[-1] + 1
    for sequence, item in enumerate(items):
        batch: tuple[int, ...] = (item,)
        for bundle in (1, 2):
            send = world.call if walk.chance(0.5) else partial(call_some_times, world)
            answer = yield from send(bundle, stage, transaction, sequence, batch)
            if bundle == 1 and not world.healed and walk.chance(0.8 if answer == UNKNOWN else 0.05):
                # A client that is wrong: no answer in time, so it uses the sequence for another batch.
                batch, count = items[sequence:], sequence + 1
                answer = yield from call_some_times(world, bundle, stage, transaction, sequence, batch)
                walk.saw("a duplicate that is none", answer == CONFLICT)
            if answer != OK and sequence and walk.chance(0.7):
                count, end = sequence, item
                walk.saw("a batch was left out")
            else:
                whole = whole and answer == OK
        if count <= sequence + 1:
            break
    answer = yield from call_some_times(world, 1, stage_offset, transaction, name, group_epoch, end)
    whole = whole and answer == OK
    outcome = COMMIT if whole and (world.healed or walk.chance(0.85)) else ABORT
    parts = {1: Part(count, True), 2: Part(count, False)}
    decided = yield from call_until_answered(world, 0, decide, transaction, outcome, parts)
    walk.saw(f"decided: {decided}")
    return decided, end, whole


def manager(world: World) -> Process:
    """Prepare transactions, each under an xid, and leave them to whichever process resolves them."""
    world.working += 1
    made = 0
    while not world.healed:
        yield
        if len(world.prepared) >= XIDS_OPEN_MAX:
            continue
        made += 1
        identity = yield from world.call(0, init, f"{XID}{made}")
        if isinstance(identity, str):
            continue
        transaction = TransactionId(
            f"{XID}{made}", identity[0], identity[1], made if world.breaks("xid-in-order") else 1
        )
        whole = True
        for bundle in (1, 2):
            whole = (yield from call_some_times(world, bundle, stage, transaction, 0, (made,))) == OK and whole
        if whole:
            parts = {bundle: Part(1, False) for bundle in (1, 2)}
            decided = yield from call_until_answered(world, 0, decide, transaction, PREPARED, parts)
            if decided == PREPARED:
                world.prepared[transaction] = made
    world.working -= 1


def resolver(world: World) -> Process:
    """Any process that names an xid may commit it, or roll it back."""
    while not world.at_rest():
        yield
        if not world.prepared or not (world.healed or world.walk.chance(0.02)):
            continue
        transaction, value = world.walk.random.choice(list(world.prepared.items()))
        if not world.healed and world.walk.chance(0.3):
            yield from world.call(0, init, transaction.name)
            continue
        outcome = COMMIT if world.walk.chance(0.8) else ABORT
        decided = yield from call_until_answered(world, 0, decide, transaction, outcome, {})
        if decided != outcome:
            raise Violation(f"{transaction} was prepared; {outcome} is answered by {decided}")
        if decided == COMMIT:
            world.committed.append(value)
        del world.prepared[transaction]


def call_some_times(world: World, bundle: int, method: Callable[..., Any], *arguments: Any) -> Process:
    answer = yield from world.call(bundle, method, *arguments)
    for _ in range(3):
        if answer in (NOT_OWNER, UNKNOWN) and world.walk.chance(0.8):
            answer = yield from world.call(bundle, method, *arguments)
    return answer


def completer(world: World) -> Process:
    """Carry out what is decided. Any term that takes itself for the coordinator's may try."""
    while not world.at_rest():
        yield
        term = world.owner(0)
        for name, known in list(term.state.known.items()):
            if known.complete or known.decided == PREPARED:
                continue
            transaction = TransactionId(name, known.producer, known.epoch, known.number)
            assert known.decided is not None
            done = True
            for bundle, part in sorted(known.parts.items()):
                answer = yield from world.call(bundle, complete, transaction, known.decided, part)
                if answer == UNSURE:
                    answer = yield from confirm_and_complete(world, bundle, transaction, part)
                done = done and answer == DONE
                if answer == DONE and world.breaks("complete-after-one"):
                    done = True
                    break
            if done:
                yield from world.call(0, finish, transaction)


def confirm_and_complete(world: World, bundle: int, transaction: TransactionId, part: Part) -> Process:
    """Its note may be gone: a bundle asks whether a commit is a late one."""
    term = world.owner(bundle)
    notes_gone = term.state.notes_gone
    said = yield from world.call(0, confirm, transaction)
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
        term = world.owner(0)
        for name, known in list(term.state.known.items()):
            idle = known.complete or world.breaks(f"expire-{PREPARED if known.decided == PREPARED else 'incomplete'}")
            old = world.now - known.at > ID_AGE_MAX and idle
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
            if not world.breaks("note-by-age") and (yield from world.call(0, is_expired, note.transaction)) != EXPIRED:
                continue
            if term.state.notes.get(note.transaction.producer) == note and term.append(partial(forget, note=note)):
                world.walk.saw("a note went")


def expire(state: State, name: str) -> None:
    del state.known[name]


def forget(state: State, note: Note) -> None:
    del state.notes[note.transaction.producer]
    state.notes_gone += 1


def housekeeper(world: World, bundle: int) -> Process:
    """Ask the coordinator about what has been staged for too long."""
    while not world.at_rest():
        yield
        state = world.owner(bundle).state
        staged = [transaction for transaction, kept in state.staged.items() if world.now - kept.at > STAGED_AGE_MAX]
        pending = [
            transaction for transaction, (at, _) in state.group.pending.items() if world.now - at > STAGED_AGE_MAX
        ]
        for transaction in sorted({*staged, *pending}):
            if (yield from world.call(0, ask, transaction)) == ABORT:
                yield from world.call(bundle, complete, transaction, ABORT, Part(0, False))


def copier(world: World, bundle: int) -> Process:
    """Go on with the completions that have begun, as the bundle's log tells."""
    while not world.at_rest():
        yield
        term = world.owner(bundle)
        for producer, note in list(term.state.notes.items()):
            if note.finished or (world.breaks("resume-from-memory") and note.transaction not in term.memory):
                continue
            copies, after = next_chunk(term, note)
            for _ in range(2):
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


def plain_committer(world: World) -> Process:
    while not world.healed:
        yield
        if not world.walk.chance(0.1):
            continue
        if (yield from world.call(1, commit_plainly, *assignment(world.owner(1)))) == OK:
            world.walk.saw("a plain commit")


def rebalancer(world: World) -> Process:
    while not world.healed:
        for _ in range(world.walk.random.randrange(400)):
            yield
        yield from world.call(1, assign, world.walk.random.choice("abc"))


def run(walk: Walk) -> None:
    world = World(walk)
    workers = [
        worker(world, name, transactional_id) for name, transactional_id in (("a", "t1"), ("b", "t1"), ("c", "t2"))
    ]
    processes = [
        *workers,
        completer(world),
        completer(world),
        housekeeper(world, 1),
        housekeeper(world, 2),
        expirer(world),
        *(forgetter(world, bundle) for bundle in (1, 2)),
        *(copier(world, bundle) for bundle in (1, 1, 2, 2)),
        *(carrier(world, bundle) for bundle in (1, 2)),
        rebalancer(world),
        plain_committer(world),
        manager(world),
        resolver(world),
    ]
    world.run(processes, STEPS, STEPS_AT_REST, sleep=range(200, 4000), on_heal=lambda: assign(world.terms[1], "a"))
    check(world)


def check(world: World) -> None:
    for term in world.terms[1:]:
        if term.state.staged or term.state.group.pending:
            raise Violation(f"bundle {term.ledger} still holds {list(term.state.staged)} {term.state.group.pending}")
    unfinished = [name for name, known in world.terms[0].state.known.items() if not known.complete]
    if unfinished:
        raise Violation(f"never completed: {unfinished}")
    committed = world.terms[1].state.group.committed
    for term in world.terms[1:]:
        visible = term.state.visible
        if visible != list(range(committed)):
            raise Violation(
                f"bundle {term.ledger} shows {len(visible)} items, {committed} are committed: {visible[-12:]}"
            )
        if sorted(term.state.visible_of_xids) != sorted(world.committed):
            raise Violation(f"bundle {term.ledger} shows xids {term.state.visible_of_xids}, not {world.committed}")
    world.walk.saw("items committed", committed)


TRANSACTIONS = Model(
    "transactions",
    run,
    MUTANTS,
    (
        "a ledger changed hands",
        "an old owner was called",
        "a late double of a call",
        "decided: commit",
        "decided: abort",
        "decided: fenced",
        "a batch was left out",
        "a transaction timed out",
        "a worker died",
        "a chunk was copied",
        "xid: prepared",
        "xid: commit",
        "xid: abort",
        "a duplicate that is none",
        "a plain commit",
        "an id expired",
        "a note went",
        "a late commit was not confirmed",
        "a batch was carried forward",
        "a reference died while its bytes were read",
        "items committed",
    ),
)
