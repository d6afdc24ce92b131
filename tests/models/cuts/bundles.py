"""What goes on in the ledgers of the model of cuts beside them: records, transactions, rounds, retention, topics that
come and go, a partition that moves, versions of a keyed partition, owners that are replaced.
"""

from __future__ import annotations

from typing import Any

from tests.models.cuts.state import (
    CATALOG,
    GROUPS,
    INTERNAL,
    KEYED,
    KEYED_BUNDLE,
    MOVES,
    STAGED,
    USERS,
    Checkpoint,
    File,
    Move,
    State,
    Term,
    Version,
    plain,
    topic_of,
)
from tests.models.cuts.world import World
from tests.models.walk import Process


def produce(world: World) -> Process:
    """Put a record of a plain, a moving, a keyed or a short-lived partition, or commit in bundle 2 what a group has
    read in bundle 1.
    """
    bundle, kind = world.random.choice(USERS), world.random.choice("tttxmkkoooo")
    part, value = plain(bundle), world.new("r")
    record: Any = value
    if kind == "x":
        if not world.topics:
            return
        part = f"{world.random.choice(world.topics)}/{bundle}"
    elif kind == "m":
        bundle, part = world.home, MOVES
        record = sum(len(world.bundles[b].until(None, MOVES)) for b in USERS), value
    elif kind == "k":
        bundle, part, record = KEYED_BUNDLE, KEYED, (world.random.choice("abc"), value)
    elif kind == "o":
        bundle, part, record = 2, GROUPS, ("offset", len(world.bundles[1].until(None, plain(1))))
    if part == MOVES:  # offsets are given when the slot is won
        if _append_now(world, bundle, MOVES, record):
            world.acknowledged.append((bundle, part, record))
    elif (yield from world.append(bundle, world.some_owner(bundle), part, record)):
        world.acknowledged.append((bundle, part, record))


def _append_now(world: World, bundle: int, part: str, value: Any) -> bool:
    of = world.bundles[bundle]
    of.slots[len(of.history) + 1] = part, value
    of.history.append((part, value))
    return True


def transact(world: World) -> Process:
    """Read a partition, stage a record in each bundle, prepare or not, decide in one of them, copy each."""
    name, coordinator, source = world.new("T"), world.random.choice(USERS), world.random.choice(USERS)
    term, inputs = world.some_owner(coordinator), len(world.bundles[source].until(None, plain(source)))
    for bundle in USERS:
        if not (yield from world.append(bundle, world.bundles[bundle].term, STAGED, name)):
            return  # it is aborted
    if world.walk.chance(0.15):
        while term.holds and not world.breaks("prepared-under-a-hold"):
            yield
        if not (yield from world.append(coordinator, term, GROUPS, ("prepared", name))):
            return
        term = world.bundles[coordinator].term  # whoever decides about it may come later
    while term.holds and not world.breaks("hold-ends-silently"):
        yield
    term.deciding += 1
    decided = yield from world.append(coordinator, term, GROUPS, ("decided", name))
    term.deciding -= 1
    if not decided:
        return
    world.transactions[name] = source, inputs
    world.bundles[coordinator].open.add(name)
    for bundle in world.random.sample(USERS, 2):
        while not (yield from world.append(bundle, world.bundles[bundle].term, plain(bundle), name)):
            yield
    world.bundles[coordinator].open.discard(name)


def draw(world: World) -> Process:
    """A program takes a transactional id over: it draws the next epoch at one of the coordinators, and stages under it
    once that is durable.
    """
    coordinator = world.random.choice(USERS)
    term, epoch = world.some_owner(coordinator), world.new("e")
    while term.holds and not world.breaks("drawn-under-a-hold"):
        yield
    term.drawing += 1
    drawn = yield from world.append(coordinator, term, GROUPS, ("epoch", epoch))
    term.drawing -= 1
    if drawn:
        for bundle in world.random.sample(USERS, 2):
            yield from world.append(bundle, world.bundles[bundle].term, STAGED, ("under", epoch))


def take_over(world: World) -> Process:
    """An owner is replaced; it may go on as if it were not. The next one reads the ledger before it serves."""
    bundle = world.random.choice(list(world.bundles.values()))
    bundle.term.seen_open = len(bundle.open)
    bundle.former.append(bundle.term)
    bundle.term = Term(has_read=False)
    mine = bundle.term
    for _ in range(world.random.randrange(40)):
        yield
    mine.has_read = True


def end_holds(world: World) -> Process:
    """Holds are bounded in time."""
    bundle = world.random.choice(list(world.bundles.values()))
    for term in (bundle.term, *bundle.former):
        term.holds.clear()
    yield


def compact(world: World) -> Process:
    number = world.random.choice(list(world.bundles))
    bundle, base = world.bundles[number], world.bundles[number].newest
    if base.planned >= len(bundle.history):
        return
    upto = world.random.randint(base.planned + 1, len(bundle.history))
    rows: dict[str, list[Any]] = {}
    ends = {file.part: file.last + 1 for file in base.files}
    for slot in range(base.planned + 1, upto + 1):
        part, value = bundle.slots[slot] if slot in bundle.slots else bundle.history[slot - 1]
        if part not in ("seal", "open"):
            rows.setdefault(part, []).append(value)
    made = []
    for part, values in rows.items():
        first = values[0][0] if part == MOVES else ends.get(part, 0)
        made.append(File(part, first, first + len(values) - 1, f"{part}/{first}/{world.new('f')}"))
    yield
    if bundle.newest == base:  # the plan is still the next one; all its files appear at once here
        world.files |= {file.key: rows[file.part] for file in made}
        pins = frozenset[tuple[str, int]]() if world.breaks("pin-lost-in-a-commit") else base.pins
        world.put(number, base, planned=upto, files=(*base.files, *made), pins=pins)


