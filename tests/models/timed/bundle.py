"""What the owner of a bundle does when it is called: stage, recall, remove a topic; and the intake."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.models.timed.memory import Memory, Source
from tests.models.timed.places import END, Key
from tests.models.timed.state import (
    DONE,
    FENCED,
    FORGOTTEN,
    GONE,
    RECALL_KEPT,
    RECALLED,
    RETRY,
    TOO_LATE,
    Block,
    Group,
    Handle,
    Message,
    Row,
    Session,
    State,
    Topic,
    Visible,
)
from tests.models.timed.world import Append, Owner, World, pause
from tests.models.walk import Process, Violation


def stage(term: Owner, session: Session, messages: tuple[Message, ...]) -> Any:
    """Store a block until its time. The answer is its offset in the intake, once it is durable."""
    world, issued, timers = term.world, term.issued, term.timers
    if timers is None or not timers.is_ready:
        return RETRY
    if world.breaks("delay-at-the-broker"):
        if term.now() < 0:
            return RETRY
        messages = tuple(replace(m, due=term.now() + m.delay) if m.delay else m for m in messages)
    if any(message.topic in issued.removed for message in messages):
        return GONE
    known, offsets = issued.sessions.get(session.producer, (0, ()))
    if session.epoch < known:
        return FENCED
    if session.epoch == known and session.sequence < len(offsets):
        return duplicate(term, session, offsets[session.sequence])
    if session.sequence != issued.next_sequence(session.producer, session.epoch):
        return FENCED
    append = term.produce(session, floor(term, timers), messages)
    if isinstance(append, Append):
        world.walk.saw("a message was late", sum(m.due <= timers.closed for m in messages))
        append.caller_is_gone = world.breaks("rows-by-the-call") and world.walk.chance(0.05)
    return append


def floor(term: Owner, timers: Memory) -> int:
    """Return the lowest second for which a delivery round may still begin."""
    if term.world.breaks("floor-of-the-watermark"):
        return term.issued.watermark.due + 1
    return 0 if term.world.breaks("no-floor") else timers.closed + 1


def duplicate(term: Owner, session: Session, offset: int) -> Any:
    world = term.world
    world.walk.saw("a delayed send was a duplicate")
    under_way = [append for append in term.flight if isinstance(append.what, Block) and append.what.offset == offset]
    if world.breaks("duplicate-enters-memory") and term.timers is not None and not under_way:
        stored = term.issued.intake[offset]
        term.timers.add_block(replace(stored, floor=floor(term, term.timers)), term.issued.watermark)
    if not under_way or world.breaks("duplicate-before-durable"):
        return offset
    return under_way[0]


def arrivals(world: World, bundle: int) -> Process:
    """Take durable blocks into memory, in order; some time after they landed."""
    while not world.at_rest():
        yield
        term = world.owners()[bundle]
        while term.landed:
            arrived(term, term.landed.popleft())
            if world.walk.chance(0.5):
                yield


def arrived(term: Owner, append: Append) -> None:
    """In one turn: the rows are in memory, and the block is no longer under way."""
    block, timers = append.what, term.timers
    assert isinstance(block, Block)
    if append in term.under_way:
        term.under_way.remove(append)
    if timers is None or block.offset < timers.next_offset or append.caller_is_gone:
        return  # a load has read it, or will
    if block.offset > timers.next_offset and not term.world.walk.broken:
        raise Violation(f"bundle {term.ledger}: block {block.offset} arrives, {timers.next_offset} is next")
    timers.add_block(block, term.issued.watermark)
    timers.next_offset = block.offset + 1


def show(term: Owner, row: Row) -> list[Visible]:
    """Return what is to be appended to the target partition; nothing if the topic was removed."""
    world, message = term.world, row.message
    if message.due > world.store_time():
        raise Violation(f"{message} is delivered at {world.store_time():.1f} by the store's clock")
    topic = world.topic(message.topic.name) if world.breaks("target-by-name") else message.topic
    if topic in term.issued.removed and not world.breaks("removed-topic-not-judged"):
        return []
    visible = [Visible(message, topic, row.key)]
    if message.bundle != term.ledger:  # the target partition lives elsewhere: no segment holds both
        world.owners()[message.bundle].write(Group(visible=visible))
        return []
    return visible


def recall(term: Owner, handle: Handle) -> Any:
    """RECALLED: never delivered. TOO_LATE: it was delivered, or will be. FORGOTTEN: one of the two.

    The memory knows what is recalled. The durable watermark is what stays true after a change of
    owner, or a refused append.
    """
    world, durable, issued, timers = term.world, term.state, term.issued, term.timers
    if timers is None or not timers.is_ready:
        return RETRY
    number = (handle.offset, handle.row)
    if number in issued.recalled:
        return RECALLED if number in durable.recalled else RETRY
    key = Key(handle.due, *number)
    known = issued if world.breaks("too-late-from-issued") else durable
    if key <= known.watermark:
        oldest = durable if world.breaks("forgotten-by-the-durable") else issued
        is_kept = handle.due + kept_for(term) >= oldest.watermark.due
        return TOO_LATE if is_kept or world.breaks("tombstone-goes-with-its-second") else FORGOTTEN
    delivering = timers.delivering if not world.breaks("recall-of-a-chunk") else None
    if key <= max(issued.watermark, delivering or issued.watermark):
        world.walk.saw("a recall waited for a delivery")
        return RETRY
    until = max(handle.due, timers.closed + 1, timers.floor_max)
    if world.breaks("tombstone-by-its-due"):
        until = handle.due
    world.walk.saw("a recalled message may be due later", until > handle.due + RECALL_KEPT)
    appended = term.write(Group(recalls={number: until}), RECALLED)
    return RECALLED if world.breaks("recalled-before-durable") and isinstance(appended, Append) else appended


def kept_for(term: Owner) -> int:
    return 0 if term.world.breaks("tombstone-goes-with-its-second") else RECALL_KEPT


def remove_topic(term: Owner, topic: Topic) -> Any:
    """Note the removal in the bundle's log."""
    if topic in term.issued.removed:
        return DONE if topic in term.state.removed else RETRY
    if term.timers is None or not term.timers.is_ready:
        return RETRY
    return term.write(Group(removed=topic), DONE)


