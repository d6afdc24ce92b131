"""The rows of the lake: how soon files are in a table, what foreign readers read, what many quiet topics cost.

    python -m bench.lake visible [--root s3://… --seconds 60 --rate 200]      commit of a round until the table names it
    python -m bench.lake registered [--partitions 200 --rounds 5]             processor time of naming a file
    python -m bench.lake pruned [--records 2000000]                           last hour of a day, and one key: bytes
    python -m bench.lake broken [--records 1000000]                           the same, one clock in a thousand broken
    python -m bench.lake quiet [--topics 200]                                 a day of quiet topics: files and time
    python -m bench.lake month [--topics 200 --days 31]                       count over all of them by their tables
    python -m bench.lake aggregate [--records 1000000]                        a typed field beside parsing JSON, DuckDB
    python -m bench.typed                                                     typed compaction beside plain compaction

One JSON line for each figure. Bytes are counted by the kernel, on Linux.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa

from bench.lake import busy, quiet, registered
from bench.lake.reads import read

Rows = list[dict[str, Any]]


def _visible(folder: Path, options: argparse.Namespace) -> Rows:
    root = options.root or folder.as_uri()
    return [registered.visible(root, options.seconds, options.rate, options.broker_options)]


def _registered(folder: Path, options: argparse.Namespace) -> Rows:
    return [asyncio.run(registered.cpu_of_a_file(folder, options.partitions, options.rounds))]


def _pruned(folder: Path, options: argparse.Namespace) -> Rows:
    asyncio.run(busy.fill(folder, options.records or 2_000_000))
    files = busy.files_of(folder)
    return [*busy.pruned(files, "timestamp"), *busy.pruned(files, "appended"), *busy.one_key(files)]


def _broken(folder: Path, options: argparse.Namespace) -> Rows:
    asyncio.run(busy.fill(folder, options.records or 1_000_000, broken=True))
    files = busy.files_of(folder)
    return [*busy.pruned(files, "timestamp"), *busy.pruned(files, "appended")]


def _quiet(_folder: Path, options: argparse.Namespace) -> Rows:
    return [asyncio.run(quiet.a_day(options.topics, options.minutes))]


def _month(folder: Path, options: argparse.Namespace) -> Rows:
    asyncio.run(quiet.fill_a_month(folder, options.topics, options.days, options.records or 1_440))
    return [quiet.count_a_month(folder, options.topics)]


def _aggregate(folder: Path, options: argparse.Namespace) -> Rows:
    """In turns, medians."""
    asyncio.run(busy.fill(folder, options.records or 1_000_000, typed=True))
    files, questions = busy.files_of(folder), ("sum of a typed field", "sum of parsed JSON")
    found: dict[str, Rows] = {question: [] for question in questions}
    for _ in range(options.rounds):
        for question in questions:
            found[question].append(read("duckdb", files, question, []))
    took = {question: median(each["cpu_s"] for each in rows) for question, rows in found.items()}
    sums = [rows[0]["found"] for rows in found.values()]
    assert abs(sums[0] - sums[1]) < 1e-6 * abs(sums[0]), f"the sums differ: {sums}"
    times = round(took[questions[1]] / max(took[questions[0]], 0.001), 1)
    return [{"row": "aggregate of one typed field, DuckDB", "cpu_s": took, "times": times}]


PROGRAMS: dict[str, Callable[[Path, argparse.Namespace], Rows]] = {
    "visible": _visible,
    "registered": _registered,
    "pruned": _pruned,
    "broken": _broken,
    "quiet": _quiet,
    "month": _month,
    "aggregate": _aggregate,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", choices=list(PROGRAMS))
    parser.add_argument("--produce", metavar="SERVERS", help=argparse.SUPPRESS)
    parser.add_argument("--root", help="visible: a new root; a local folder without it")
    parser.add_argument("--broker-options", default="", help="visible: of `ledgermq broker`")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=int, default=200, help="visible: records a second")
    parser.add_argument("--records", type=int, default=0, help="month: of a topic and day")
    parser.add_argument("--partitions", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--topics", type=int, default=200)
    parser.add_argument("--minutes", type=int, default=24 * 60, help="quiet: instead of a day")
    parser.add_argument("--days", type=int, default=31)
    options = parser.parse_args()
    if options.produce:
        asyncio.run(registered.produce(options.produce, options.seconds, options.rate))
        return
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    with tempfile.TemporaryDirectory(prefix="ledgermq-bench-") as folder:
        (Path(folder) / "root").mkdir()
        for row in PROGRAMS[options.program](Path(folder) / "root", options):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
