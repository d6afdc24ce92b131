"""One client process of the measurements of transactions: works through the public SDK, and prints
one JSON line of what it did.

    python -m bench.transactional commit TARGET TOPIC --transactions 500 --ids 1      one after the other of each id
    python -m bench.transactional bulk TARGET TOPIC --records 200000 [--outside]
    python -m bench.transactional beside TARGET TOPIC --seconds 60 --rate 100 [--open]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

import pyarrow as pa

import ledgermq
from bench.load import DISTINCT_VALUES, Sent, punctual_loop, send_paced, values

BULK_BATCH, BULK_TRANSACTION = 1000, 10_000
"""Records of a batch that is sent, and of a transaction."""
WARM = "warm"


async def commit(client: ledgermq.Client, topic: str, options: argparse.Namespace) -> dict[str, object]:
    """Run transactions of each id one after the other, ids side by side, after warm-up ones."""
    made = values(DISTINCT_VALUES, options.value_bytes, random_bytes=False)
    commits_ms: list[float] = []

    async def run(transactions: ledgermq.Transactions, count: int, latencies_ms: list[float]) -> None:
        for number in range(count):
            async with transactions.begin() as transaction:
                for record in range(options.each):
                    value = made[(number * options.each + record) % len(made)]
                    transaction.send(topic, value, partition=record % options.partitions)
                begun_s = time.perf_counter()
                await transaction.commit()
            latencies_ms.append(1000 * (time.perf_counter() - begun_s))

    async with AsyncExitStack() as stack:
        all_ids = [
            await stack.enter_async_context(client.transactions(f"{topic}-{number}")) for number in range(options.ids)
        ]
        await asyncio.gather(*(run(one, options.warm_up, []) for one in all_ids))
        print(WARM, flush=True)
        begun_s = time.perf_counter()
        await asyncio.gather(*(run(one, options.transactions // options.ids, commits_ms) for one in all_ids))
        seconds = time.perf_counter() - begun_s
    return {"transactions": len(commits_ms), "seconds": seconds, "commit_ms": commits_ms}


async def bulk(client: ledgermq.Client, topic: str, options: argparse.Namespace) -> dict[str, object]:
    """Send batches, inside of transactions or outside, until all are acknowledged."""
    made = values(DISTINCT_VALUES, options.value_bytes, random_bytes=False)
    batches = [
        pa.record_batch({"value": pa.array(made[first : first + BULK_BATCH], pa.binary())})
        for first in range(0, len(made), BULK_BATCH)
    ]
    count = options.records // BULK_BATCH
    if options.outside:
        async with client.producer() as producer:
            await (await producer.send_batch(topic, batches[0]))
            begun_s = time.perf_counter()
            for number in range(count):
                await producer.send_batch(topic, batches[number % len(batches)])
            await producer.flush()
            return {"records": count * BULK_BATCH, "seconds": time.perf_counter() - begun_s}
    async with client.transactions(f"{topic}-bulk") as transactions:
        async with transactions.begin() as transaction:
            await transaction.send_batch(topic, batches[0])
        begun_s = time.perf_counter()
        for first in range(0, count, BULK_TRANSACTION // BULK_BATCH):
            async with transactions.begin() as transaction:
                for number in range(first, min(count, first + BULK_TRANSACTION // BULK_BATCH)):
                    await transaction.send_batch(topic, batches[number % len(batches)])
        return {"records": count * BULK_BATCH, "seconds": time.perf_counter() - begun_s}


async def beside(client: ledgermq.Client, topic: str, options: argparse.Namespace) -> dict[str, object]:
    """Time records of a producer without transactions until a consumer has them, beside a transaction
    that has written to the same partition and stays open.
    """
    sent, seen_s = Sent(), dict[int, float]()
    options.records = int(options.seconds * options.rate)
    options.values = "text"
    async with AsyncExitStack() as stack:
        transactions = await stack.enter_async_context(client.transactions(f"{topic}-open", timeout=600.0))
        producer = await stack.enter_async_context(client.producer())
        consumer = await stack.enter_async_context(client.consumer(topic, start="latest"))
        await producer.send(topic, b"first")
        await consumer.wait_ready()
        if options.open:
            transaction = await stack.enter_async_context(transactions.begin())
            transaction.send(topic, b"staged")
            await transaction.flush()

        async def read() -> None:
            while len(seen_s) < options.records:
                for message in await consumer.fetch(timeout=30.0):
                    assert message.value is not None
                    seen_s[int.from_bytes(message.value[:8], "big")] = time.perf_counter()

        async with asyncio.TaskGroup() as group:
            group.create_task(read())
            await send_paced(producer, topic, options, sent)
    return {"latencies_ms": [1000 * (at_s - sent.due_s[number]) for number, at_s in seen_s.items()]}


WORK: dict[str, Callable[[ledgermq.Client, str, argparse.Namespace], Awaitable[dict[str, object]]]] = {
    "commit": commit,
    "bulk": bulk,
    "beside": beside,
}


async def run(options: argparse.Namespace) -> dict[str, object]:
    async with ledgermq.connect(options.target) as client:
        return await WORK[options.what](client, options.topic, options)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=[*WORK])
    parser.add_argument("target")
    parser.add_argument("topic")
    parser.add_argument("--transactions", type=int, default=500)
    parser.add_argument("--warm-up", type=int, default=30, help="transactions of each id before the clock starts")
    parser.add_argument("--ids", type=int, default=1, help="transactional ids side by side")
    parser.add_argument("--each", type=int, default=10, help="records of a transaction")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--value-bytes", type=int, default=1000)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--outside", action="store_true", help="bulk: with a producer without transactions")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=100.0)
    parser.add_argument("--open", action="store_true", help="beside: with an open transaction")
    parser.add_argument("--profile", help="write a profile to this file")
    options = parser.parse_args(arguments)
    with asyncio.Runner(loop_factory=punctual_loop if options.what == "beside" else None) as runner:
        if options.profile:
            import cProfile

            with cProfile.Profile() as profile:
                found = runner.run(run(options))
            profile.dump_stats(options.profile)
        else:
            found = runner.run(run(options))
    print(json.dumps(found), file=sys.stdout, flush=True)


if __name__ == "__main__":
    main()
