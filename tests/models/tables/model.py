"""Model of lake tables over the Parquet files of a topic: two formats, two partitions of which one
moves between two bundles, rounds, retention, deletion behind the gates, merges, a topic that is
deleted and created again, a table that is rebuilt, unset and set again. Registrars sleep between any
two steps, commits come late, logs are cleaned. How a round makes files is tests/models/parquet.py:
here it is one step. Versions of keyed partitions are tests/models/keyed_tables.py.

A version of a table is *held* while it is the newest, or was it until a short while ago: a reader may
have it open. A table's *generation* is its topic's id and its setting. Invariants, looked at after
each step that changes a store:

* each held version names only files that are there, and its manifest is there;
* a version shows of each partition one run, from the log start or below: no gap, no row twice, and
  at its end not less than the version before;
* a stream over the versions gets each row once;
* the table never goes back to a former topic or setting, and a number that was given once is never
  taken for the newest again;
* a frozen list does not change.

At the end all is calm: the table has all that Parquet has, unless it takes no new rows, and what is
below the log start is gone
from the store, because nothing is held forever.
"""

from __future__ import annotations

from tests.models.tables import bundles
from tests.models.tables.registrar import Registrar, clean
from tests.models.tables.state import NAP, PARTITIONS
from tests.models.tables.world import World
from tests.models.walk import Model, Process, Walk

STEPS, CALM_STEPS, REFUSED_STEPS, STILL_STEPS = 5000, 1800, 200, 8000
REGISTRARS = 3
"""For each format."""

RULES = {
    "no-gate": "a file that a held version names is not deleted",
    "gate-at-once": "the gate goes by every held version, not by the newest alone",
    "age-of-the-version-itself": "a version is as old as the one after it",
    "age-by-our-own-clock": "the ages of versions are by the store's clock",
    "gate-without-a-version": "the gate never rises above what a version says, also where no file was registered",
    "unknown-taken-as-won": "an unknown outcome is settled by reading, or the turn begins anew",
    "one-gate-for-two-formats": "each format has its own gate, and a file goes below the lowest",
    "gate-of-a-frozen-list": "the gate is raised on the list in charge, never on a frozen one",
    "end-from-memory": "what is registered is read from the table",
    "gaps-allowed": "the first new file begins where the registered end is",
    "gap-beside-older-files": "a gap below the log start comes after the removal of the files before it",
    "removes-beside-adds": "a version adds rows, or removes files",
    "merged-before-it-is-registered": "a merged file replaces exactly the files that the table names in its range",
    "merged-over-a-part-of-its-range": "all small files of a merged one leave the table with it",
    "start-within-a-merged-file": "no version says a log start within a merged file that it names",
    "refused-rows-hold-up-merges": "a table that takes no new rows puts small files back all the same",
    "a-lost-list-holds-up-the-log-start": "small files are put back by the log start, be the list there or not",
    "begun-anew-beside-named-files": "a list is begun anew when no file of the lost one is left from the front on",
    "rebuilt-with-a-merged-file-that-is-behind": "a rebuild takes merged files only from the log start on",
    "another-id-is-a-newer-one": "generations are ordered: a registrar of a former one ends",
    "log-deleted-with-its-topic": "the table's log outlives its topic",
    "set-again-without-a-rebuild": "a table that is set again begins with a rebuild",
    "a-rebuild-forgets-what-is-held": "held versions of all generations of the topic count for the gate",
    "registered-before-the-bundles-know": "nothing is registered before every bundle knows of the table",
    "lists-read-before-the-bundles-know": "lists are read after every bundle knows of the table",
    "absence-taken-as-removal": "that a list lacks a partition says nothing",
    "cleaned-up-after-an-unknown-outcome": "nothing is cleaned up because of an outcome",
    "manifests-swept-by-age": "a manifest goes only if its commit can no longer win",
    "log-checkpoint-without-txn": "a checkpoint of the log has every registered end",
    "gate-by-memory": "the gate is raised by what the table says, never from memory",
}


def run(walk: Walk) -> None:
    world = World(walk)
    processes = _processes(world)
    _step(world, processes, STEPS)
    world.is_calm = True
    for process in processes:
        process.wakes_at = 0
    _step(world, processes, CALM_STEPS)
    world.refuses_rows = walk.chance(0.3)
    world.lost_lists = {partition for partition in PARTITIONS if walk.chance(0.3)}
    _step(world, processes, REFUSED_STEPS)
    world.is_still = True
    _step(world, processes, STILL_STEPS)
    world.check_end()


class _Scheduled:
    def __init__(self, process: Process, *, registers: bool = False) -> None:
        self.process, self.registers = process, registers
        self.wakes_at = 0


def _processes(world: World) -> list[_Scheduled]:
    makers = [bundles.make_files, bundles.raise_starts, bundles.merge, bundles.delete, bundles.delete]
    return [
        *(_Scheduled(make(world, bundle)) for make in makers for bundle in (0, 1)),
        _Scheduled(bundles.move(world)),
        _Scheduled(bundles.control(world)),
        *(_Scheduled(clean(world, table)) for table in world.tables),
        *(
            _Scheduled(Registrar(world, table).run(), registers=True)
            for table in world.tables
            for _ in range(REGISTRARS)
        ),
    ]


def _step(world: World, processes: list[_Scheduled], steps: int) -> None:
    walk = world.walk
    for _ in range(steps):
        world.now += 1
        world.land()
        chosen = walk.random.choice(processes)
        if chosen.wakes_at > world.now:
            continue
        if not world.is_calm and walk.chance(0.0005):
            for process in processes:
                if process.registers:
                    process.wakes_at = world.now + walk.random.randrange(NAP)
        if not world.is_calm and walk.chance(0.006):
            chosen.wakes_at = world.now + walk.random.randrange(50, NAP)
            continue
        try:
            pause = next(chosen.process) or 0
        except StopIteration:
            processes.remove(chosen)
            continue
        chosen.wakes_at = max(chosen.wakes_at, world.now + pause)


TABLES = Model(
    "tables",
    run,
    RULES,
    (
        "commits that came late",
        "commits that landed in a number that was free again",
        "files deleted",
        "gates raised",
        "manifests swept",
        "merges",
        "merged files in a table",
        "lists begun anew",
        "small files that were put back",
        "moves",
        "numbers cleaned",
        "rebuilds",
        "tables set again",
        "topics created again",
    ),
)
