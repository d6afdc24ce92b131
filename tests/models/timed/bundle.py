"""What the owner of a bundle does when it is called: stage, recall, complete, remove a topic."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from tests.models.terms import NOT_OWNER
from tests.models.timed.state import (
    ABORT,
    COMMIT,
    DONE,
    FORGOTTEN,
    GONE,
    OK,
    OVER,
    RECALL_KEPT,
    RECALLED,
    RETRY,
    TOO_LATE,
    Handle,
    Message,
    State,
    Topic,
    Visible,
)
from tests.models.timed.wheel import SPANS, Place, place
from tests.models.timed.world import Owner
from tests.models.walk import Violation


def place_for(term: Owner, state: State, due: int) -> Place | None:
    """Choose a slot from the watermark, which is in the log no later than what it decides."""
    base, turned = state.watermark.next_second, state.turned
    if term.world.breaks("slots-from-the-clock"):
        base = max(base, term.now())
        turned = tuple(max(number, base // span) for number, span in zip(turned, SPANS, strict=True))
    return place(due, base, turned, lap_early=1 if term.world.breaks("next-lap-early") else 0)


def is_late(term: Owner, state: State, due: int) -> bool:
    second = state.watermark.second
    return due < second if term.world.breaks("late-below-only") else due <= second


def put(term: Owner, state: State, message: Message, where: Place) -> None:
    """Append a message to a slot; an owner that has loaded its minute, or does so, holds it, too."""
    slot = state.slots[where.slot].put(message)
    state.slots[where.slot] = slot
    index = term.index
    known = index.loaded if term.world.breaks("staged-while-loading") else index.tracked
    if where.level == 0 and where.number in known:
        index.add(where.number, slot.records[-1])


def show(term: Owner, state: State, message: Message, offset: int | None) -> None:
    """Append a message to its target partition, unless it was recalled or its topic was removed."""
    world = term.world
    if message.due > world.store_time():
        raise Violation(f"{message} is delivered at {world.store_time():.1f} by the store's clock")
    if message.id in state.recalled and not world.breaks("recall-before-load-only"):
        return
    topic = world.topic(message.topic.name) if world.breaks("target-by-name") else message.topic
    if topic in state.removed and not world.breaks("removed-topic-not-judged"):
        return
    visible = Visible(message, topic, offset)
    if message.bundle != term.ledger:  # the target partition lives elsewhere: no segment holds both
        world.owners()[message.bundle].issue(lambda other: other.visible.append(visible))
    else:
        state.visible.append(visible)


def accept(term: Owner, state: State, message: Message) -> None:
    """In a segment: deliver what is late, and stage everything else."""
    if message.topic in state.removed and not term.world.breaks("removed-topic-not-judged"):
        return
    late = is_late(term, state, message.due)
    if late:
        show(term, state, message, None)
        term.world.walk.saw("a message was late, and delivered at once")
    if not late or term.world.breaks("late-is-staged"):
        where = place_for(term, state, message.due) or Place(0, message.due // SPANS[0])
        put(term, state, message, where)


def stage(term: Owner, producer: str, sequence: int, message: Message) -> Any:
    """Store a message until its time. The answer is a handle, once it is durable."""
    world, issued = term.world, term.issued
    if world.breaks("delay-at-the-broker") and message.delay:
        if term.now() < 0:
            return RETRY
        message = replace(message, due=term.now() + message.delay)
    late, where = is_late(term, issued, message.due), place_for(term, issued, message.due)
    session = (producer, where if world.breaks("session-of-the-slot") else None)
    handle = Handle(message.id, term.ledger, message.due)
    if sequence < issued.sessions.get(session, 0) and not (late and world.breaks("late-before-session")):
        is_durable = sequence < term.state.sessions.get(session, 0)
        world.walk.saw("a delayed send was a duplicate")
        return handle if is_durable or world.breaks("duplicate-before-durable") else RETRY
    if message.topic in issued.removed:
        is_durable = message.topic in term.state.removed
        return GONE if is_durable or world.breaks("gone-from-issued") else RETRY
    if where is None and not late:
        world.walk.saw("a message lay beyond the wheel of a watermark that lags")
        return RETRY

    def remember(state: State) -> None:
        state.sessions[session] = sequence + 1

    def change(state: State) -> None:
        accept(term, state, message)
        remember(state)

    if late and world.breaks("at-once-apart"):
        term.issue(partial(accept, term, message=message))
        return term.issue(remember, handle)
    return term.issue(change, handle)


def recall(term: Owner, handle: Handle) -> Any:
    """RECALLED: never delivered. TOO_LATE: it was delivered, or will be. FORGOTTEN: one of the two.

    All are judged by what is durable, which stays true after a change of owner.
    """
    world, durable, issued = term.world, term.state, term.issued
    if handle.message in durable.recalled:
        return RECALLED
    if handle.message in issued.recalled:
        return RETRY
    undecided = any(message.id == handle.message for staged in issued.staged.values() for message in staged)
    if undecided and not world.breaks("recall-in-transaction"):
        world.walk.saw("a recall waited for its transaction")
        return RETRY
    known = issued if world.breaks("too-late-from-issued") else durable
    if handle.due <= known.watermark.second:
        kept = handle.due + kept_for(term) > known.watermark.second
        if known is issued and not term.is_current:
            return NOT_OWNER
        return TOO_LATE if kept or world.breaks("tombstone-goes-with-its-second") else FORGOTTEN
    if handle.due <= issued.watermark.second:
        world.walk.saw("a recall waited for a delivery in flight")
        return RETRY
    appended = term.issue(lambda state: state.recalled.update({handle.message: handle.due}), RECALLED)
    return RECALLED if world.breaks("recalled-before-durable") and appended != NOT_OWNER else appended


def kept_for(term: Owner) -> int:
    return 1 if term.world.breaks("tombstone-goes-with-its-second") else RECALL_KEPT


def stage_in_transaction(term: Owner, transaction: int, message: Message) -> Any:
    """Store a message that takes effect when its transaction completes."""
    issued = term.issued
    if transaction in issued.notes:
        return OVER
    before = issued.staged.get(transaction, ())
    if message in before:
        return OK if message in term.state.staged.get(transaction, ()) else RETRY

    def change(state: State) -> None:
        state.staged[transaction] = (*before, message)
        if term.world.breaks("due-before-commit"):
            accept(term, state, message)

    return term.issue(change)


def complete(term: Owner, transaction: int, outcome: str) -> Any:
    """Stage or deliver what a transaction holds, and note that it is done, in one segment."""
    world, issued = term.world, term.issued
    if transaction in issued.notes:
        return DONE if transaction in term.state.notes else RETRY
    messages = issued.staged.get(transaction, ()) if outcome == COMMIT else ()
    if any(
        not is_late(term, issued, message.due) and place_for(term, issued, message.due) is None for message in messages
    ):
        return RETRY

    def take_effect(state: State) -> None:
        for message in messages if not world.breaks("due-before-commit") else ():
            accept(term, state, message)

    def note(state: State) -> None:
        state.staged.pop(transaction, None)
        state.notes |= {transaction}

    def change(state: State) -> None:
        take_effect(state)
        note(state)

    world.walk.saw("a transaction was " + ("aborted" if outcome == ABORT else "completed"))
    if world.breaks("completion-apart"):
        term.issue(take_effect)
        return term.issue(note, DONE)
    return term.issue(change, DONE)


def remove_topic(term: Owner, topic: Topic) -> Any:
    """Note the removal in the bundle's log."""
    if topic in term.issued.removed:
        return DONE if topic in term.state.removed else RETRY

    def change(state: State) -> None:
        state.removed |= {topic}

    return term.issue(change, DONE)
