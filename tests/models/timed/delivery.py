"""What owners deliver, round by round; and the deletion of what nobody needs."""

from __future__ import annotations

from tests.models.timed.bundle import kept_for, show
from tests.models.timed.memory import Memory
from tests.models.timed.places import Key, Place, finished
from tests.models.timed.state import Block, Group, Row, State
from tests.models.timed.world import Owner, World, pause
from tests.models.walk import Process


def deliverer(world: World, bundle: int) -> Process:
    while not world.at_rest():
        yield
        term = world.owner(bundle)
        timers, now = term.timers, term.now()
        if timers is None or not timers.is_ready or now < 0:
            continue
        if world.walk.chance(0.1):
            yield from pause(world)  # time goes by between reading a clock and acting by it
        if term.timers is timers and not term.is_busy():
            yield from deliver(term, timers, deliverable_to(term, timers, now))


def deliverable_to(term: Owner, timers: Memory, now: int) -> int:
    """Return the last second that is over and of which everything is in memory."""
    broken = term.world.breaks
    last = now
    for place, there in term.issued.ranges.items():
        if broken("watermark-passes-the-far" if place.is_far else "watermark-passes-unloaded"):
            continue
        if place not in timers.loaded:
            last = min(last, there.first - 1)
    return last


def deliver(term: Owner, timers: Memory, last: int) -> Process:
    """One round: everything that is due up to a second, in chunks.

    What is stored from now on gets a floor above that second, and what is on its way is waited for.
    """
    world = term.world
    due = timers.due(term.issued.watermark, finished(last))
    has_work = bool(due) or under_way_to(term, last) or has_to_write(term, timers, last)
    if finished(last) <= term.issued.watermark or not (has_work or world.walk.chance(0.1)):
        return
    timers.closed = max(timers.closed, last)
    if not has_work:
        return  # the watermark need not move
    while under_way_to(term, last) and not world.breaks("watermark-passes-under-way"):
        world.walk.saw("a round waited for blocks under way")
        yield
        if term.timers is not timers:
            return
    while True:
        while term.is_busy():
            yield
        if term.timers is not timers or term.is_over:
            return
        due = timers.due(term.issued.watermark, finished(last))
        chunk = due[: world.chunk]
        timers.delivering = finished(last) if chunk == due else chunk[-1].key
        recalled = set() if world.breaks("recall-before-load-only") else term.issued.recalled.keys()
        chosen = [row for row in chunk if row.key.id not in recalled]
        yield from read_bodies(term, timers, chosen)
        if term.timers is not timers:
            return
        write_chunk(term, timers, [row.key for row in chunk], chosen)
        world.walk.saw("a message was delivered in its time", len(chosen))
        if chunk == due:
            return
        world.walk.saw("a round took several segments")
        yield


def under_way_to(term: Owner, last: int) -> bool:
    blocks = [append.what for append in term.under_way if isinstance(append.what, Block)]
    return any(row.key.due <= last for block in blocks for row in block.rows())


def has_to_write(term: Owner, timers: Memory, last: int) -> bool:
    """Does something wait for the watermark, though nothing is due?"""
    state = term.issued
    if term.world.breaks("nothing-due-nothing-written"):
        return False
    return (
        any(there.to - 1 <= last for place, there in state.ranges.items() if place in timers.loaded)
        or any(until + kept_for(term) < last for until in state.recalled.values())
        or any(not piece.is_finished(state.watermark) and piece.horizon <= last for piece in state.pieces)
    )


def read_bodies(term: Owner, timers: Memory, rows: list[Row]) -> Process:
    for row in rows:
        if row.key in timers.evicted:
            place, offset = timers.source(row.key)
            term.world.walk.saw("an evicted body was read again")
            term.world.check_kept(term, place, [offset])
            yield from pause(term.world)
            if term.timers is not timers:
                return


def write_chunk(term: Owner, timers: Memory, taken: list[Key], rows: list[Row]) -> None:
    """Deliver in one segment with the watermark that covers it, and with what it makes obsolete."""
    assert timers.delivering is not None
    watermark, timers.delivering = timers.delivering, None
    visible = [shown for row in rows for shown in show(term, row)]
    group = Group(watermark=watermark, visible=visible)
    for number, until in term.issued.recalled.items():
        if until + kept_for(term) < watermark.due:
            group.recalls[number] = None
    for place, there in term.issued.ranges.items():
        is_over = watermark >= finished(there.to - 1)
        if term.world.breaks("finished-inside-a-second"):
            is_over = watermark.due >= there.to - 1
        if not place.is_far and is_over:
            group.ranges[place] = None
            timers.loaded.discard(place)
            timers.loading.discard(place)
    if term.world.breaks("watermark-apart"):
        term.write(Group(visible=visible))
        group.visible = []
    if term.world.breaks("trim-to-the-watermark") and rows:
        source = timers.source(rows[-1].key)
        if source.place in term.issued.ranges and source.place not in group.ranges:
            there = term.issued.ranges[source.place]
            group.ranges[source.place] = there._replace(begin=max(there.begin, source.offset + 1))
    term.write(group)
    timers.take(taken)


def evictor(world: World, bundle: int) -> Process:
    """Drop bodies from memory; their rows stay."""
    while not world.healed:
        yield
        timers = world.owner(bundle).timers
        if timers is not None and timers.is_ready and timers.keys() and world.walk.chance(0.2):
            timers.evicted.add(world.walk.random.choice(timers.keys()))


def trimmer(world: World, bundle: int) -> Process:
    """Delete what is below the log starts of the intake and of ranges, as some process knows them."""
    while not world.at_rest():
        yield
        if not world.healed and world.walk.chance(0.9):
            continue
        term = world.owner(bundle)
        known = term.issued if world.breaks("trim-of-the-issued") else term.state
        starts = log_starts(world, known)
        yield from pause(world)
        for place, start in starts.items():
            if start > world.trimmed.get((bundle, place), 0):
                world.trimmed[bundle, place] = start
                world.walk.saw("the intake was trimmed" if place is None else "a range was trimmed")


def log_starts(world: World, state: State) -> dict[Place | None, int]:
    starts: dict[Place | None, int] = {None: state.intake_begin}
    if world.breaks("intake-trimmed-to-the-flush"):
        starts[None] = state.flushed_to
    elif world.breaks("finished-inside-a-second"):
        kept = [piece.begin for piece in state.pieces if state.watermark.due < piece.horizon]
        starts[None] = min(kept, default=state.flushed_to)
    for place, part in state.parts.items():
        there = state.ranges.get(place)
        starts[place] = part.end if there is None else there.begin
    return starts
