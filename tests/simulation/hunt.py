"""Run `make mutants`: apply each named bug in turn and show the first seed that catches it. A bug
that survives fails the run.

python -m tests.simulation.hunt --seeds 300 [name …]
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time

from tests.simulation.all_mutants import MUTANTS
from tests.simulation.levels import LEVELS
from tests.simulation.mutants import NOT_A_CATCH, hunt


def hunt_one(what: tuple[str, int]) -> tuple[str, bool, float]:
    """(line to print, whether it was caught, seconds of CPU); in a separate process."""
    name, seeds = what
    begun = time.process_time()
    mutant = MUTANTS[name]
    caught = hunt(mutant, LEVELS[mutant.level], range(seeds))
    cpu_s = time.process_time() - begun
    if caught.seed is None or caught.result is None:
        return f"{name:50} SURVIVED {caught.tried} seeds ({cpu_s:.0f} s): {caught.misfit or mutant.what}", False, cpu_s
    kinds = sorted(caught.result.kinds - NOT_A_CATCH)
    return (
        f"{name:50} {mutant.level:8} seed {caught.seed:4}, {caught.tried:3} tried ({cpu_s:.1f} s): {', '.join(kinds)}",
        True,
        cpu_s,
    )


def part_of(text: str) -> tuple[int, int]:
    """Parse "0/8". Raises ArgumentTypeError."""
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and int(part) < int(parts)):
        raise argparse.ArgumentTypeError(f"{text!r} is no part, as 0/8, the first of eight, or 7/8, the last")
    return int(part), int(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description="Look for a seed that catches each mutant.")
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--part", type=part_of, default=(0, 1), help="0/8: the first of eight parts of them")
    parser.add_argument("names", nargs="*")
    chosen = parser.parse_args()
    part, parts = chosen.part
    names = (chosen.names or sorted(MUTANTS))[part::parts]
    survivors, cpu_s = 0, 0.0
    with multiprocessing.get_context("spawn").Pool(chosen.processes, maxtasksperchild=1) as pool:
        for line, caught, seconds in pool.imap_unordered(hunt_one, [(name, chosen.seeds) for name in names]):
            print(line, flush=True)
            survivors += not caught
            cpu_s += seconds
    print(f"\n{len(names) - survivors} of {len(names)} mutants caught, {cpu_s:.0f} s of CPU")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
