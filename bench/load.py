"""One client process of a benchmark: produces or consumes through the public SDK, and prints one JSON line of what it did.

    python -m bench.load produce TARGET TOPIC --records 1000000 --value-bytes 100 --via send_batch
    python -m bench.load consume TARGET TOPIC --records 1000000 --via arrow

Values are words of real text in random order, so they compress about as text does; `--values random` does not compress.
Time counts from the first record until the last acknowledgement (or the last record read); making the values is not in it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import time
from collections.abc import Sequence

import pyarrow as pa

import ledgermq
from ledgermq.client.client import Client

DISTINCT_VALUES = 10_000
SEND_AT_ONCE = 500
WORDS = (
    b"the broker keeps nothing and the bucket keeps it all so a ledger is a chain of segments whose order is the order of names in which "
    b"offset epoch claim fence owner term batch record flush plan task commit page index reader writer late early put get list delete"
).split()


def values(count: int, size: int, *, random_bytes: bool) -> list[bytes]:
    """`count` different values of `size` bytes each; the same in every process."""
    chance = random.Random(7)
    if random_bytes:
        return [chance.randbytes(size) for _ in range(count)]
    text = b" ".join(chance.choice(WORDS) for _ in range(max(200_000, size // 2)))
    return [text[at : at + size] for at in (chance.randrange(len(text) - size) for _ in range(count))]


async def produce(client: Client, topic: str, options: argparse.Namespace) -> dict[str, float]:
    made = values(DISTINCT_VALUES, options.value_bytes, random_bytes=options.values == "random")
    async with client.producer(compression=options.compression, linger_ms=options.linger_ms) as producer:
        await (await producer.send_batch(topic, pa.record_batch({"value": pa.array([b"first"], pa.binary())})))
        begun_s, cpu_s = time.perf_counter(), time.process_time()
        if options.via == "send":
            for number in range(options.records):
                producer.send(topic, made[number % DISTINCT_VALUES])
                if number % SEND_AT_ONCE == 0:
                    await producer.wait_for_room()
        elif options.via == "spread":
            for number in range(options.records):
                producer.send(topic, made[number % DISTINCT_VALUES], partition=number % options.partitions)
                if number % SEND_AT_ONCE == 0:
                    await producer.wait_for_room()
        elif options.via == "send_many":
            for _ in range(0, options.records, DISTINCT_VALUES):
                await producer.send_many(topic, made)
        else:
            rows = pa.record_batch({"value": pa.array(made, pa.binary())})
            for _ in range(0, options.records, DISTINCT_VALUES):
                await producer.send_batch(topic, rows)
        await producer.flush()
        seconds, cpu_s = time.perf_counter() - begun_s, time.process_time() - cpu_s
    records = options.records if options.via in ("send", "spread") else -(-options.records // DISTINCT_VALUES) * DISTINCT_VALUES
    return {"records": records, "seconds": seconds, "cpu_s": cpu_s}


async def paced(client: Client, topic: str, options: argparse.Namespace) -> dict[str, object]:
    """Acknowledgement latency at `--rate` records a second: each record is due at a fixed time, and its wait counts from then."""
    value = values(1, options.value_bytes, random_bytes=options.values == "random")[0]
    latencies_ms: list[float] = []
    async with client.producer(compression=options.compression, linger_ms=options.linger_ms) as producer:
        await producer.send(topic, b"first")
        begun_s = time.perf_counter()

        async def one(due_s: float) -> None:
            await producer.send(topic, value)
            latencies_ms.append(1000 * (time.perf_counter() - due_s))

        async with asyncio.TaskGroup() as group:
            for number in range(options.records):
                due_s = begun_s + number / options.rate
                if (wait_s := due_s - time.perf_counter()) > 0:
                    await asyncio.sleep(wait_s)
                group.create_task(one(due_s))
    return {"records": options.records, "seconds": time.perf_counter() - begun_s, "latencies_ms": sorted(latencies_ms)}


async def consume(client: Client, topic: str, options: argparse.Namespace) -> dict[str, float]:
    read = 0
    begun_s, cpu_s = time.perf_counter(), time.process_time()
    async with client.consumer(topic, start="earliest") as consumer:
        while read < options.records:
            if options.via == "arrow":
                read += (await consumer.fetch_arrow(timeout=30.0)).num_rows
            else:
                read += len(await consumer.fetch(10_000, timeout=30.0))
    return {"records": read, "seconds": time.perf_counter() - begun_s, "cpu_s": time.process_time() - cpu_s}


async def run(options: argparse.Namespace) -> dict[str, object]:
    async with ledgermq.connect(options.target) as client:
        if options.what == "consume":
            found: dict[str, object] = dict(await consume(client, options.topic, options))
        elif options.rate:
            found = await paced(client, options.topic, options)
        else:
            found = dict(await produce(client, options.topic, options))
    found["rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["produce", "consume"])
    parser.add_argument("target")
    parser.add_argument("topic")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--via", default="send_batch", choices=["send", "send_many", "send_batch", "spread", "messages", "arrow"])
    parser.add_argument("--partitions", type=int, default=1, help="with --via spread: record n goes to partition n modulo this")
    parser.add_argument("--rate", type=float, default=0.0, help="records a second, each waited for by itself")
    parser.add_argument("--compression", default="lz4")
    parser.add_argument("--linger-ms", type=float)
    parser.add_argument("--values", default="text", choices=["text", "random"], help="random ones do not compress")
    parser.add_argument("--profile", help="write a profile to this file")
    options = parser.parse_args(arguments)
    if options.profile:
        import cProfile

        with cProfile.Profile() as profile:
            found = asyncio.run(run(options))
        profile.dump_stats(options.profile)
    else:
        found = asyncio.run(run(options))
    print(json.dumps({"pid": os.getpid(), **found}), flush=True)


if __name__ == "__main__":
    main()
