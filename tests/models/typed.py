"""Model of typed values: ids of schemas, ids of fields, the catalog by which a plan decodes, the
column `appended`.

Schemas are registered and deleted, and records written by them; brokers take over with clocks of
their own. A plan of compaction takes the rows since the plan before, and two runners make files of
it, each with its own catalog. Invariants: an id has one meaning for ever; all runners of a plan make
equal rows; a row is decoded by the schema that its producer had; one field id is one field in a
table; `appended` never falls within a partition.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.models.walk import Model, Violation, Walk

STEPS = 400
FIRST_FIELD = 100
Path = tuple[str, str]
"""A subject, and a field of it."""

RULES = {
    "ids-from-the-highest-that-is-left": "schema ids are counted by a record of their own, not by what is left",
    "field-ids-of-each-subject": "field ids are counted for the cluster, not for each subject",
    "catalog-read-before-the-log": "the catalog of a plan is read after the last row that the plan names",
    "each-runner-reads-its-own-catalog": "all runners of a plan resolve ids by the plan's offset of the catalog",
    "a-deleted-schema-is-gone": "the text of a deleted schema stays, because rows may need it",
    "appended-by-the-clock-of-each-owner": "`appended` is never below what the log says already",
    "appended-floor-in-memory": "a takeover knows the highest `appended` of the log",
}


@dataclass(slots=True)
class World:
    walk: Walk
    clocks: list[int]
    meta: list[tuple[str, int, Path]] = field(default_factory=list)
    log: list[tuple[int, Path, int]] = field(default_factory=list)
    fields: dict[Path, int] = field(default_factory=dict)
    columns: dict[int, Path] = field(default_factory=dict)
    owner: int = 0
    ids: int = 0
    field_ids: int = FIRST_FIELD
    floor: int = 0
    told: int = 0
    planned: int = 0

    def breaks(self, rule: str) -> bool:
        return rule in self.walk.broken

    def gone(self) -> set[int]:
        return {id_ for kind, id_, _ in self.meta if kind == "gone"}

    def known(self, upto: int) -> dict[int, Path]:
        """Return what a process knows that has read the catalog so far."""
        found: dict[int, Path] = {}
        for kind, id_, path in self.meta[:upto]:
            if kind == "schema":
                found[id_] = path
            elif self.breaks("a-deleted-schema-is-gone"):
                found.pop(id_, None)
        return found


def register(world: World) -> None:
    if world.breaks("ids-from-the-highest-that-is-left"):
        gone = world.gone()
        id_ = max([each for kind, each, _ in world.meta if kind == "schema" and each not in gone] or [0]) + 1
    else:
        world.ids += 1
        id_ = world.ids
    subject, name = world.walk.random.choice("ab"), world.walk.random.choice("xyz")
    path = (subject, name)
    if path not in world.fields:
        if world.breaks("field-ids-of-each-subject"):
            world.fields[path] = FIRST_FIELD + 1 + sum(each[0] == subject for each in world.fields)
        else:
            world.field_ids += 1
            world.fields[path] = world.field_ids
    if any(kind == "schema" and each == id_ for kind, each, _ in world.meta):
        raise Violation(f"schema id {id_} gets a second meaning")
    world.meta.append(("schema", id_, path))
    world.walk.saw("schemas")


def delete(world: World) -> None:
    living = [each for each in world.meta if each[0] == "schema"]
    if not living:
        return
    world.meta.append(("gone", world.walk.random.choice(living[-2:])[1], ("", "")))
    world.walk.saw("deletions")
    if world.breaks("ids-from-the-highest-that-is-left") and world.walk.chance(0.5):  # the catalog is cleaned by key
        gone = world.gone()
        world.meta[:] = [each for each in world.meta if each[1] not in gone]


def write(world: World, now: int) -> None:
    if not world.meta:
        return
    kind, id_, path = world.walk.random.choice(world.meta[-4:])
    if kind != "schema" or id_ in world.gone():
        return
    stamp = now + world.clocks[world.owner]
    if not world.breaks("appended-by-the-clock-of-each-owner"):
        stamp = max(stamp, world.floor)
    world.floor = max(world.floor, stamp)
    world.log.append((id_, path, stamp))
    world.walk.saw("rows")


def take_over(world: World) -> None:
    world.owner = world.walk.random.randrange(3)
    world.clocks[world.owner] += world.walk.random.randrange(-100, 30)
    world.walk.saw("takeovers")
    if world.breaks("appended-floor-in-memory"):
        world.floor = 0


def compact(world: World) -> None:
    if world.planned >= len(world.log):
        return
    late = 0 if not world.breaks("catalog-read-before-the-log") else world.walk.random.randrange(4)
    read = max(0, len(world.meta) - late)
    rows, world.planned = world.log[world.planned :], len(world.log)
    made = []
    for runner in range(2):
        if runner and world.walk.chance(0.5):  # the catalog goes on while files are made
            world.meta.append(("gone", world.log[-1][0], ("", "")))
        own = world.breaks("each-runner-reads-its-own-catalog")
        known = world.known(len(world.meta) - world.walk.random.randrange(3) if own else read)
        made.append([known.get(id_) for id_, _, _ in rows])
    if made[0] != made[1]:
        raise Violation("two runners of one plan decode otherwise")
    for (id_, path, stamp), got in zip(rows, made[0], strict=True):
        if got != path:
            raise Violation(f"a row of schema {id_} {path} is decoded as {got}")
        if world.columns.setdefault(world.fields[path], path) != path:
            raise Violation(f"field id {world.fields[path]} is two columns of one table")
        if stamp < world.told:
            raise Violation(f"`appended` falls from {world.told} to {stamp}")
        world.told = stamp
    world.walk.saw("plans")


def run(walk: Walk) -> None:
    world = World(walk, [walk.random.randrange(-200, 200) for _ in range(3)])
    for now in range(STEPS):
        chosen = walk.random.random()
        if chosen < 0.12:
            register(world)
        elif chosen < 0.15:
            delete(world)
        elif chosen < 0.6:
            write(world, now)
        elif chosen < 0.66:
            take_over(world)
        elif chosen < 0.8:
            compact(world)


TYPED = Model("typed", run, RULES, ("schemas", "deletions", "rows", "takeovers", "plans"))
