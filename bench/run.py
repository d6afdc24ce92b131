"""`make bench` and `make bench-quick`: measures, prints a table, keeps the results as JSON, writes docs/performance.md and its plots.

python -m bench.run [--quick] [--only P1,P4] [--rounds 5]
python -m bench.page                                             the page again, from the results that are kept
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from bench.latency import Latency
from bench.measures import Results
from bench.page import RESULTS, write
from bench.requests import Requests
from bench.takeover import Takeover
from bench.throughput import Throughput

LOAD_MAX = 0.7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="five minutes, no peers, fewer records and rounds; the page is not written")
    parser.add_argument("--only", help="rows of the table of targets, with commas: P1,P4")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--output", type=Path, help=f"where the results go; else {RESULTS}, or nowhere with --quick")
    options = parser.parse_args()
    if os.getloadavg()[0] > LOAD_MAX:
        print(f"The machine is busy (load {os.getloadavg()[0]:.1f}): figures will be lower than they could be.", file=sys.stderr)
    rounds = options.rounds or (2 if options.quick else 5)
    scale = 0.2 if options.quick else 1.0
    results = Results.begin()
    rows: dict[str, Callable[[], None]] = {
        "P1": Throughput(results, rounds, scale, peers=not options.quick).run,
        "P4": Latency(results, rounds, scale).run,
        "P5": Requests(results, scale).run,
        "P6": Takeover(results, 3 if options.quick else 10, (10, 200) if options.quick else (10, 1000)).run,
    }
    wanted = set(options.only.split(",")) if options.only else set(rows)
    if unknown := wanted - set(rows):
        parser.error(f"no such row: {', '.join(sorted(unknown))}; there are {', '.join(rows)} (P1 stands for P1 to P3)")
    for name, run in rows.items():
        if name in wanted:
            run()
    output = options.output or (None if options.quick else RESULTS)
    if output is not None:
        results.save(output)
    write(results, page=not options.quick and not options.only)


if __name__ == "__main__":
    main()
