"""A bundle with data: it stages batches, completes transactions chunk by chunk, and carries forward."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tests.models.terms import NOT_OWNER, Term
from tests.models.transactions.state import (
    ABORT,
    CONFLICT,
    DONE,
    GAP,
    OK,
    OVER,
    RETRY,
    UNSURE,
    USED_ONCE,
    Note,
    Part,
    Reference,
    Staged,
    State,
    TransactionId,
    World,
)
from tests.models.walk import Violation

COPYING = 400
"""Within so many steps most completions end that have begun."""


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
    if has_other_id(term, transaction) and not term.world.breaks("two-ids-of-a-producer"):
        return RETRY  # the coordinator of what is staged is asked which of the two ids is false
    if is_over(term, transaction) or (is_begun(term, transaction) and not term.world.breaks("stage-when-begun")):
        return term.final(OVER)
    now = term.world.now
    staged = term.state.staged.get(transaction, Staged(now))
    if sequence != len(staged.references):
        if sequence > len(staged.references):
            return term.final(GAP)
        same = staged.references[sequence].values == values or term.world.breaks("duplicate-by-sequence")
        return term.final(OK if same else CONFLICT)
    references = sorted([*staged.references, Reference(now, sequence, values)], key=lambda kept: kept.sequence)
    new = replace(staged, references=tuple(references))
    return OK if term.append(lambda state: state.staged.update({transaction: new})) else NOT_OWNER


def has_other_id(term: Term[State], transaction: TransactionId) -> bool:
    """Has another transactional id something here under this producer id?"""
    kept = [*term.state.staged, *term.state.group.pending]
    kept += [note.transaction for note in (term.state.notes.get(transaction.producer),) if note is not None]
    return any(each.producer == transaction.producer and each.name != transaction.name for each in kept)


def complete(term: Term[State], transaction: TransactionId, outcome: str, part: Part, confirmed: bool = False) -> str:
    """Drop what is staged (abort), or begin to copy it (commit), one chunk in each segment."""
    world = term.world
    if is_over(term, transaction):
        left = transaction in term.state.staged and not world.breaks("leftovers-stay")
        return DONE if not left or term.append(lambda state: drop_at_or_below(term, state, transaction)) else NOT_OWNER
    if outcome == ABORT:
        known = term.state.notes.get(transaction.producer)
        moves = known is not None and known.transaction[:3] == transaction[:3]
        if not moves and not world.breaks("note-by-abort"):
            return DONE if term.append(lambda state: drop_at_or_below(term, state, transaction)) else NOT_OWNER
        dropped = Note(transaction, Part(0, False), 0, finished=True)
        return DONE if term.append(partial(note_and_drop, term, note=dropped)) else NOT_OWNER
    if not confirmed and transaction.producer not in term.state.notes and not world.breaks("commit-unconfirmed"):
        return UNSURE
    if term.ledger == 2 and transaction in world.damaged:
        return RETRY
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
        for left in term.state.staged[transaction].references:
            # The network delivers batches again just now.
            world.deliver_within(COPYING, term.ledger, stage, transaction, left.sequence, left.values)
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
    if transaction.name.startswith(USED_ONCE):
        state.visible_once += [(transaction.name, value) for value in values]
    else:
        state.visible += values


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
    """A producer's transactions are completed in turn: what is older is a late double. A call that names
    the producer id beside another transactional id drops nothing of it.
    """
    for kept in (state.staged, state.group.pending):
        for old in [
            old
            for old in kept
            if old.producer == last.producer
            and (old.name == last.name or term.world.breaks("two-ids-of-a-producer"))
            and not_after(term, (old.epoch, old.number), (last.epoch, last.number))
            and not (being_copied and old in (last, offset_key(term, last)))
        ]:
            del kept[old]


def staged_values(term: Term[State], transaction: TransactionId) -> tuple[int, ...] | str:
    if not term.is_current:
        return NOT_OWNER
    return tuple(value for kept in term.state.staged.get(transaction, Staged(0)).references for value in kept.values)


def keep_unresolved(term: Term[State], transaction: TransactionId, values: tuple[int, ...]) -> str:
    """Append the copy of a half message, under its transaction as the key. Doubles do no harm."""
    return OK if term.append(lambda state: state.unresolved.append((transaction, values))) else NOT_OWNER


def unresolved(term: Term[State]) -> list[tuple[TransactionId, tuple[int, ...]]]:
    return list(term.state.unresolved)


def offset_key(term: Term[State], transaction: TransactionId) -> TransactionId:
    return transaction._replace(epoch=0) if term.world.breaks("offset-key-without-epoch") else transaction


def forget(state: State, note: Note) -> None:
    del state.notes[note.transaction.producer]
    state.notes_gone += 1


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
    """Leftovers come only from carrying dead batches: either rule alone prevents the harm."""
    return world.breaks("carry-of-the-dead") or world.breaks("leftovers-stay")
