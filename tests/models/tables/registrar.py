"""A registrar of the model of tables: it reads what the table and the bundles say, commits the next
version, and raises the gates to what held versions say.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from tests.models.tables.drafts import Lists, draft_rebuild, draft_version
from tests.models.tables.state import HELD, LATE, PARTITIONS, Checkpoint, Commit, Generation, Part, Shown
from tests.models.tables.table import Table
from tests.models.tables.world import World
from tests.models.walk import Process


class HeldVersion(NamedTuple):
    number: int
    shown: Shown
    landed_at: int
    replaced_at: int | None


@dataclass(slots=True)
class Read:
    """What one turn goes by."""

    newest: int
    shown: Shown
    held: list[HeldVersion]
    at: int
    lists: Lists


class Registrar:
    def __init__(self, world: World, table: Table) -> None:
        self.world, self.table = world, table
        self.skew = world.walk.random.randrange(-300, 300)
        self.generation: Generation | None = None
        self.is_set = False
        self.ends_from_memory: dict[tuple[Generation, int], int] = {}
        self.starts_from_memory: dict[tuple[Generation, int], tuple[int, int]] = {}
        """The start that an own commit said, and when."""

    def run(self) -> Process:
        while True:
            yield
            if self.generation is None or self.world.is_calm or self.world.walk.chance(0.2):
                self.generation = self.world.generation  # the catalog, as this process read it
                self.is_set = self.world.is_set and not self.world.is_removed
            yield
            if self.is_set:
                yield from self._turn(self.generation)

    def _turn(self, generation: Generation) -> Process:
        read = yield from self._read(generation)
        if read is None:
            return
        shown = read.shown
        is_former_setting = shown.generation != generation and shown.generation[0] == generation[0]
        if is_former_setting and self.world.breaks("set-again-without-a-rebuild"):
            shown = read.shown = replace(shown, generation=generation)
        commit = Commit(read.newest, self.world.walk.random.random(), generation)
        if shown.generation != generation:
            if len(read.lists) < len(PARTITIONS):
                return
            draft_rebuild(self.world, commit, shown, read.lists)
        else:
            draft_version(self.world, commit, shown, read.lists, self.ends_from_memory)
        if (commit.adds or commit.removes or commit.start) and not self._waits_for_own_starts(generation, read):
            yield from self._commit(commit, read)
        elif shown.generation == generation:
            yield from self._raise_gates(generation, read)

    def _read(self, generation: Generation) -> Process:
        """First every bundle knows of the table; then the newest version is read, then the lists."""
        world, table = self.world, self.table
        known = self._all_know(generation) or world.breaks("lists-read-before-the-bundles-know")
        yield
        held = [
            HeldVersion(number, table.shown[number], table.landed_at[number], table.landed_at.get(number + 1))
            for number in table.held()
        ]
        read = Read(table.newest, table.shown[table.newest], held, world.now, {})
        yield
        if read.shown.generation > generation and not world.breaks("another-id-is-a-newer-one"):
            return None  # a newer topic or setting: this process is late
        trusts_any = world.breaks(
            "registered-before-the-bundles-know", "lists-read-before-the-bundles-know", "another-id-is-a-newer-one"
        )
        for partition in PARTITIONS:
            found = (yield from world.in_charge(partition)) if known else None
            if found is None:
                continue
            bundle, checkpoint = found
            known = trusts_any or (checkpoint.generation == generation and checkpoint.is_set)
            if (listed := self._listed(checkpoint, partition, generation[0])) is not None:
                read.lists[partition] = (bundle, listed)
        if not known or (world.breaks("lists-read-before-the-bundles-know") and not self._all_know(generation)):
            return None
        return read

    def _all_know(self, generation: Generation) -> bool:
        return self.world.breaks("registered-before-the-bundles-know") or self.world.all_know(generation)

    def _listed(self, checkpoint: Checkpoint, partition: int, topic: int) -> Part | None:
        part = checkpoint.parts.get(partition)
        if part is not None:
            return part if part.topic == topic else None
        if self.world.breaks("absence-taken-as-removal"):
            return Part(topic, start=1 << 40)
        return None

    def _waits_for_own_starts(self, generation: Generation, read: Read) -> bool:
        """Only under a mutant that raises gates from memory."""
        return self._raises_from_memory and any(
            of == generation and read.at - said_at > HELD for (of, _), (_, said_at) in self.starts_from_memory.items()
        )

    @property
    def _raises_from_memory(self) -> bool:
        return self.world.breaks("unknown-taken-as-won", "gate-by-memory")

    def _commit(self, commit: Commit, read: Read) -> Process:
        world, table = self.world, self.table
        if table.form == "iceberg":
            table.manifests[commit.put] = world.now
        yield
        has_won = self._send(commit)
        if has_won is None:
            yield
            there = table.log.get(commit.base + 1)
            has_won = there is not None and there.put == commit.put
            if there is None and world.breaks("cleaned-up-after-an-unknown-outcome"):
                table.manifests.pop(commit.put, None)
                world.check_files()
            if there is None and world.breaks("unknown-taken-as-won"):
                has_won = True
        if has_won:
            self.ends_from_memory |= {(commit.generation, part): end for part, end in commit.end.items()}
            said = {(commit.generation, part): (start, read.at) for part, start in commit.start.items()}
            self.starts_from_memory |= said

    def _send(self, commit: Commit) -> bool | None:
        """Return whether it won; None: the answer was lost, and the commit may land at any time or never."""
        world = self.world
        fate = world.walk.random.random()
        if world.is_calm:
            return self.table.land(commit)
        if fate > 0.15:
            has_won = self.table.land(commit)
            return None if world.walk.chance(0.1) else has_won
        if fate > 0.05:
            world.late.append((world.now + world.walk.random.randrange(LATE), self.table, commit))
            world.walk.saw("commits that came late")
        return None

    def _raise_gates(self, generation: Generation, read: Read) -> Process:
        held = self._held(generation, read)
        form = "one" if self.world.breaks("one-gate-for-two-formats") else self.table.form
        for partition, (bundle, part) in read.lists.items():
            gate = min((shown.start.get(partition, 0) for shown in held), default=0)
            if self.world.breaks("gate-without-a-version"):
                named = [file for shown in held for file in shown.of(partition)]
                gate = max(gate, 0 if any(file.end <= part.start for file in named) else part.start)
            if self._raises_from_memory:
                start, said_at = self.starts_from_memory.get((generation, partition), (0, read.at))
                if read.at - said_at > HELD:
                    gate = max(gate, start)
                    self.starts_from_memory.pop((generation, partition))
            if gate > part.gate.get(form, 0):
                yield from self._raise(bundle, partition, generation, form, gate)

    def _held(self, generation: Generation, read: Read) -> list[Shown]:
        if self.world.breaks("gate-at-once"):
            return [read.shown]
        if self.world.breaks("age-of-the-version-itself"):
            return [
                version.shown
                for version in read.held
                if version.shown.generation == generation
                and (version.number == read.newest or read.at - version.landed_at < HELD)
            ]
        forgets = self.world.breaks("a-rebuild-forgets-what-is-held")
        skew = self.skew if self.world.breaks("age-by-our-own-clock") and not self.world.is_calm else 0
        return [
            version.shown
            for version in read.held
            if (version.shown.generation == generation if forgets else version.shown.generation[0] == generation[0])
            and (version.replaced_at is None or read.at + skew - version.replaced_at < HELD)
        ]

    def _raise(self, bundle: int, partition: int, generation: Generation, form: str, gate: int) -> Process:
        def raised(new: Checkpoint) -> bool:
            part = new.parts.get(partition)
            if part is None or part.topic != generation[0] or new.generation != generation:
                return False
            if part.frozen and not self.world.breaks("gate-of-a-frozen-list"):
                return False
            part.gate[form] = max(part.gate.get(form, 0), gate)
            return True

        if (yield from self.world.change(bundle, raised)):
            self.world.walk.saw("gates raised")


def clean(world: World, table: Table) -> Process:
    """Delta: old numbers go, ascending, below a log checkpoint. Iceberg: manifests go that no version
    can name any longer.
    """
    while True:
        yield world.walk.random.randrange(400)
        if table.form == "delta":
            low = min(table.held())
            for number in sorted(number for number in table.log if number < low):
                table.log.pop(number, None)
                world.walk.saw("numbers cleaned")
                yield
            for number in [number for number in table.shown if number < low]:
                table.shown.pop(number)
                table.landed_at.pop(number, None)
            continue
        listed = dict(table.manifests)
        yield
        named = {table.log[number].put for number in table.held() if number}
        current_since = table.landed_at[table.newest]
        yield
        for put, put_at in listed.items():
            is_of_an_older_base = put_at < current_since
            is_swept_by_age = world.breaks("manifests-swept-by-age") and world.now - put_at > 2 * HELD
            if put not in named and (is_of_an_older_base or is_swept_by_age):
                table.manifests.pop(put, None)
                world.walk.saw("manifests swept")
        world.check_files()
