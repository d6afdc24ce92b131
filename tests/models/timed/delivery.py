"""What owners do in the background: load a minute, deliver it, turn a slot; and trimming."""

from __future__ import annotations

from tests.models.timed.bundle import is_late, kept_for, place_for, put, show
from tests.models.timed.state import Message, Record, Slot, State
from tests.models.timed.wheel import COARSE_LEVELS, END, MINUTE, Place, Watermark, is_turned, may_turn
from tests.models.timed.world import Owner, World, pause
from tests.models.walk import Process, Violation


def deliverer(world: World, bundle: int) -> Process:
    while not world.at_rest():
        yield
        term = world.owner(bundle)
        minute = term.issued.watermark.next_second // MINUTE
        if minute not in term.index.loaded:
            yield from load(term, minute)
        now = term.now()
        if world.walk.chance(0.1):
            yield from pause(world)  # time goes by between reading a clock and acting by it
        if not term.is_busy():
            deliver(term, now)


def read(term: Owner, slot_key: tuple[int, int]) -> Slot:
    """Return a slot's records as the log has them, and what is in flight."""
    slot = term.issued.slots[slot_key]
    trimmed = term.world.trimmed.get((term.ledger, slot_key), 0)
    if term.is_current and slot.records and slot.records[0].offset < trimmed:
        raise Violation(f"bundle {term.ledger}: slot {slot_key} is trimmed to {trimmed} and holds {slot.records[0]}")
    return slot


def load(term: Owner, minute: int) -> Process:
    """Read the slot of a minute into memory; what is staged meanwhile gets there by itself."""
    index = term.index
    index.tracked.add(minute)
    slot = read(term, Place(0, minute).slot)
    yield from pause(term.world)
    if term.index is not index:
        return
    watermark = term.issued.watermark
    for record in slot.records:
        recalled = record.message.id in term.issued.recalled and term.world.breaks("recall-before-load-only")
        if Watermark(record.message.due, record.offset) > watermark and not recalled:
            index.add(minute, record)
    index.loaded.add(minute)


def deliver(term: Owner, now: int) -> None:
    """Deliver the next chunk of the minute, in one segment with the watermark that covers it."""
    world, before = term.world, term.issued.watermark
    first = before.next_second
    minute = first // MINUTE
    is_loaded = minute in term.index.loaded or world.breaks("watermark-passes-unloaded")
    if not is_loaded or not (is_turned(first, term.issued.turned) or world.breaks("watermark-passes-the-wheel")):
        return
    last = min(now, minute * MINUTE + MINUTE - 1)
    if last < first:
        return
    due = term.index.due(minute, before, last)
    chunk = due[: world.chunk]
    if not chunk and last % MINUTE != MINUTE - 1 and world.walk.chance(0.7):
        return  # the watermark need not move each second
    after = Watermark(last, END) if chunk == due else chunk[-1]
    taken = [Record(key.offset, term.index.take(key)) for key in chunk]

    def show_all(state: State) -> None:
        for record in taken:
            show(term, state, record.message, record.offset)
            world.walk.saw("a message was delivered in its time")

    def advance(state: State) -> None:
        state.watermark = after
        for message, second in list(state.recalled.items()):
            if second + kept_for(term) <= after.second:
                del state.recalled[message]
        slot_key = Place(0, minute).slot
        if after == (minute * MINUTE + MINUTE - 1, END):
            state.slots[slot_key] = state.slots[slot_key].close()
        elif taken and world.breaks("trim-to-the-watermark"):
            state.slots[slot_key] = state.slots[slot_key].from_offset(taken[-1].offset + 1)

    def change(state: State) -> None:
        show_all(state)
        advance(state)

    if world.breaks("watermark-apart"):
        term.issue(show_all)
        term.issue(advance)
    else:
        term.issue(change)
    world.walk.saw("a second took several segments", after.offset != END)
    if after.next_second // MINUTE > minute:
        term.index.close(minute)


def turner(world: World, bundle: int) -> Process:
    """Turn slots of the wheel before their first second is due."""
    while not world.at_rest():
        yield
        for level in COARSE_LEVELS:
            term = world.owner(bundle)
            next_place = Place(level, term.issued.turned[level] + 1)
            if is_its_turn(term.issued, next_place) and not term.is_busy():
                yield from turn(term, next_place)


def is_its_turn(state: State, place: Place) -> bool:
    """May this place be turned now? After a refused append the watermark has gone back."""
    if state.turned[place.level] != place.number - 1:
        return False
    return may_turn(place.level, place.number, state.watermark.next_second, state.turned)


def turn(term: Owner, place: Place) -> Process:
    """Append a chunk of a slot again, finer, in one segment with the slot's own progress."""
    world = term.world
    slot = read(term, place.slot)
    durable_end = term.state.slots[place.slot].end
    chunk = [record for record in slot.records if record.offset < durable_end][: world.chunk]
    if slot.records and not chunk:
        return  # an offset above the durable end may be another record's tomorrow
    for _ in range(world.walk.random.choice((0, 1, 8))):
        yield  # the records are read
    if not is_its_turn(term.issued, place) or term.issued.slots[place.slot].start != slot.start:
        world.walk.saw("a slot was another when its records were read")
        if not world.breaks("chunk-not-judged-again"):
            return
    start = chunk[-1].offset + 1 if chunk else slot.start

    def append_again(state: State) -> None:
        for record in chunk:
            if record.message.id not in state.recalled and record.message.topic not in state.removed:
                append_finer(term, state, place, record.message)

    def advance(state: State) -> None:
        state.slots[place.slot] = state.slots[place.slot].from_offset(start)
        if start >= state.slots[place.slot].end:
            state.turned = tuple(
                place.number if level == place.level else turned for level, turned in enumerate(state.turned)
            )

    def change(state: State) -> None:
        append_again(state)
        advance(state)

    world.walk.saw("records were turned", len(chunk))
    if world.breaks("turn-apart"):
        term.issue(append_again)
        term.issue(advance)
    else:
        term.issue(change)


def append_finer(term: Owner, state: State, place: Place, message: Message) -> None:
    if is_late(term, state, message.due):
        raise Violation(f"{place} is turned after the time of {message}")
    finer = place_for(term, state, message.due)
    if finer is None or finer.level >= place.level:
        raise Violation(f"{place} holds {message}, which belongs to another lap")
    put(term, state, message, finer)


def trimmer(world: World, bundle: int) -> Process:
    """Delete what is below the log starts of slots, as some process knows them."""
    while not world.at_rest():
        yield
        term = world.owner(bundle)
        known = term.issued if world.breaks("trim-of-the-issued") else term.state
        yield from pause(world)
        for slot_key, slot in known.slots.items():
            trimmed = world.trimmed.get((bundle, slot_key), 0)
            if slot.start > trimmed:
                world.trimmed[bundle, slot_key] = slot.start
                world.walk.saw("a slot was trimmed")
