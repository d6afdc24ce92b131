"""The coordinator of transactional ids: epochs, decisions, and what it answers to bundles."""

from __future__ import annotations

from dataclasses import replace

from tests.models.terms import NOT_OWNER, Term
from tests.models.transactions.state import (
    ABORT,
    COMMIT,
    DATABASE,
    EXPIRED,
    FENCED,
    HALF,
    KEPT,
    OK,
    OVER,
    PREPARED,
    RETRY,
    UNRESOLVED,
    USED_ONCE,
    XID,
    Known,
    Part,
    State,
    TransactionId,
    World,
)

CHECKS_MAX = 2


def breaks_used_once(world: World) -> bool:
    return world.breaks("used-twice") or world.breaks("init-aborts-prepared")


def init(term: Term[State], name: str, nonce: int = 0) -> tuple[int, int] | str:
    """Return (producer, epoch), and fence all processes that used this transactional id before.

    This aborts an undecided transaction of an older epoch. An id that is used once belongs to the object
    that began it: `nonce` tells its repeated call from the call of another program.
    """
    known = term.state.known.get(name)
    if known and known.decided == COMMIT and not known.complete and not term.world.breaks("init-during-commit"):
        return RETRY
    if known and known.decided == PREPARED and not term.world.breaks("init-aborts-prepared"):
        return term.final(PREPARED)
    if known and name.startswith(USED_ONCE) and not breaks_used_once(term.world):
        is_same = known.nonce == nonce or term.world.breaks("begun-by-another")
        if known.number or not is_same or not term.is_current:
            return term.final(OVER)
        return known.producer, known.epoch
    now = term.world.now
    shared = name.startswith(XID) and term.world.breaks("xid-in-order")
    producer = known.producer if known else 0 if shared else term.world.next_id()
    new = Known(producer, known.epoch + 1 if known and not shared else 1, at=now, nonce=nonce)
    return (new.producer, new.epoch) if term.append(lambda state: state.known.update({name: new})) else NOT_OWNER


def decide(term: Term[State], transaction: TransactionId, outcome: str, parts: dict[int, Part]) -> str:
    """Record the outcome if there is none; return the recorded one. Numbers count from 1 in each epoch."""
    known = term.state.known.get(transaction.name)
    if known is None or (known.producer, known.epoch) != (transaction.producer, transaction.epoch):
        return term.final(FENCED)
    open_states = (PREPARED, UNRESOLVED) if term.world.breaks("unresolved-not-final") else (PREPARED,)
    if transaction.number == known.number and known.decided in open_states and known.decided != outcome:
        return record(term, transaction, known, outcome, known.parts, complete=False)
    if transaction.number == known.number and known.decided:
        return term.final(known.decided)
    if transaction.number <= known.number:
        return term.final(FENCED)
    if not known.complete:
        return RETRY  # the one before has to be completed first
    return record(term, transaction, known, outcome, parts, complete=False)


def record(
    term: Term[State], transaction: TransactionId, known: Known, outcome: str, parts: dict[int, Part], complete: bool
) -> str:
    new = replace(
        known,
        number=transaction.number,
        decided=outcome,
        parts=parts,
        complete=complete,
        at=term.world.now,
        was_unresolved=known.was_unresolved or outcome == UNRESOLVED,
    )
    if not term.append(lambda state: state.known.update({transaction.name: new})):
        return NOT_OWNER
    for kind in USED_ONCE:
        if transaction.name.startswith(kind):
            term.world.walk.saw(f"{kind}: {outcome}")
    if outcome == ABORT:
        term.world.aborted.add(transaction)
    return outcome


def ask(term: Term[State], transaction: TransactionId, staged: dict[int, Part]) -> str:
    """Answer a bundle in which something has been staged for too long.

    An abort is presumed, and recorded before it is answered. A half message waits for its producers
    instead; then `staged` becomes the counts of its commit.
    """
    known, broken = term.state.known.get(transaction.name), term.world.breaks("ask-without-fence")
    abort = ABORT if broken else term.final(ABORT)
    if known is None or known.producer != transaction.producer or known.epoch != transaction.epoch:
        return abort  # an epoch begins only once all commits before it are complete; a later one was never begun
    if transaction.number < known.number:
        return abort
    if transaction.number == known.number and known.decided == PREPARED:
        aged = term.world.breaks("age-aborts-prepared")
        return record(term, transaction, known, ABORT, {}, complete=True) if aged else RETRY
    if transaction.number == known.number:
        needed = (COMMIT,) if term.world.breaks("unresolved-is-abort") else (COMMIT, UNRESOLVED)
        completing = known.decided in needed and not known.complete
        return RETRY if completing else abort  # complete: what is still staged is a late double that was not counted
    if term.world.breaks("ask-does-not-decide"):
        return abort
    if not known.complete:
        return RETRY
    if transaction.name.startswith(HALF) and transaction.number == 1 and not term.world.breaks("age-aborts-half"):
        record(term, transaction, known, PREPARED, staged, complete=False)
        return RETRY
    term.world.walk.saw("a transaction timed out")
    return record(term, transaction, known, ABORT, {}, complete=True)


