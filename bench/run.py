"""`make bench` and `make bench-quick`: measures, prints a table, keeps the results as JSON, writes
docs/performance.md and its plots.

python -m bench.run [--quick] [--only P1,P4] [--rounds 5]
    with --quick or --only nothing is written, unless --output says where
python -m bench.run --only P4,P6 --keep
    these rows again; the page gets the others as they were measured before
python -m bench.page
    the page again, from the results that are kept
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench import limits
from bench.afar import Afar
from bench.attacks import Attacked
from bench.backlog import Backlog
from bench.console import Console
from bench.fairness import Fair
from bench.gateway import ROWS as GATEWAY_ROWS
from bench.gateway import Rounds
from bench.group_commit import GroupCommit
from bench.growing import Growing
from bench.kafka_port import KafkaPort
from bench.keyed import Keyed
from bench.latency import Latency
from bench.limits import Limits
from bench.long_runs import LongRuns
from bench.many import Many
from bench.many_topics import ManyTopics
from bench.measures import Results
from bench.openmessaging.row import OpenMessaging
from bench.page import BUSY_LOAD, RESULTS, write
from bench.parquet import Parquet
from bench.processes import Processes
from bench.queues import Sharing
from bench.requests import Requests
from bench.security import Secured
from bench.slow import Slow
from bench.streams_beside import StreamsBeside
from bench.takeover import HISTORY_MB, Takeover
from bench.throughput import Throughput
from bench.timed import Beside, Delivery, Idle, Precision, Sending, Waiting
from bench.tracing import Traced
from bench.transactions import Transactions
from bench.turns import Turned
from bench.visibility import Visibility

ROUNDS, QUICK_ROUNDS, QUICK_SCALE = 5, 1, 0.2


def rows(results: Results, rounds: int, options: argparse.Namespace) -> dict[str, Callable[[], None]]:
    scale = QUICK_SCALE if options.quick else 1.0
    peers = None if options.quick else options.peers
    return {
        "raw": Limits(results, rounds, scale).run,
        "P1": Throughput(results, rounds, scale, peers).run,
        "P4": Latency(results, rounds, scale, peers).run,
        "P5": Requests(results, rounds, scale).run,
        "P6": Takeover(results, *((2, HISTORY_MB[:1]) if options.quick else (10, HISTORY_MB))).run,
        "P7": Parquet(results, rounds, scale).run,
        "P8": Visibility(results, rounds, scale).run,
        "P9": Many(results, rounds, scale).run,
        "P10": Backlog(results, rounds, scale, options.backlog_mb).run,
        "P11": Processes(results, rounds, scale).run,
        "P12": Slow(results, rounds, scale).run,
        "P13": LongRuns(results, rounds, scale, peers).run,
        "K1": KafkaPort(results, rounds, scale, peers).run,
        "V1": Keyed(results, rounds, scale, peers).run,
        "GC": GroupCommit(results, scale).run,
        "T1": Transactions(results, rounds, scale).run,
        "Q1": Sharing(results, rounds, scale).run,
        "D1": Sending(results, rounds, scale).run,
        "D2": Delivery(results, rounds, scale).run,
        "D3": Waiting(results, scale).run,
        "D4": Precision(results, rounds, scale).run,
        "D5": Idle(results, scale).run,
        "D6": Beside(results, rounds, scale).run,
        "S1": Growing(results).run,
        "S2": Afar(results, rounds, scale).run,
        "S4": ManyTopics(results, scale).run,
        "S5": OpenMessaging(results, scale).run,
        "X1": Secured(results, rounds, scale).run,
        "X2": Fair(results, rounds, scale).run,
        "X3": Attacked(results, rounds, scale).run,
        "X4": Turned(results, rounds, scale).run,
        "X5": Traced(results, rounds, scale).run,
        "G8": Console(results, rounds, scale).run,
        "G9": StreamsBeside(results, rounds, scale).run,
        **{row: partial(Rounds(results, rounds, scale, peers).run, row) for row in GATEWAY_ROWS},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="five minutes, no peers, fewer records and rounds")
    parser.add_argument("--only", help="rows of the table of targets, with commas: P1,P4")
    parser.add_argument("--rounds", type=int, help=f"{ROUNDS}, or {QUICK_ROUNDS} with --quick")
    parser.add_argument("--peers", default="", help="only those with this in their names, and Kafka")
    parser.add_argument("--backlog-mb", type=int, help="P10: how much the reader drains")
    parser.add_argument(
        "--keep", action="store_true", help=f"with --only: write, with the other rows as {RESULTS} has them"
    )
    parser.add_argument(
        "--output", type=Path, help=f"where the results go, else {RESULTS}, or nowhere with --quick or --only"
    )
    options = parser.parse_args()
    if os.getloadavg()[0] > BUSY_LOAD:
        print(
            f"The machine is busy (load {os.getloadavg()[0]:.1f}): figures will be lower than they could be.",
            file=sys.stderr,
        )
    results = Results.begin()
    known = rows(results, options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS), options)
    wanted = set(options.only.split(",")) if options.only else set(known)
    if unknown := wanted - set(known):
        parser.error(
            f"no such row: {', '.join(sorted(unknown))}; there are {', '.join(known)} (P1 stands for P1 to P3,"
            " K1 for K1 to K10, T1 for T1 to T4, V1 for V1 to V6)"
        )
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM)
    )  # or servers would outlive a run that gets a signal to stop
    if options.keep and (options.quick or not RESULTS.exists()):
        parser.error("--keep needs the results of a whole run, and is not for a quick one")
    whole = not options.quick and (options.keep or not options.only)
    output = options.output or (RESULTS if whole else None)
    for name, run in known.items():
        if name in wanted:
            begun_s = time.perf_counter()
            limits.measure(results, name, QUICK_SCALE if options.quick else 1.0)
            run()
            print(f"{name}: {time.perf_counter() - begun_s:.0f} s", file=sys.stderr)
            if output is not None and output != RESULTS:
                results.save(output)  # keep the results so far, should a later row fail
    if options.keep:
        results.keep(Results.load(RESULTS))
    if output is not None:
        results.save(output)
    write(results, page=whole)


if __name__ == "__main__":
    main()