def loader(world: World, bundle: int) -> Process:
    while not world.at_rest():
        yield
        term = world.owners()[bundle]
        if not world.healed and world.walk.chance(0.004):
            term.timers = None
            world.walk.saw("a bundle was down for long")
            back_at = world.now + world.walk.random.randrange(500, 3000)
            while world.now < back_at and not world.healed:
                yield
            term = world.owners()[bundle]
        if term.timers is None:
            yield from load(term)


def load(term: Owner) -> Process:
    """Load the state of the timers, at the begin of a term or after it was dropped.

    Every append of the state before has an outcome by then.
    """
    world = term.world
    while any(has_to_settle(world, append) for append in term.flight + term.queue):
        yield
    state = term.state
    timers = term.timers = Memory(state.watermark.due, state.intake_end)
    begin = state.intake_begin
    if world.breaks("flushed-without-begin"):
        begin = world.trimmed.get((term.ledger, None), 0)
    world.check_kept(term, None, list(range(begin, state.intake_end))[:1])
    yield from pause(world)
    if term.timers is not timers:
        return
    for block in state.intake[begin:]:
        timers.floor_max = max(timers.floor_max, block.floor)
        horizon = horizon_of(term, state, block.offset)
        for row in block.rows():
            if row.key > state.watermark and row.key.due <= horizon:
                timers.add(row, Source(None, block.offset))
    timers.is_ready = True
    world.walk.saw("rows of flushed blocks are in memory", sum(piece.end > begin for piece in state.pieces))


def has_to_settle(world: World, append: Append) -> bool:
    is_block = isinstance(append.what, Block)
    return not world.breaks("intake-forgotten-at-reload" if is_block else "log-not-settled-at-reload")


def horizon_of(term: Owner, state: State, offset: int) -> int:
    """Return up to which second the rows of a block are in memory, and not in ranges."""
    if offset >= state.flushed_to:
        return END
    if term.world.breaks("horizon-of-the-last-piece"):
        return state.pieces[-1].horizon
    return next((piece.horizon for piece in state.pieces if offset < piece.end), 0)
