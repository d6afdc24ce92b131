"""What a backlog of tiny batches costs a Spark query: opening, planning, what travels to executors,
reading.

    python -m bench.tiny_batches FOLDER [--batches 1000000]

FOLDER takes a new root, or one that an earlier run filled, which is used again: batches of one
record, a thousand a segment, no Parquet. Processor seconds of this process, without Spark. Prints
one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import pickle
import resource
import time
from pathlib import Path

from crc32c import crc32c

from ledgermq.protocol.batches.records import encode_batch
from ledgermq.sources import Sources
from ledgermq_ledger.cluster import read_cluster
from ledgermq_ledger.log.segments.segment import Batch
from ledgermq_ledger.root.open import open_store
from ledgermq_spark.source.batch import TaskPartition, read_ranges
from ledgermq_spark.source.options import SourceOptions
from ledgermq_spark.source.streaming.followed import FollowedTopics
from ledgermq_spark.source.streaming.tracking import Tracker
from tests.worlds.batches import batch_of
from tests.worlds.ledgers import append_and_wait
from tests.worlds.roots import Root

TOPIC = "tiny"
BATCHES_A_SEGMENT = 1000


async def fill(url: str, batches: int) -> None:
    async with await open_store(url, sources=Sources()) as store:
        root = await Root.open(store, Sources(), bundles=2)
        topic = await root.create_topic(TOPIC)
        data = encode_batch(batch_of([{"value": b"x" * 10}]))
        one = Batch(topic.id, 0, 1, crc32c(data), 0, 0, data)
        for _ in range(batches // BATCHES_A_SEGMENT):
            await append_and_wait(await root.writer(1), *[one] * BATCHES_A_SEGMENT)


def megabytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


async def measure(url: str) -> dict[str, object]:
    options = SourceOptions(url, (TOPIC,))
    before = megabytes()
    async with await open_store(url, sources=Sources()) as store:
        cluster = await read_cluster(store)
        at = [time.process_time()]
        followed = FollowedTopics(store, cluster, options)
        await followed.open()
        at.append(time.process_time())
        tracker = Tracker(followed, cluster.cluster_id, options, print)
        first = await tracker.first()
        tasks = await tracker.ranges(first, tracker.next(first, None))
        at.append(time.process_time())
        sent = [pickle.dumps(task) for task in tasks]
        held = megabytes() - before
        at.append(time.process_time())
        rows = sum([batch.num_rows async for batch in read_ranges(options, TaskPartition(tasks[0]))])
        at.append(time.process_time())
    return {
        "batches": sum(len(part.range.batches) for task in tasks for part in task),
        "open_s": round(at[1] - at[0], 2),
        "plan_s": round(at[2] - at[1], 3),
        "held_mb": held,
        "tasks": len(tasks),
        "tasks_mb": round(sum(map(len, sent)) / 1e6, 1),
        "read_us_a_batch": round((at[4] - at[3]) / rows * 1e6),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batches", type=int, default=1_000_000)
    options = parser.parse_args()
    url = options.folder.absolute().as_uri()
    if not (options.folder / "cluster.json").exists():
        asyncio.run(fill(url, options.batches))
    print(json.dumps(asyncio.run(measure(url))))


if __name__ == "__main__":
    main()