def retain(world: World) -> Process:
    """Move a log start by one file; take in which topics are removed."""
    number = world.random.choice(USERS)
    base = world.bundles[number].newest
    catalog = world.bundles[0].until(None, CATALOG)
    removed = frozenset(topic for word, topic in catalog if word == "remove")
    parts = [file.part for file in base.named() if file.part not in (*INTERNAL, KEYED) and not is_leaving(world, file)]
    yield
    starts = dict(base.starts)
    if parts:
        part = world.random.choice(sorted(parts))
        first = min((file for file in base.named() if file.part == part), key=lambda file: file.first)
        starts[part] = first.last + 1
        if part == MOVES and (world.move is not None or world.home != number):
            return
    world.put(number, base, starts=tuple(sorted(starts.items())), removed=removed)


def is_leaving(world: World, file: File) -> bool:
    return file.part == MOVES and world.move is not None


def change_topics(world: World) -> Process:
    topics = world.topics
    if len(topics) < 2:
        yield from world.append(0, world.bundles[0].term, CATALOG, ("create", world.new("x")))
    elif world.walk.chance(0.3):
        topic = world.random.choice(topics)
        if (yield from world.append(0, world.bundles[0].term, CATALOG, ("remove", topic))):
            world.walk.saw("topics removed")


def move_partition(world: World) -> Process:
    """Move the partition to the other bundle: decide, seal, open, take the list over, forget."""
    is_pending = any(cut.state is State.PENDING for cut in world.cuts.values())
    if world.move is not None or (is_pending and not world.breaks("moved-under-a-cut")):
        return
    source, target = world.home, 3 - world.home
    move = world.move = Move(1, source, target)
    yield
    move.end = sum(len(world.bundles[b].until(None, MOVES)) for b in USERS)
    world.home = 0
    _append_now(world, source, "seal", move.end)
    sealed = len(world.bundles[source].history)
    for _ in range(world.random.randrange(6)):
        yield
    _append_now(world, target, "open", move.end)
    opened = len(world.bundles[target].history)
    world.home = target
    while min(world.bundles[source].newest.planned - sealed, world.bundles[target].newest.planned - opened) < 0:
        yield from compact(world)
        yield
    while not _take_list(world, source, target):
        yield
    while not _forget_list(world, source):
        yield
    world.move = None
    world.walk.saw("moves")


def _take_list(world: World, source: int, target: int) -> bool:
    base, frozen = world.bundles[target].newest, world.bundles[source].newest
    own = [file for file in base.files if file.part == MOVES]
    came = [file for file in frozen.files if file.part == MOVES]
    files = [file for file in base.files if file.part != MOVES]
    starts = dict(base.starts) | {MOVES: max(base.start(MOVES), frozen.start(MOVES))}
    return world.put(target, base, files=(*files, *came, *own), starts=tuple(sorted(starts.items())))


def _forget_list(world: World, source: int) -> bool:
    base = world.bundles[source].newest
    files = tuple(file for file in base.files if file.part != MOVES)
    return world.put(source, base, files=files)


def clean(world: World) -> Process:
    """Write the next version of the keyed partition, by what is in files; the log begins behind the one before."""
    base = world.bundles[KEYED_BUNDLE].newest
    number = max(world.versions)
    before = world.versions[number]
    log = {
        file.first + i: value
        for file in base.files
        if file.part == KEYED and file.key in world.files
        for i, value in enumerate(world.files[file.key])
    }
    end = max(log, default=-1) + 1
    if end <= before.end:
        return
    rows = {at: value for key in before.files if key in world.keyed for at, value in world.keyed[key].items()}
    new = {at: value for at, value in log.items() if at >= before.end}
    merges = world.walk.chance(0.5)
    newest = {value[0]: at for at, value in sorted((rows | new if merges else new).items())}
    data = {at: (rows | new)[at] for at in newest.values()}
    yield
    if max(world.versions) != number:
        return
    key = world.new("k")
    world.keyed[key] = data
    world.versions[number + 1] = Version(end, frozenset((key,)) if merges else before.files | {key})
    world.walk.saw("versions")
    yield
    base = world.bundles[KEYED_BUNDLE].newest
    starts = dict(base.starts) | {KEYED: max(base.start(KEYED), before.end)}
    world.put(KEYED_BUNDLE, base, starts=tuple(sorted(starts.items())))


def whole_files_below(checkpoint: Checkpoint, part: str) -> list[File]:
    """The files that no reader by this checkpoint needs, ascending."""
    named = checkpoint.named()
    return [file for file in checkpoint.files if file.part == part and file not in named]


def parts_of(checkpoint: Checkpoint) -> list[str]:
    return sorted({file.part for file in checkpoint.files}, key=topic_of)
