"""Parquet compaction at the distance of S3: one task at a time, as a Spark worker of one core has
them, decoding in place and in threads.

    python -m bench.compaction_afar [--megabytes 300] [--rounds 2]

The store is MinIO behind `bench.distant`: 100 ms an answer in the median. A root is filled for each
turn and compacted by one pass: `pass_s` is its wall time, with what it asks once; `round_s` is that
of the rounds that wrote files. Prints one JSON line a turn.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from pathlib import Path

import pyarrow as pa

from bench.compaction import Shape, compact, fill
from bench.stores import DISTANT, stores
from ledgermq.sources import Sources
from ledgermq_ledger.blocking import RunBlocking, run_inline
from ledgermq_ledger.root.open import open_store
from tests.worlds.roots import Root

SEGMENT_BYTES, PARTITIONS, VALUE_BYTES = 4_000_000, 8, 1000


async def turn(url: str, shape: Shape, name: str, run_blocking: RunBlocking) -> dict[str, object]:
    sources = Sources()
    async with await open_store(url, sources=sources) as store:
        stored = await fill(await Root.open(store, sources), shape)
        cpu, wall, report, requests = await compact(store, run_blocking)
    assert report.source_bytes == stored
    round_s = sum(done.seconds for done in report.rounds if done.files)
    return {
        "decoding": name,
        "mb": round(stored / 1e6),
        "pass_s": round(wall, 2),
        "round_s": round(round_s, 2),
        "mb_per_s_of_the_round": round(stored / 1e6 / round_s, 1),
        "cpu_s": round(cpu, 2),
        "requests": requests,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=2)
    chosen = parser.parse_args()
    pa.set_cpu_count(1)
    shape = Shape(VALUE_BYTES, chosen.megabytes * 10**6, SEGMENT_BYTES, PARTITIONS)
    with tempfile.TemporaryDirectory(prefix="ledgermq-bench-") as name, stores(Path(name), DISTANT) as found:
        for _ in range(chosen.rounds):
            for decoding, run_blocking in (("in place", run_inline), ("in threads", asyncio.to_thread)):
                print(json.dumps(asyncio.run(turn(found[DISTANT](), shape, decoding, run_blocking))), flush=True)


if __name__ == "__main__":
    main()
