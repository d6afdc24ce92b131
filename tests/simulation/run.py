"""`make simulate`: runs seeds in two processes, prints what failed with the command that replays
it, and what was reached.

python -m tests.simulation.run --level cluster --seeds 200 --first-seed 0
python -m tests.simulation.run --level cluster --seeds 1 --first-seed 13 --trace      every line of one run
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

from tests.models.run import MODELS, run_models
from tests.simulation.levels import LEVELS, demanded
from tests.simulation.result import simulate
from tests.simulation.trace import Coverage

LINES_SHOWN = 60
SEEDS_PER_CHILD = 500


@dataclass(slots=True)
class Seed:
    """One run, small enough to be sent between processes."""

    level: str
    seed: int
    violations: list[str]
    coverage: Coverage
    lines: list[str]
    trace_lines: int
    virtual_s: float
    digest: str
    events: int
    cpu_s: float


@dataclass(slots=True)
class Totals:
    runs: int = 0
    events: int = 0
    trace_lines: int = 0
    virtual_s: float = 0.0
    cpu_s: float = 0.0
    failed: list[Seed] = field(default_factory=list)
    coverage: Coverage = field(default_factory=Coverage)

    def add(self, seed: Seed) -> None:
        self.runs += 1
        self.events += seed.events
        self.trace_lines += seed.trace_lines
        self.virtual_s += seed.virtual_s
        self.cpu_s += seed.cpu_s
        self.coverage.update(seed.coverage)
        if seed.violations:
            self.failed.append(seed)


def run_seed(what: tuple[str, int, bool]) -> Seed:
    level, number, every_line = what
    begun_s = time.process_time()
    result = simulate(LEVELS[level], number, None if every_line else LINES_SHOWN)
    return Seed(
        level,
        number,
        [str(violation) for violation in result.violations],
        result.coverage,
        list(result.trace.lines) if result.violations or every_line else [],
        result.trace.count,
        result.virtual_s,
        result.trace.digest(),
        result.events,
        time.process_time() - begun_s,
    )


def replay_command(seed: Seed) -> str:
    return f"make simulate LEVEL={seed.level} SEEDS=1 FIRST_SEED={seed.seed} TRACE=--trace"


def show_failure(seed: Seed) -> None:
    print(f"\n{seed.level} seed {seed.seed}: {len(seed.violations)} violations")
    for line in seed.lines[-LINES_SHOWN:]:
        print(f"    {line[:200]}")
    for violation in seed.violations[:10]:
        print(f"  {violation[:500]}")
    print(f"  replay: {replay_command(seed)}", flush=True)


def all_seeds(levels: list[str], seeds: range, every_line: bool, processes: int) -> Iterator[Seed]:
    work = [(level, seed, every_line) for level, seed in product(levels, seeds)]
    if processes == 1 or len(work) == 1:
        yield from map(run_seed, work)
        return
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=SEEDS_PER_CHILD) as pool:
        yield from pool.imap_unordered(run_seed, work)


def show_totals(level: str, totals: Totals, seconds: float) -> list[str]:
    """Prints; returns what was never reached."""
    rate = totals.runs / totals.cpu_s
    print(
        f"\n{level}: {totals.runs} seeds in {seconds:.0f} s, {totals.cpu_s:.0f} s of CPU ({rate:.1f} seeds a CPU"
        " second),"
    )
    print(f"  {totals.virtual_s / 3600:.1f} virtual hours,")
    print(
        f"  {totals.events} events of clients, {totals.trace_lines} lines of trace, {len(totals.failed)} seeds failed"
    )
    for name, count in sorted(totals.coverage.items()):
        print(f"  {count:9} {name}")
    return [name for name in demanded(level, totals.runs) if not totals.coverage[name]]


def main() -> int:
    parser = argparse.ArgumentParser(description="Run simulated clusters, one for each seed.")
    parser.add_argument("--level", choices=[*LEVELS, "models", "all"], default="all")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--trace", action="store_true", help="print every line of each run")
    chosen = parser.parse_args()
    seeds = range(chosen.first_seed, chosen.first_seed + chosen.seeds)
    failed = chosen.level in ("models", "all") and not run_models(list(MODELS), seeds)
    for level in LEVELS if chosen.level == "all" else [name for name in LEVELS if name == chosen.level]:
        begun, totals = time.monotonic(), Totals()
        for seed in all_seeds([level], seeds, chosen.trace, chosen.processes):
            totals.add(seed)
            if chosen.trace:
                print("\n".join(seed.lines))
            if seed.violations:
                show_failure(seed)
        missed = show_totals(level, totals, time.monotonic() - begun)
        for name in missed:
            print(f"never reached: {name}")
        failed = failed or bool(totals.failed or missed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
