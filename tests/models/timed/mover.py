"""What owners move: blocks of the intake to ranges, near ranges to memory, far ranges to narrower ones."""

from __future__ import annotations

from tests.models.timed.memory import Memory, Source
from tests.models.timed.places import (
    HORIZON,
    KEPT_FREE,
    LOAD_LEAD,
    MARGINS,
    MINUTE,
    WIDTHS,
    Key,
    Place,
    Range,
    free_place,
    next_minute,
    range_at,
)
from tests.models.timed.state import Block, Group, Piece, Row
from tests.models.timed.world import Owner, World, pause
from tests.models.walk import Process, Violation


class Placing:
    """Chooses ranges for the rows of one group."""

    def __init__(self, term: Owner, timers: Memory) -> None:
        self._term, self._timers = term, timers
        self.ranges = dict(term.issued.ranges)
        self.new: dict[Place, Range | None] = {}
        self.moved: dict[Place, list[Row]] = {}

    def put(self, place: Place, row: Row) -> None:
        """A block of a range has no floor: its rows are due at their own time."""
        self.moved.setdefault(place, []).append(Row(Key(row.message.due, *row.key.id), row.message))

    def flushed(self, second: int, now: int, closed: int) -> Place | None:
        """Return the widest range that begins late enough; else any that there is. None: none."""
        for width in WIDTHS:
            first = second // width * width
            if first < now + MARGINS[width] or first <= closed:
                continue
            place = range_at(self.ranges, first, width)
            if place is None:
                kept_free = 0 if self._broken("no-places-for-turns") else KEPT_FREE
                place = self._make(first, width, kept_free)
            if place is not None and self._may_take(place):
                return place
        others = [place for place, there in self.ranges.items() if there.first > closed and there.holds(second)]
        return next((place for place in others if self._may_take(place)), None)

    def turned(self, second: int, wider: int, now: int) -> Place | None:
        """Return the next narrower range, whatever the time is. None: it has no place yet."""
        narrower = [width for width in WIDTHS if width < wider]
        if self._broken("turned-by-the-clock"):
            narrower = [w for w in narrower[:-1] if second // w * w >= now + MARGINS[w]] + [MINUTE]
        for width in narrower:
            first = second // width * width
            place = range_at(self.ranges, first, width)
            if place is None:
                return self._make(first, width)
            if self._may_take(place):
                return place
        raise Violation(f"bundle {self._term.ledger}: no range takes second {second} of a wider one")

    def _make(self, first: int, width: int, kept_free: int = 0) -> Place | None:
        place = free_place(self.ranges, width, kept_free)
        if place is None:
            self._term.world.walk.saw("a pool of places was used up")
            return None
        begin = self._term.issued.parts[place].end
        if self._broken("place-used-again-from-its-start"):
            begin = self._term.world.trimmed.get((self._term.ledger, place), 0)
        elif begin:
            self._term.world.walk.saw("a place was used again")
        self.new[place] = self.ranges[place] = Range(first, width, begin)
        return place

    def _may_take(self, place: Place) -> bool:
        if self.ranges[place].is_turning:
            return self._broken("placed-while-it-turns")
        return place not in self._timers.loading or self._broken("placed-while-it-loads")

    def _broken(self, rule: str) -> bool:
        return self._term.world.breaks(rule)


def ready(term: Owner) -> Memory | None:
    """Return the state of the timers, if background work may begin."""
    timers = term.timers
    return timers if timers is not None and timers.is_ready and term.now() >= 0 and not term.is_busy() else None


def read(world: World) -> Process:
    """Blocks are read; now and then that takes long."""
    for _ in range(1 if world.healed else world.walk.random.choice((1, 1, 5, 15, 40))):
        yield


# Flush


def flusher(world: World, bundle: int) -> Process:
    while not world.at_rest():
        yield
        term = world.owner(bundle)
        timers = ready(term)
        if timers is not None and timers.next_offset > term.issued.flushed_to and world.walk.chance(0.5):
            yield from flush(term, timers)


def flush(term: Owner, timers: Memory) -> Process:
    """Move what is due after a horizon to ranges, in one segment with the progress of the flush."""
    world, begin = term.world, term.issued.flushed_to
    now, closed = term.now(), timers.closed
    end = min(timers.next_offset, begin + world.walk.random.choice((1, 3, 10)))
    world.check_kept(term, None, [begin])
    yield from read(world)
    if term.timers is not timers or (term.issued.flushed_to != begin and not world.breaks("stretch-not-judged-again")):
        return
    blocks = term.issued.intake[begin:end]
    if not world.breaks("placed-by-a-former-clock"):
        now, closed = term.now(), timers.closed
    waiting = [row for block in blocks for row in block.rows() if row.key > term.issued.watermark]
    horizon = next_minute(max(now + HORIZON, lowest_horizon(term, closed, blocks)))
    placing = Placing(term, timers)
    for row in sorted(waiting, key=lambda row: -row.key.due):
        if row.key.due <= horizon:
            break
        place = placing.flushed(row.key.due, now, closed)
        if place is not None:
            placing.put(place, row)
            continue
        if row.key.due > now + WIDTHS[0]:
            return  # it waits until a place is free
        world.walk.saw("a flush left more in memory")
        horizon = row.key.due  # what is due later has its place already
        break
    write_flush(term, timers, waiting, Piece(begin, end, horizon), placing)


def lowest_horizon(term: Owner, closed: int, blocks: tuple[Block, ...]) -> int:
    """No range begins at or below what is closed; what is due because of its floor stays in memory."""
    if term.world.breaks("floor-above-the-horizon"):
        return 0
    return max(closed + 1, *(block.floor for block in blocks))


def write_flush(term: Owner, timers: Memory, waiting: list[Row], piece: Piece, placing: Placing) -> None:
    world, state = term.world, term.issued
    gone = {row.key for rows in placing.moved.values() for row in rows}
    if not gone:
        last = max((row.key.due for row in waiting), default=state.watermark.due)
        piece = piece._replace(horizon=min(piece.horizon, last))
    kept = [*(other for other in state.pieces), piece]
    while kept and kept[0].is_finished(state.watermark):
        kept.pop(0)
    group = Group(flushed=(piece.end, tuple(kept)), ranges=placing.new, moved=placing.moved)
    if world.breaks("flush-apart"):
        term.write(Group(ranges=placing.new, moved=placing.moved))
        group = Group(flushed=group.flushed)
    term.write(group)
    timers.take(gone)
    world.walk.saw("messages went to ranges", len(gone))


# Load a near range


def range_loader(world: World, bundle: int) -> Process:
    while not world.at_rest():
        yield
        term = world.owner(bundle)
        timers = ready(term)
        near = {} if timers is None else {p: r for p, r in term.issued.ranges.items() if not p.is_far}
        for place, there in near.items():
            if timers is not None and place not in timers.loading and may_load(term, there):
                yield from load_range(term, timers, place, there)
                break


def may_load(term: Owner, there: Range) -> bool:
    if there.first - LOAD_LEAD > term.now():
        return False
    wider = [other for place, other in term.issued.ranges.items() if place.is_far and other.holds(there.first)]
    return not wider or term.world.breaks("loaded-under-a-wider-range")


def load_range(term: Owner, timers: Memory, place: Place, there: Range) -> Process:
    """Read a near range. From now on nothing is placed there; what is on its way is waited for."""
    world = term.world
    timers.loading.add(place)
    end = term.issued.parts[place].end
    while term.state.parts[place].end < end and not world.breaks("load-misses-what-is-under-way"):
        world.walk.saw("a load waited for blocks under way")
        yield
        if term.timers is not timers:
            return
    blocks = [block for block in term.state.parts[place].blocks if there.begin <= block.offset < end]
    world.check_kept(term, place, list(range(there.begin, end)))
    yield from pause(world)
    if term.timers is not timers:
        return
    for block in blocks:
        for row in block.rows:
            recalled = row.key.id in term.issued.recalled and world.breaks("recall-before-load-only")
            if row.key > term.issued.watermark and not recalled:
                timers.add(row, Source(place, block.offset))
    timers.loaded.add(place)
    world.walk.saw("a range was loaded")


# Turn a far range


def turner(world: World, bundle: int) -> Process:
    """Turn far ranges before they begin, the earliest first; of several, the widest."""
    while not world.at_rest():
        yield
        term = world.owner(bundle)
        timers = ready(term)
        far = [(there.first, -there.width, place) for place, there in term.issued.ranges.items() if place.is_far]
        if timers is None or not far:
            continue
        if world.breaks("turned-in-any-order"):
            far = [one for one in far if term.issued.ranges[one[2]].turn_at <= term.now()] or far
            place = world.walk.random.choice(far)[2]
        else:
            place = min(far)[2]
        if term.issued.ranges[place].turn_at <= term.now():
            yield from turn(term, timers, place)


def turn(term: Owner, timers: Memory, place: Place) -> Process:
    """Move a chunk of a range to narrower ones, in one segment with the range's own progress.

    Once it turns, nothing is placed there; so its end is fixed.
    """
    world = term.world
    if place not in timers.turn_ends:
        if not term.issued.ranges[place].is_turning:
            term.write(Group(ranges={place: term.issued.ranges[place]._replace(is_turning=True)}))
        timers.turn_ends[place] = term.issued.parts[place].end
    there, durable = term.issued.ranges[place], term.state.parts[place]
    if world.breaks("turn-ends-at-the-durable"):
        timers.turn_ends[place] = durable.end
    end = min(there.begin + world.chunk, durable.end, timers.turn_ends[place])
    blocks = [block for block in durable.blocks if there.begin <= block.offset < end]
    if not blocks:
        world.walk.saw("a turn waited for blocks under way")
        return
    world.check_kept(term, place, list(range(there.begin, end)))
    yield from read(world)
    if term.timers is not timers or term.issued.ranges.get(place) != there:
        world.walk.saw("a range was another when its blocks were read")
        if not world.breaks("chunk-not-judged-again") or term.timers is None:
            return
    write_turn(term, timers, place, there, [row for block in blocks for row in block.rows], end)


def write_turn(term: Owner, timers: Memory, place: Place, there: Range, rows: list[Row], end: int) -> None:
    world, state = term.world, term.issued
    placing = Placing(term, timers)
    for row in rows:
        if row.key.id in state.recalled or row.message.topic in state.removed:
            continue
        if row.key.due <= timers.closed and not world.walk.broken:
            raise Violation(f"{there} is turned after the time of {row}")
        narrower = placing.turned(row.key.due, there.width, term.now())
        if narrower is None:
            world.walk.saw("a turn waited for a place")
            return
        placing.put(narrower, row)
    is_over = end >= timers.turn_ends.get(place, end)
    group = Group(ranges=placing.new, moved=placing.moved)
    group.ranges[place] = None if is_over else there._replace(begin=end)
    if is_over:
        timers.turn_ends.pop(place, None)
    if world.breaks("turn-apart"):
        term.write(Group(ranges={p: r for p, r in group.ranges.items() if p != place}, moved=group.moved))
        group = Group(ranges={place: group.ranges[place]})
    term.write(group)
    world.walk.saw("messages were turned", len(rows))
