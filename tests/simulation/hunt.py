"""Run `make mutants`: apply each named bug in turn and show a seed that catches it. A bug that survives fails the
run.

python -m tests.simulation.hunt [--seeds 400] [--record] [name …]

The seed that `caught.tsv` remembers is tried first. `--record` writes what was found anew; `--anew` hunts from
seed 0 although there is a record.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from tests.simulation.all_mutants import MUTANTS
from tests.simulation.caught import Hunted, Record, hunt_with_record, read, remember
from tests.simulation.levels import LEVELS
from tests.simulation.mutants import NOT_A_CATCH


@dataclass(frozen=True, slots=True)
class Told:
    """What a process tells of one mutant."""

    lines: list[str]
    failed: bool
    new: Record | None
    stale: bool
    cpu_s: float
    name: str = ""
    level: str = ""


def told(hunted: Hunted, cpu_s: float) -> Told:
    """Put into words what came out."""
    caught, mutant = hunted.caught, hunted.caught.mutant
    lines = [
        f"{mutant.name:50} seed {seed} of {mutant.level} fails without the bug too: mend that first"
        for seed in hunted.unclean
    ]
    if hunted.stale is not None:
        lines.append(f"{mutant.name:50} its record is stale: seed {hunted.stale.seed} no longer catches it")
    if caught.seed is None or caught.result is None:
        lines.append(f"{mutant.name:50} SURVIVED {caught.tried} seeds ({cpu_s:.0f} s): {caught.misfit or mutant.what}")
        return Told(lines, True, None, hunted.stale is not None, cpu_s, mutant.name, mutant.level)
    kinds = ", ".join(sorted(caught.result.kinds - NOT_A_CATCH))
    how = "as recorded" if hunted.new is None else f"{hunted.new.tried:3} tried"
    lines.append(f"{mutant.name:50} {mutant.level:8} seed {caught.seed:4}, {how} ({cpu_s:.1f} s): {kinds}")
    is_stale = hunted.stale is not None
    return Told(lines, bool(hunted.unclean), hunted.new, is_stale, cpu_s, mutant.name, mutant.level)


def hunt_one(seeds: int, what: tuple[str, Record | None]) -> Told:
    """Hunt one mutant, in a separate process."""
    name, record = what
    mutant = MUTANTS[name]
    begun_s = time.process_time()
    try:
        hunted = hunt_with_record(mutant, LEVELS[mutant.level], range(seeds), record, time.process_time)
    except Exception as error:  # a bug of the simulation: the other mutants are hunted all the same
        lines = [f"{name:50} could not be hunted: {error!r}", traceback.format_exc()]
        return Told(lines, True, None, False, time.process_time() - begun_s, name, mutant.level)
    return told(hunted, time.process_time() - begun_s)


def summary(all_told: Sequence[Told], wall_s: float) -> list[str]:
    """Return what came out of a run: by level, then the whole, then the names of what needs work."""
    lines = [f"{'level':14}{'caught':>8}{'of':>6}{'CPU s':>8}"]
    for level in sorted({one.level for one in all_told}):
        of = [one for one in all_told if one.level == level]
        caught = sum(not one.failed for one in of)
        lines.append(f"{level:14}{caught:8}{len(of):6}{sum(one.cpu_s for one in of):8.0f}")
    failed, stale = [one.name for one in all_told if one.failed], [one.name for one in all_told if one.stale]
    cpu_s = sum(one.cpu_s for one in all_told)
    lines += [
        "",
        f"{len(all_told) - len(failed)} of {len(all_told)} mutants caught, {cpu_s:.0f} s of CPU, {wall_s:.0f} s",
    ]
    if stale:
        lines.append(
            f"{len(stale)} records were stale (make mutants RECORD=1 writes new seeds): {', '.join(sorted(stale))}"
        )
    if failed:
        lines.append(f"NOT CAUGHT: {', '.join(sorted(failed))}")
    return lines


def in_order_of_cost(names: Iterable[str], records: Mapping[str, Record]) -> list[str]:
    """Put those with a record first, the longest of them foremost, so that both processes end at about one time."""
    return sorted(names, key=lambda name: (-records[name].seed_s, name) if name in records else (1.0, name))


def main() -> int:
    parser = argparse.ArgumentParser(description="Look for a seed that catches each mutant.")
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--record", action="store_true", help="write what is found anew to tests/simulation/caught.tsv")
    parser.add_argument("--anew", action="store_true", help="hunt from seed 0, although there is a record")
    parser.add_argument("names", nargs="*")
    chosen = parser.parse_args()
    if unknown := sorted(set(chosen.names) - set(MUTANTS)):
        parser.error(f"there is no mutant {', '.join(unknown)}")
    records = {} if chosen.anew else read()
    names = chosen.names or in_order_of_cost(MUTANTS, records)
    all_told: list[Told] = []
    begun_s = time.monotonic()
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["tests.simulation.all_mutants", "tests.simulation.levels"])  # imports: 3 s of CPU
    with processes.Pool(chosen.processes, maxtasksperchild=1) as pool:
        work = [(name, records.get(name)) for name in names]
        for one in pool.imap_unordered(partial(hunt_one, chosen.seeds), work):
            all_told.append(one)
            print("\n".join(one.lines), flush=True)
            if chosen.record and one.new is not None:
                remember(one.new)
    print("", *summary(all_told, time.monotonic() - begun_s), sep="\n")
    return 1 if any(one.failed for one in all_told) else 0


if __name__ == "__main__":
    sys.exit(main())
