"""Model of a partition that moves between two ledgers, there and back again.

The ledger below is taken for granted (`tests.models.ledger`): its newest term appends, an older one
may live on and answer from what it knew. Checkpoints are a chain of each ledger upon which any
process may put the next. A move is decided, the old ledger *seals* the partition, the new one
*opens* it at the sealed end with the sealed producers' states, the old one drains into Parquet and
*freezes* its file list by a numbered plan, the new one takes the list over, the old one forgets.
Invariants: an acknowledged record is stored once, in its producer's order; an offset has one value;
the files that a plain reader sees are one gapless run at every moment; once all is quiet the ledger
of the last move has everything. A collector of garbage takes files that no list names, and reads the
lists one after another.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from itertools import pairwise

from tests.models.terms import NOT_OWNER, Term, TermsWorld
from tests.models.walk import Model, Process, Violation, Walk

STEPS = 12_000
STEPS_AT_REST = 6_000
OK, GAP = "ok", "gap"
Record = tuple[str, int]
"""(producer, sequence)"""
Span = tuple[int, int]

MUTANTS = {
    "append-after-seal": "a sealed partition takes no more records",
    "open-without-seal": "the new ledger opens a partition only at the end that the seal recorded",
    "producers-lost": "the states of producers move with the partition",
    "import-before-drain": "the file list is frozen only when Parquet has reached the sealed end",
    "freeze-without-barrier": "the freeze is a numbered plan, so that no earlier plan can still commit",
    "collected-by-lists-of-different-moments": "a file is judged by the list of the ledger in charge",
    "compact-before-import": "the new ledger makes no files before it has taken the list over",
}


@dataclass(slots=True)
class Partition:
    base: int
    end: int
    sealed: int = 0
    move: int = 0
    """The move that brought it here."""


@dataclass(slots=True)
class State:
    """The fold of one ledger, as far as a term knows it."""

    partition: Partition | None = None
    log: dict[int, Record] = field(default_factory=dict)
    producers: dict[str, int] = field(default_factory=dict)
    seals: dict[int, tuple[int, dict[str, int]]] = field(default_factory=dict)
    opened: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    number: int = 0
    here: bool = False
    files: tuple[Span, ...] = ()
    start: int = 0
    frozen: int = 0
    """The move for which the file list is frozen; 0: none."""
    imported: frozenset[int] = frozenset()
    finished: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """Write one file, or freeze the list for a move."""

    span: Span | None = None
    freeze: int = 0


@dataclass(frozen=True, slots=True)
class Move:
    id: int
    source: int
    target: int


class World(TermsWorld[State]):
    def __init__(self, walk: Walk) -> None:
        super().__init__(walk, [State(Partition(0, 0)), State()], late_within=2500)
        self.checkpoints = [Checkpoint(here=True), Checkpoint()]
        self.moves: list[Move] = []
        self.plans: list[dict[int, Plan]] = [{}, {}]
        self.stored: set[Span] = set()
        self.made: dict[Span, tuple[int, int]] = {}
        """The ledger and the plan of each file."""
        self.acknowledged: dict[str, int] = {}
        self.values: dict[int, Record] = {}

    def put_checkpoint(self, ledger: int, base: Checkpoint, new: Checkpoint) -> bool:
        if self.checkpoints[ledger].number != base.number:
            self.walk.saw("a checkpoint lost its number")
            return False
        self.checkpoints[ledger] = replace(new, number=base.number + 1)
        return True

    def look(self) -> None:
        """What a plain reader sees now, and whether the ledger in charge has what it lists."""
        spans = sorted(self.stored)
        for before, after in pairwise(spans):
            if after[0] != before[1] + 1:
                raise Violation(f"a plain reader sees {spans}")
        for ledger, checkpoint in enumerate(self.checkpoints):
            handed_over = checkpoint.frozen and checkpoint.frozen in self.checkpoints[1 - ledger].imported
            if checkpoint.here and not handed_over:
                for span in checkpoint.files:
                    if span[0] >= checkpoint.start and span not in self.stored:
                        raise Violation(f"ledger {ledger} lists {span}, which is gone")


def produce(term: Term[State], world: World, producer: str, sequence: int) -> str:
    partition = term.state.partition
    if partition is None or (partition.sealed and not world.breaks("append-after-seal")):
        return NOT_OWNER
    known = term.state.producers.get(producer, -1)
    if sequence != known + 1:
        return NOT_OWNER if not term.is_current else OK if sequence <= known else GAP

    def append(state: State) -> None:
        assert state.partition is not None
        offset = state.partition.end
        if world.values.setdefault(offset, (producer, sequence)) != (producer, sequence):
            raise Violation(f"offset {offset} has {world.values[offset]} and {(producer, sequence)}")
        state.log[offset] = (producer, sequence)
        state.partition.end = offset + 1
        state.producers[producer] = sequence

    return OK if term.append(append) else NOT_OWNER


def producer(world: World, name: str) -> Process:
    sequence, ledger = 0, 0
    while not world.healed:
        answer = yield from world.call(ledger, produce, world, name, sequence)
        if answer == OK:
            world.acknowledged[name] = sequence
            sequence += 1
        elif answer == GAP:
            raise Violation(f"producer {name}: {sequence} is taken for a gap after {world.acknowledged.get(name)}")
        elif answer == NOT_OWNER:
            ledger = 1 - ledger
        for _ in range(world.walk.random.randrange(6)):
            yield


def owner(world: World, ledger: int) -> Process:
    """Carry out the moves that are decided, as an owner that may know them late."""
    while True:
        yield
        moves = world.moves[-2:]
        yield
        term = world.owner(ledger)
        for move in moves:
            partition = term.state.partition
            if move.source == ledger and partition is not None and not partition.sealed and move.id > partition.move:
                seal(term, move)
            if move.target == ledger and move.id not in term.state.opened:
                source = world.terms[move.source] if world.walk.chance(0.5) else world.owner(move.source)
                yield from open_partition(world, term, move, source.state)


def seal(term: Term[State], move: Move) -> None:
    def change(state: State) -> None:
        if state.partition is not None and not state.partition.sealed:
            state.partition.sealed = move.id
            state.seals[move.id] = (state.partition.end, dict(state.producers))
            term.world.walk.saw("a partition was sealed")

    term.append(change)


def open_partition(world: World, term: Term[State], move: Move, source: State) -> Process:
    """`source`: a fold of the other ledger, perhaps an old one."""
    if move.id in source.seals:
        end, producers = source.seals[move.id]
    elif world.breaks("open-without-seal") and source.partition is not None:
        end, producers = source.partition.end, dict(source.producers)
    else:
        return
    if world.checkpoints[term.ledger].here:
        return  # the move before, away from here, is not finished
    yield

    def change(state: State) -> None:
        if move.id not in state.opened:
            state.opened.add(move.id)
            state.partition = Partition(end, end, move=move.id)
            state.producers = {} if world.breaks("producers-lost") else dict(producers)
            world.walk.saw("a partition was opened")

    term.append(change)


def compactor(world: World, ledger: int) -> Process:
    """Plans, files, commits, retention and the steps of a hand-over.

    Any process may run it and sleep between any two steps.
    """
    while True:
        yield
        seen = world.checkpoints[ledger]
        yield
        state = world.terms[ledger].state
        if not seen.here:
            yield from take_over(world, ledger, seen, state)
        elif not (yield from run_plan(world, ledger, seen, state)):
            if len(seen.files) > 2 and world.walk.chance(0.2) and not seen.frozen:
                yield from expire(world, ledger, seen)
            elif seen.frozen and seen.frozen in world.checkpoints[1 - ledger].imported:
                yield
                if world.put_checkpoint(ledger, seen, Checkpoint(imported=seen.imported, finished=seen.finished)):
                    world.walk.saw("the old ledger forgot the partition")


def run_plan(world: World, ledger: int, seen: Checkpoint, state: State) -> Process:
    """Freeze or write the next file. False: nothing is due."""
    partition = state.partition
    done = seen.files[-1][1] + 1 if seen.files else max(seen.start, partition.base if partition is not None else 0)
    end = partition.end if partition is not None else done
    sealed = partition.sealed if partition is not None else 0
    drained = done >= end or world.breaks("import-before-drain")
    freeze = bool(sealed) and not seen.frozen and drained
    if freeze and world.breaks("freeze-without-barrier"):
        world.put_checkpoint(ledger, seen, replace(seen, frozen=sealed))
        return True
    if not freeze and not (done < end and not seen.frozen and world.walk.chance(0.5)):
        return False
    number = seen.finished + 1
    last = min(end, done + world.walk.random.randrange(1, 6)) - 1
    plan = world.plans[ledger].setdefault(number, Plan(freeze=sealed) if freeze else Plan((done, last)))
    yield
    if plan.span is not None:
        if any(offset not in state.log for offset in range(plan.span[0], plan.span[1] + 1)):
            raise Violation(f"ledger {ledger}: a plan of {plan.span} needs records that are not in it")
        if world.checkpoints[ledger].finished != number - 1:
            return True  # a fence keeps later puts out
        world.stored.add(plan.span)
        world.made[plan.span] = ledger, number
        world.look()
    yield from commit(world, ledger, number, plan)
    return True


def commit(world: World, ledger: int, number: int, plan: Plan) -> Process:
    while True:
        yield
        base = world.checkpoints[ledger]
        yield
        if base.finished != number - 1:
            return
        if plan.span is None:
            new = replace(base, finished=number, frozen=plan.freeze)
            world.walk.saw("a file list was frozen")
        else:
            new = replace(base, finished=number, files=(*base.files, plan.span))
        world.put_checkpoint(ledger, base, new)


def expire(world: World, ledger: int, seen: Checkpoint) -> Process:
    new = replace(seen, files=seen.files[1:], start=seen.files[0][1] + 1)
    if world.put_checkpoint(ledger, seen, new):
        yield
        for span in sorted(world.stored):
            if span[1] >= new.start:
                break
            world.stored.discard(span)
            world.look()
            yield


def take_over(world: World, ledger: int, seen: Checkpoint, state: State) -> Process:
    other = world.checkpoints[1 - ledger]
    yield
    if world.breaks("compact-before-import") and state.partition is not None and world.walk.chance(0.3):
        world.put_checkpoint(ledger, seen, replace(seen, here=True, start=state.partition.base))
    elif other.frozen and other.frozen in state.opened and other.frozen not in seen.imported:
        imported = seen.imported | {other.frozen}
        yield
        new = replace(seen, here=True, files=other.files, start=other.start, frozen=0, imported=imported)
        if world.put_checkpoint(ledger, seen, new):
            world.walk.saw("a file list was handed over")


def collector(world: World) -> Process:
    """Take what no list names, ascending; a file that has to stay keeps all above it."""
    while True:
        yield
        found, seen = sorted(world.stored), [Checkpoint(), Checkpoint()]
        for ledger in world.walk.random.sample([0, 1], 2):
            for _ in range(world.walk.random.randrange(300)):
                yield
            seen[ledger] = world.checkpoints[ledger]
        live = {span for checkpoint in seen for span in checkpoint.files}
        for span in found:
            ledger, number = world.made[span]
            if span in live or seen[ledger].finished < number:
                break
            if not world.breaks("collected-by-lists-of-different-moments"):
                listed = yield from in_charge(world, ledger)
                if listed is None or span in listed:
                    break
            if span in world.stored:
                world.walk.saw("garbage was collected")
            world.stored.discard(span)
            world.look()


def in_charge(world: World, ledger: int) -> Generator[None, None, tuple[Span, ...] | None]:
    """Return the list of the one ledger that is in charge of what this one had; None if there is none now."""
    for _ in range(3):
        yield
        checkpoint = world.checkpoints[ledger]
        if checkpoint.here:
            return None if checkpoint.frozen else checkpoint.files
        ledger = 1 - ledger
    return None


def controller(world: World) -> Process:
    """Decide the next move once the one before is complete."""
    at = 0
    while not world.healed:
        for _ in range(world.walk.random.randrange(1500)):
            yield
        last = world.moves[-1] if world.moves else None
        if last is None or (
            last.id in world.checkpoints[last.target].imported and not world.checkpoints[last.source].here
        ):
            world.moves.append(Move(len(world.moves) + 1, at, 1 - at))
            at = 1 - at
            world.walk.saw("a move was decided")


def run(walk: Walk) -> None:
    world = World(walk)
    compactors = [compactor(world, ledger) for ledger in (0, 0, 1, 1)]
    processes = [
        producer(world, "x"),
        producer(world, "y"),
        owner(world, 0),
        owner(world, 1),
        *compactors,
        controller(world),
        collector(world),
    ]
    world.run(processes, STEPS, STEPS_AT_REST, sleep=range(100, 2500))
    check(world)


def check(world: World) -> None:
    target = world.moves[-1].target if world.moves else 0
    here = [ledger for ledger, checkpoint in enumerate(world.checkpoints) if checkpoint.here]
    if here != [target]:
        raise Violation(f"the files are with {here}; the last move was to {target}")
    partition, checkpoint = world.terms[target].state.partition, world.checkpoints[target]
    if partition is None:
        raise Violation(f"ledger {target} has the files and not the partition")
    if checkpoint.files and checkpoint.files[-1][1] + 1 != partition.end:
        raise Violation(f"Parquet ends at {checkpoint.files[-1][1] + 1}, the log at {partition.end}")
    stored = [span for span in sorted(world.stored) if span[1] >= checkpoint.start]
    if stored != list(checkpoint.files):
        raise Violation(f"stored {stored[-4:]}, listed {checkpoint.files[-4:]}")
    order = [world.values[offset] for offset in range(partition.end)]
    for name, sequence in world.acknowledged.items():
        mine = [found for who, found in order if who == name]
        if mine != list(range(len(mine))) or len(mine) <= sequence:
            raise Violation(f"producer {name} acknowledged up to {sequence}; the log has {mine[-6:]}")
    world.walk.saw("records stored", len(order))


MOVES = Model(
    "moves",
    run,
    MUTANTS,
    (
        "a ledger changed hands",
        "a checkpoint lost its number",
        "a move was decided",
        "a partition was sealed",
        "a partition was opened",
        "a file list was frozen",
        "a file list was handed over",
        "the old ledger forgot the partition",
        "records stored",
    ),
)
