"""One client process of a benchmark: produces or consumes through the public SDK, and prints one
JSON line of what it did.

    python -m bench.load produce TARGET TOPIC --records 1000000 --value-bytes 100 --via send_batch
    python -m bench.load consume TARGET TOPIC --records 1000000 --via arrow
    python -m bench.load drain TARGET TOPIC --seconds 10                      reads everything, again and again
    python -m bench.load tail TARGET TOPIC --records 1000 --rate 100          produces, and reads what it produces
    python -m bench.load runs TARGET TOPIC --megabytes-per-s 20 --seconds 10  runs of 64 records, when acknowledged

Values are words of real text in random order, so they compress about as text does; `--values
random` does not compress. Time counts from the first record until the last acknowledgement (or the
last record read); making the values is not in it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import resource
import selectors
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

import ledgermq
from bench.runs import send_runs
from ledgermq.client.client import Client
from ledgermq.client.producing.producer import Producer

DISTINCT_VALUES = 10_000
SEND_AT_ONCE = 500
NUMBER_BYTES = 8
FIRST_RECORDS = 1
"""Records that a producer sends before its clock starts."""
WARM = "warm"
WORDS = (
    b"the broker keeps nothing and the bucket keeps it all so a ledger is a chain of segments whose order is the order"
    b" of names in which offset epoch claim fence owner term batch record flush plan task commit page index reader"
    b" writer late early put get list delete"
).split()


def values(count: int, size: int, *, random_bytes: bool) -> list[bytes]:
    """Return `count` different values of `size` bytes each; the same in every process."""
    chance = random.Random(7)
    if random_bytes:
        return [chance.randbytes(size) for _ in range(count)]
    text = b" ".join(chance.choice(WORDS) for _ in range(max(200_000, size // 2)))
    return [text[at : at + size] for at in (chance.randrange(len(text) - size) for _ in range(count))]


def payloads_in(folder: Path, size: int) -> Path:
    """Return a file with the values that programs of peers send, of `size` bytes each, one a line."""
    payloads = folder / f"payloads-{size}"
    if not payloads.exists():
        payloads.write_bytes(b"\n".join(values(DISTINCT_VALUES, size, random_bytes=False)))
    return payloads


async def produce(client: Client, topic: str, options: argparse.Namespace) -> dict[str, float]:
    made = values(DISTINCT_VALUES, options.value_bytes, random_bytes=options.values == "random")
    async with client.producer(compression=options.compression, linger_ms=options.linger_ms) as producer:
        await (await producer.send_batch(topic, pa.record_batch({"value": pa.array([b"first"], pa.binary())})))
        if options.warm_up:
            await warm_up(producer, topic, options.partitions)
        begun_at_s, begun_s, cpu_s = time.time(), time.perf_counter(), time.process_time()
        if options.via == "send":
            for number in range(options.records):
                producer.send(topic, made[number % DISTINCT_VALUES])
                if number % SEND_AT_ONCE == 0:
                    await producer.wait_for_room()
        elif options.via == "spread":
            await spread(producer, topic, made, options)
        elif options.via == "send_many":
            for _ in range(0, options.records, DISTINCT_VALUES):
                await producer.send_many(topic, made)
        else:
            rows = pa.record_batch({"value": pa.array(made, pa.binary())})
            for _ in range(0, options.records, DISTINCT_VALUES):
                await producer.send_batch(topic, rows)
        await producer.flush()
        seconds, cpu_s = time.perf_counter() - begun_s, time.process_time() - cpu_s
    records = (
        options.records
        if options.via in ("send", "spread")
        else -(-options.records // DISTINCT_VALUES) * DISTINCT_VALUES
    )
    return {"records": records, "seconds": seconds, "cpu_s": cpu_s, "begun_at_s": begun_at_s}


async def warm_up(producer: Producer, topic: str, partitions: int) -> None:
    """Send one record to each partition, because the first one is slower; then print that others
    may start their clocks.
    """
    for partition in range(partitions):
        producer.send(topic, b"first", partition=partition)
        if partition % SEND_AT_ONCE == 0:
            await producer.wait_for_room()
    await producer.flush()
    print(WARM, flush=True)


async def spread(producer: Producer, topic: str, made: list[bytes], options: argparse.Namespace) -> None:
    """Send `--run-records` to a partition, then as many to the next; no faster than
    `--megabytes-per-s`, if that is given.
    """
    begun_s = time.perf_counter()
    for number in range(options.records):
        partition = number // options.run_records % options.partitions
        producer.send(topic, made[number % DISTINCT_VALUES], partition=partition)
        if number % SEND_AT_ONCE == 0:
            await producer.wait_for_room()
            if options.megabytes_per_s:
                due_s = begun_s + number * options.value_bytes / 1e6 / options.megabytes_per_s
                await asyncio.sleep(max(0.0, due_s - time.perf_counter()))


async def paced(client: Client, topic: str, options: argparse.Namespace) -> dict[str, object]:
    """Measure acknowledgement latency at `--rate` records a second: each record is due at a fixed
    time, from which its wait counts.
    """
    sent = Sent()
    async with client.producer(compression=options.compression, linger_ms=options.linger_ms) as producer:
        await producer.send(topic, b"first")
        seconds = await send_paced(producer, topic, options, sent)
    return {"records": options.records, "seconds": seconds, "latencies_ms": sorted(sent.latencies_ms())}


class Sent:
    """Due and acknowledgement times of each record, by its number."""

    def __init__(self) -> None:
        self.due_s: dict[int, float] = {}
        self.acknowledged_s: dict[int, float] = {}

    def latencies_ms(self) -> list[float]:
        return [1000 * (at_s - self.due_s[number]) for number, at_s in self.acknowledged_s.items()]


async def send_paced(producer: Producer, topic: str, options: argparse.Namespace, sent: Sent) -> float:
    """Send at the pace; return the seconds that it took. A record's value begins with its number,
    in NUMBER_BYTES.

    What the process was started with is collected before: a young process spends tens of
    milliseconds on that once, some time.
    """
    gc.collect()
    gc.freeze()
    value = values(1, options.value_bytes, random_bytes=options.values == "random")[0][NUMBER_BYTES:]
    begun_s = time.perf_counter()

    async def one(number: int) -> None:
        await producer.send(topic, number.to_bytes(NUMBER_BYTES, "big") + value)
        sent.acknowledged_s[number] = time.perf_counter()

    async with asyncio.TaskGroup() as group:
        for number in range(options.records):
            due_s = sent.due_s[number] = begun_s + number / options.rate
            if (wait_s := due_s - time.perf_counter()) > 0:
                await asyncio.sleep(wait_s)
            group.create_task(one(number))
    return time.perf_counter() - begun_s


async def tail(client: Client, topic: str, options: argparse.Namespace) -> dict[str, object]:
    """Measure a consumer at the end of the topic while records come at `--rate`: the time until
    records are acknowledged, and until the consumer has them.
    """
    sent, seen_s = Sent(), dict[int, float]()
    async with (
        client.producer(linger_ms=options.linger_ms) as producer,
        client.consumer(topic, start="latest") as consumer,
    ):
        await producer.send(topic, b"first")  # a process's first call takes some 300 ms: gRPC is imported and connects
        await consumer.wait_ready()

        async def read() -> None:
            while len(seen_s) < options.records:
                for message in await consumer.fetch(timeout=30.0):
                    assert message.value is not None
                    seen_s[int.from_bytes(message.value[:NUMBER_BYTES], "big")] = time.perf_counter()

        async with asyncio.TaskGroup() as group:
            group.create_task(read())
            seconds = await send_paced(producer, topic, options, sent)
    return {
        "records": options.records,
        "seconds": seconds,
        "latencies_ms": sorted(sent.latencies_ms()),
        "seen_ms": sorted(1000 * (at_s - sent.due_s[number]) for number, at_s in seen_s.items()),
    }


async def runs(client: Client, topic: str, options: argparse.Namespace) -> dict[str, object]:
    """Measure acknowledgement latency of runs of records at `--megabytes-per-s`."""
    async with client.producer(compression=options.compression) as producer:
        await warm_up(producer, topic, options.partitions)
        begun_s = time.perf_counter()
        latencies_s = await send_runs(producer, topic, options.partitions, options.megabytes_per_s, options.seconds)
        seconds = time.perf_counter() - begun_s
    return {"runs": len(latencies_s), "seconds": seconds, "latencies_ms": sorted(1000 * s for s in latencies_s)}


async def consume(client: Client, topic: str, options: argparse.Namespace) -> dict[str, float]:
    read = 0
    begun_s, cpu_s = time.perf_counter(), time.process_time()
    async with client.consumer(topic, start="earliest", direct_reads=options.direct) as consumer:
        if options.warm_up:
            await consumer.wait_ready()
            print(WARM, flush=True)
        while read < options.records:
            if options.via == "arrow":
                read += (await consumer.fetch_arrow(timeout=30.0)).num_rows
            else:
                read += len(await consumer.fetch(10_000, timeout=30.0))
    seconds, cpu_s = time.perf_counter() - begun_s, time.process_time() - cpu_s
    return {"records": read, "seconds": seconds, "cpu_s": cpu_s, "ended_at_s": time.time()}


async def drain(client: Client, topic: str, options: argparse.Namespace) -> dict[str, float]:
    """Read the topic from its beginning to its current end, repeatedly, for `--seconds`."""
    records, begun_s = 0, time.perf_counter()
    while time.perf_counter() - begun_s < options.seconds:
        ends = sum((await client.list_offsets(topic)).values())
        async with client.consumer(topic, start="earliest") as consumer:
            read = 0
            while read < ends and time.perf_counter() - begun_s < options.seconds:
                read += (await consumer.fetch_arrow(timeout=30.0)).num_rows
        records += read
    return {"records": records, "seconds": time.perf_counter() - begun_s}


WORK: dict[str, Callable[[Client, str, argparse.Namespace], Awaitable[Mapping[str, object]]]] = {
    "produce": produce,
    "consume": consume,
    "drain": drain,
    "tail": tail,
    "runs": runs,
}


async def run(options: argparse.Namespace) -> dict[str, object]:
    async with ledgermq.connect(options.target) as client:
        work = paced if options.what == "produce" and options.rate else WORK[options.what]
        found: dict[str, object] = dict(await work(client, options.topic, options))
    found["rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return found


def punctual_loop() -> asyncio.AbstractEventLoop:
    """Return a loop that sleeps to the microsecond.

    Time-outs of epoll, the default, are whole milliseconds, rounded up: each record would be late
    by that.
    """
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=[*WORK])
    parser.add_argument("target")
    parser.add_argument("topic")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument(
        "--via", default="send_batch", choices=["send", "send_many", "send_batch", "spread", "messages", "arrow"]
    )
    parser.add_argument("--direct", default="", help="consume: read segments below this URL without the broker")
    parser.add_argument("--partitions", type=int, default=1, help="runs, --via spread: so many in turn")
    parser.add_argument(
        "--warm-up", action="store_true", help="say 'warm' once all partitions have a record, or a start"
    )
    parser.add_argument(
        "--run-records", type=int, default=1, help="with --via spread: so many to a partition before the next"
    )
    parser.add_argument("--rate", type=float, default=0.0, help="records a second, each waited for by itself")
    parser.add_argument("--megabytes-per-s", type=float, default=0.0, help="runs: this fast; --via spread: no faster")
    parser.add_argument("--seconds", type=float, default=10.0, help="of drain and runs")
    parser.add_argument("--compression", default="auto")
    parser.add_argument("--linger-ms", type=float)
    parser.add_argument("--values", default="text", choices=["text", "random"], help="random ones do not compress")
    parser.add_argument("--profile", help="write a profile to this file")
    options = parser.parse_args(arguments)
    with asyncio.Runner(loop_factory=punctual_loop if options.rate else None) as runner:
        if options.profile:
            import cProfile

            with cProfile.Profile() as profile:
                found = runner.run(run(options))
            profile.dump_stats(options.profile)
        else:
            found = runner.run(run(options))
    print(json.dumps({"pid": os.getpid(), **found}), flush=True)


if __name__ == "__main__":
    main()
