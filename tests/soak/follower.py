"""In place of the Spark stream: a consumer of the SDK that follows all topics through the brokers,
until FILE.stop exists.

python -m tests.soak.follower TARGET TOPICS FILE

Writes what `tests.soak.stream` writes. When it is started again it goes on behind the last line.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

import ledgermq
from ledgermq.errors import LedgerMQError
from tests.soak.numbered import Partition, Run, heads, runs_of
from tests.soak.verdict import batches_in


def runs_in(table: pa.Table) -> Iterator[tuple[str, int, Run]]:
    """Fails where a value is not of its partition."""
    places = table.select(["topic", "partition"]).group_by(["topic", "partition"]).aggregate([]).to_pylist()
    for place in places:
        mine = pc.and_(pc.equal(table["topic"], place["topic"]), pc.equal(table["partition"], place["partition"]))
        rows = table.filter(mine)
        counters, said = heads(rows["value"])
        if (said != place["partition"]).any():
            raise AssertionError(f"{place}: it holds values of another partition")
        for run in runs_of(rows["offset"].to_numpy(), counters):
            yield place["topic"], place["partition"], run


async def main(target: str, topics: str, file: str) -> None:
    known = batches_in(Path(file))
    ends: dict[Partition, int] = {}
    for line in known.values():
        for topic, partition, run in line["runs"]:
            ends[topic, partition] = max(run[1] + 1, ends.get((topic, partition), 0))
    number = max(known, default=-1) + 1
    stop = Path(f"{file}.stop")
    async with ledgermq.connect(target, timeout_s=60) as client:
        consumer = client.consumer(topics.split(","), start=ends or "earliest", auto_offset_reset="earliest")
        with await asyncio.to_thread(open, file, "a") as out:
            print(json.dumps({"batch": number, "runs": [], "age_ms": None}), file=out, flush=True)
            while not await asyncio.to_thread(stop.exists):
                try:
                    table = await consumer.fetch_arrow(100_000, timeout=1.0)
                except LedgerMQError as error:
                    print(f"told: {type(error).__name__}: {error.message}", flush=True)
                    await asyncio.sleep(0.3)
                    continue
                if table.num_rows:
                    number += 1
                    newest = pc.max(table["timestamp"]).value / 1e6
                    line = {
                        "batch": number,
                        "runs": list(runs_in(table)),
                        "age_ms": round((time.time() - newest) * 1000),
                    }
                    print(json.dumps(line), file=out, flush=True)
        await consumer.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
