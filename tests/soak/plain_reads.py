"""Plain reads of `parquet/` in a loop, by pyarrow, DuckDB and polars, past brokers and SDK, until
SIGTERM.

python -m tests.soak.plain_reads FOLDER_OF_PARQUET FILE

Each read is judged by itself: of every partition one run of offsets without a gap, no offset twice,
every value in its own partition; no run ends before the one of the read before. A read that finds a
file gone begins again. One line of JSON for each read goes to FILE.

The topic of timed messages is left out: they do not come in the order of their counters, so each
would be a run of its own (`tests.soak.timed.judge_parquet`).

A folder's listing is no snapshot: where a gap shows, the folder is listed again, and it counts
unless the file that fills it is there now.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds

from ledgermq_ledger.keys import parse_parquet
from tests.soak.numbered import HEAD_BYTES, JOBS, TIMED, Partition, Run, gaps, heads, joined, runs_of

Found = dict[Partition, list[Run]]
GONE = (
    "No such file",
    "No files found",
    "Cannot open file",
    "not found",
    "os error 2",
    "Failed to open",
    "FileNotFoundException",
)


class PlainReads:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ends: dict[Partition, int] = defaultdict(lambda: -1)
        self.looks: Counter[str] = Counter()
        self.records = 0

    def look(self, name: str, read: Callable[[Path], Found]) -> tuple[Found, list[str]]:
        """What was read, and what is wrong with it."""
        while True:
            before = names(self.folder)
            try:
                found = read(self.folder)
            except Exception as error:
                if not any(text in str(error) for text in GONE) and not isinstance(error, FileNotFoundError):
                    raise
                self.looks[f"{name}: a file was gone"] += 1
                continue
            problems = self._judge(found)
            if problems and names(self.folder) - before and self._listing_met_new_files(found):
                self.looks[f"{name}: a listing that met new files"] += 1
                continue
            self.looks[name] += 1
            for partition, runs in found.items():
                self.ends[partition] = runs[-1].last
                self.records += sum(run.last + 1 - run.first for run in runs)
            return found, [f"{name}: {problem}" for problem in problems]

    def _judge(self, found: Found) -> list[str]:
        problems = []
        for partition, runs in found.items():
            try:
                found[partition] = joined(runs)
            except ValueError as error:
                problems.append(f"{partition}: {error}")
                continue
            problems += [
                f"{partition}: offsets {first} to {last} are missing" for first, last in gaps(found[partition])
            ]
            if found[partition][-1].last < self.ends[partition]:
                problems.append(
                    f"{partition}: ends at {found[partition][-1].last}, an earlier read ended at {self.ends[partition]}"
                )
        return problems

    def _listing_met_new_files(self, found: Found) -> bool:
        """Is every gap filled by a file that is there?"""
        there = [
            name for name in map(parse_parquet, (f"parquet/{name}" for name in names(self.folder))) if name is not None
        ]
        for partition, runs in found.items():
            if sum(run.last + 1 - run.first for run in runs) > max(run.last for run in runs) + 1 - min(
                run.first for run in runs
            ):
                return False  # an offset is there twice
            for first, last in gaps(sorted(runs)):
                if not any(
                    (n.topic, n.partition) == partition and n.first_offset <= first and n.last_offset <= last
                    for n in there
                ):
                    return False
        return True


def names(folder: Path) -> set[str]:
    return {
        os.path.relpath(os.path.join(place, name), folder)
        for place, folders, files in os.walk(folder)
        for name in files
        if not any(part.startswith(("_", ".")) for part in Path(os.path.relpath(place, folder)).parts if part != ".")
    }


def by_pyarrow(folder: Path) -> Found:
    found: Found = defaultdict(list)
    scanned = ds.dataset(folder).scanner(
        columns=["topic", "partition", "offset", "value"],
        filter=~ds.field("topic").isin([TIMED, JOBS]),
        batch_size=65536,
        fragment_readahead=2,
    )
    for batch in scanned.to_batches():
        if batch.num_rows:
            _add(found, batch.column("topic"), batch.column("partition"), batch.column("offset"), batch.column("value"))
    return found


def _add(found: Found, topics: pa.Array, partitions: pa.Array, offsets: pa.Array, values: pa.Array) -> None:
    """Of rows that come from one file."""
    counters, said = heads(values)
    partition = partitions[0].as_py()
    if (said != partition).any():
        raise AssertionError(f"{topics[0]}-{partition} holds values of another partition")
    found[topics[0].as_py(), partition] += runs_of(offsets.to_numpy(), counters)


def by_polars(folder: Path) -> Found:
    """By a pattern: given a folder, polars takes the temporary files below `_tmp` for its own, and
    stumbles.
    """
    frame = (
        pl.scan_parquet(f"{folder}/topic=*/partition=*/*.parquet", hive_partitioning=False)
        .filter(~pl.col("topic").is_in([TIMED, JOBS]))
        .select("topic", "partition", "offset", pl.col("value").bin.slice(0, HEAD_BYTES))
        .collect()
    )
    found: Found = {}
    for (topic, partition), rows in frame.partition_by("topic", "partition", as_dict=True).items():
        counters, _ = heads(rows["value"].to_arrow().cast(pa.binary()))
        offsets = rows["offset"].to_numpy()
        order = np.argsort(offsets, kind="stable")
        found[str(topic), int(partition)] = runs_of(offsets[order], counters[order])
    return found


def by_duckdb(folder: Path) -> Found:
    """Runs made in SQL, as islands of a shift; an offset that is there twice shows by the count."""
    import duckdb  # not above: tests import this module (tests/unit/parquet/duckdb_process.py)

    query = f"""
        SELECT topic, partition, shift, min(o), max(o), count(*), count(DISTINCT o) FROM (
          SELECT topic, partition, "offset" AS o, ('0x' || hex(value[1:8]))::BIGINT - "offset" AS shift
          FROM read_parquet('{folder}/topic=*/partition=*/*.parquet', hive_partitioning=false)
          WHERE topic NOT IN ('{TIMED}', '{JOBS}'))
        GROUP BY ALL"""
    found: Found = defaultdict(list)
    with duckdb.connect() as connection:
        connection.execute("SET threads TO 1")
        for topic, partition, shift, first, last, rows, distinct in connection.execute(query).fetchall():
            if rows != distinct:
                raise AssertionError(f"{topic}-{partition}: {rows - distinct} offsets are there twice")
            if rows != last + 1 - first:
                raise AssertionError(
                    f"{topic}-{partition}: {last + 1 - first - rows} offsets are missing between {first} and {last}"
                )
            found[topic, partition].append(Run(first, last, shift))
    return found


READERS: dict[str, Callable[[Path], Found]] = {"pyarrow": by_pyarrow, "duckdb": by_duckdb, "polars": by_polars}


def main(folder: str, file: str) -> None:
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    reads = PlainReads(Path(folder))
    order = ["pyarrow", "pyarrow", "polars", "pyarrow", "duckdb"]
    with Path(file).open("w") as out:
        turn = 0
        while not stopping:
            if not names(reads.folder):
                time.sleep(0.5)
                continue
            name = order[turn % len(order)]
            turn += 1
            begun_s = time.monotonic()
            found, problems = reads.look(name, READERS[name])
            line = {
                "reader": name,
                "seconds": round(time.monotonic() - begun_s, 2),
                "problems": problems,
                "runs": [[*partition, runs] for partition, runs in found.items()],
            }
            print(json.dumps(line), file=out, flush=True)
            time.sleep(1.0)
        print(json.dumps({"looks": reads.looks, "records": reads.records}), file=out, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
