"""Model of a lake table over a keyed partition: numbered versions of the partition, each with files
of its own and of former ones, and a table whose commits each show one version as a whole.

Two cleaners make versions, two collectors delete files that no version names, two registrars commit
to the table. Each may sleep between any two steps, and a commit that was sent may land long after;
a number that is taken refuses it. A table version is *held* while it is the newest, or was it until
a short while ago: a reader may have it open. Invariants: the files of every held table version are
there, those of the newest keyed version too, and the table never shows an older keyed version than
before. So a collector keeps the files of a version for an hour, and until the *gate* is above it:
the lowest keyed version of all held table versions, which a registrar raises.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.models.walk import Model, Process, Violation, Walk

STEPS = 2500
HELD, HOUR = 300, 60
LATE, NAP = 1200, 2000
"""The longest that a commit is on its way, and that a process sleeps."""
File = tuple[int, int]
"""The keyed version that made it, and the number of the cleaner's attempt."""

RULES = {
    "deleted-by-the-hour": "files stay until the gate is above their version, however long that takes",
    "version-read-before-the-table": "a registrar reads the table first, then the keyed version that it commits",
}


@dataclass(frozen=True, slots=True)
class TableVersion:
    keyed: int
    files: frozenset[File]
    at: int


@dataclass(slots=True)
class World:
    walk: Walk
    now: int = 0
    attempts: int = 0
    gate: int = 0
    versions: dict[int, frozenset[File]] = field(default_factory=lambda: {0: frozenset()})
    made_at: dict[int, int] = field(default_factory=lambda: {0: 0})
    stored: set[File] = field(default_factory=set)
    table: dict[int, TableVersion] = field(default_factory=lambda: {0: TableVersion(0, frozenset(), 0)})
    late: list[tuple[int, int, int, frozenset[File]]] = field(default_factory=list)

    def held(self) -> list[TableVersion]:
        """Return the table versions that a reader may have open: the age counts from the version after."""
        return [
            found
            for number, found in self.table.items()
            if number + 1 not in self.table or self.now - self.table[number + 1].at < HELD
        ]

    def check(self) -> None:
        for found in self.held():
            if lost := found.files - self.stored:
                raise Violation(f"a held table version shows keyed version {found.keyed}, {min(lost)} of it is gone")
        if lost := self.versions[max(self.versions)] - self.stored:
            raise Violation(f"the newest keyed version has lost {min(lost)}")

    def commit(self, base: int, keyed: int, files: frozenset[File]) -> None:
        """Put the table version after `base`, if it is absent."""
        if base + 1 in self.table:
            self.walk.saw("commits that lost")
            return
        if keyed < self.table[base].keyed:
            raise Violation(f"the table goes back from keyed version {self.table[base].keyed} to {keyed}")
        self.table[base + 1] = TableVersion(keyed, files, self.now)
        self.walk.saw("commits")
        self.check()

    def land(self) -> None:
        """Let those commits arrive whose time has come."""
        for sent in [sent for sent in self.late if sent[0] <= self.now]:
            self.late.remove(sent)
            self.walk.saw("commits that came late")
            self.commit(*sent[1:])


def clean(world: World) -> Process:
    """Make the next keyed version, of a new file and of some of the files before."""
    while True:
        yield world.walk.random.randrange(100)
        number = max(world.versions)
        before = sorted(world.versions[number])
        kept = frozenset(file for file in before if world.walk.chance(0.6))
        yield
        if number + 1 not in world.versions:
            world.attempts += 1
            new = (number + 1, world.attempts)
            world.stored.add(new)
            world.versions[number + 1] = kept | {new}
            world.made_at[number + 1] = world.now
            world.walk.saw("keyed versions")


def collect(world: World) -> Process:
    """Delete the files that no version names which is to stay."""
    while True:
        yield world.walk.random.randrange(30)
        newest, listed = max(world.versions), set(world.stored)
        yield
        living = [number for number in world.versions if _stays(world, number, newest)]
        named = frozenset[File]().union(*(world.versions[number] for number in living))
        yield
        for file in sorted(file for file in listed if file not in named and file[0] <= newest):
            world.stored.discard(file)
            world.walk.saw("files deleted")
            world.check()
            yield
        for number in [number for number in world.versions if number not in living and number < newest - 1]:
            world.versions.pop(number, None)
            yield


def _stays(world: World, number: int, newest: int) -> bool:
    if number >= newest:
        return True
    age = world.now - world.made_at[number + 1]
    if "deleted-by-the-hour" in world.walk.broken:
        return age < max(HOUR, HELD)
    return age < HOUR or number >= world.gate


def register(world: World) -> Process:
    """Commit the newest keyed version; if the table has it, raise the gate to what held versions show."""
    reads_first = "version-read-before-the-table" in world.walk.broken
    while True:
        yield
        early = max(world.versions)
        early_files = world.versions[early]
        yield
        base = max(world.table)
        yield
        keyed = early if reads_first else max(world.versions)
        files = early_files if reads_first else world.versions[keyed]
        if keyed == world.table[base].keyed or (keyed < world.table[base].keyed and not reads_first):
            lowest = min(found.keyed for found in world.held())
            yield
            world.gate = max(world.gate, lowest)
            continue
        yield
        if world.walk.chance(0.15):
            world.late.append((world.now + world.walk.random.randrange(LATE), base, keyed, files))
        else:
            world.commit(base, keyed, files)


def run(walk: Walk) -> None:
    world = World(walk)
    makers: list[Callable[[World], Process]] = [clean, clean, collect, collect, register, register]
    processes = [make(world) for make in makers]
    wakes_at = [0] * len(processes)
    for _ in range(STEPS):
        world.now += 1
        world.land()
        chosen = walk.random.randrange(len(processes))
        if wakes_at[chosen] > world.now:
            continue
        if walk.chance(0.01):
            wakes_at[chosen] = world.now + walk.random.randrange(NAP)
            continue
        wakes_at[chosen] = max(wakes_at[chosen], world.now + (next(processes[chosen]) or 0))


KEYED_TABLES = Model(
    "keyed-tables", run, RULES, ("commits", "commits that lost", "commits that came late", "files deleted")
)