def finish(term: Term[State], transaction: TransactionId) -> None:
    known = term.state.known.get(transaction.name)
    if known and known.is_last(transaction) and not known.complete:
        term.append(lambda state: state.known.update({transaction.name: replace(known, complete=True)}))


def is_expired(term: Term[State], transaction: TransactionId) -> str:
    """May a bundle forget what it completed of this producer?"""
    known = term.state.known.get(transaction.name)
    if known and known.producer == transaction.producer:
        return KEPT
    return EXPIRED if term.world.breaks("expiry-without-fence") else term.final(EXPIRED)


def confirm(term: Term[State], transaction: TransactionId) -> str:
    """Return COMMIT if a commit is decided and not complete in all its bundles."""
    known = term.state.known.get(transaction.name)
    open_commit = known and known.is_last(transaction) and known.decided == COMMIT and not known.complete
    return term.final(COMMIT if open_commit else OVER)


def outcome_of(term: Term[State], name: str) -> str:
    """Return the final outcome. For an undecided transaction, record ABORT first."""
    known, world = term.state.known.get(name), term.world
    if known is None:
        return term.final(ABORT)
    if known.decided and not (known.decided == PREPARED and world.breaks("outcome-aborts-prepared")):
        return term.final(known.decided)
    if world.breaks("outcome-without-record"):
        return term.final(ABORT)
    return record(term, TransactionId(name, known.producer, known.epoch, 1), known, ABORT, {}, complete=True)


def forget_outcome(term: Term[State], name: str) -> str:
    """Forget the id, after the program has applied the outcome."""
    known = term.state.known.get(name)
    if known is None:
        return term.final(OK)
    if not known.complete or known.decided is None:
        return RETRY
    return OK if term.append(lambda state: expire(state, name)) else NOT_OWNER


def count_check(term: Term[State], transaction: TransactionId) -> str:
    """Make a half message UNRESOLVED, for good, if no producer answered after the last check."""
    known = term.state.known.get(transaction.name)
    if known is None or not known.is_last(transaction) or known.decided != PREPARED:
        return term.final(OVER)
    counted = replace(known, checks=known.checks + 1)
    if counted.checks >= CHECKS_MAX:
        return record(term, transaction, counted, UNRESOLVED, known.parts, complete=False)
    return OK if term.append(lambda state: state.known.update({transaction.name: counted})) else NOT_OWNER


def give_up(term: Term[State], transaction: TransactionId, bundle: int) -> str:
    """Record that an operator declared the part of a bundle lost: it counts as done there."""
    known = term.state.known.get(transaction.name)
    if known is None or not known.is_last(transaction) or known.complete:
        return term.final(OVER)
    if term.world.breaks("give-up-in-memory"):
        term.memory.add((transaction, bundle))
        return term.final(OK)
    new = replace(known, given_up=known.given_up | {bundle})
    return OK if term.append(lambda state: state.known.update({transaction.name: new})) else NOT_OWNER


def may_expire(world: World, name: str, known: Known) -> bool:
    """Return whether age alone may remove this id. A committed xid stays until its program forgets it."""
    if known.decided == PREPARED:
        return world.breaks("expire-prepared")
    if known.decided == COMMIT and name.startswith((XID, DATABASE)) and not world.breaks("outcome-by-age"):
        return False
    if known.decided is None and name.startswith(HALF) and not world.breaks("expire-unused-half"):
        return False  # its bundle may not have asked about it yet
    if known.was_unresolved and known.decided != COMMIT:
        return False
    return known.complete or world.breaks("expire-incomplete")


def expire(state: State, name: str) -> None:
    del state.known[name]
