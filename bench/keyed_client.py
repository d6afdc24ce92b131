"""One client process of rows V1 to V6: records as programs send them, with keys, headers and text, and the
functions that handle them. Prints one JSON line.

    python -m bench.keyed_client keyed TARGET TOPIC --records 1000000 --via send --header
    python -m bench.keyed_client handled TARGET TOPIC --records 100000 --via handler

`keyed`: values of words, 5,000 different keys, all as text; with `--header` each record has one. `handled`: an
empty function gets every record of the topic. Time, and processor time of this process, count from the first
record until the last acknowledgement, or the last call.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa

import ledgermq
from bench.load import DISTINCT_VALUES, SEND_AT_ONCE, values

KEYS = 5_000
HEADERS = {"trace": b"4bf92f3577b34da6a3ce929d0e0e4736"}


async def keyed(client: ledgermq.Client, topic: str, options: argparse.Namespace) -> int:
    texts = [value.decode() for value in values(DISTINCT_VALUES, options.value_bytes, random_bytes=False)]
    keys = [f"key-{number % KEYS}" for number in range(DISTINCT_VALUES)]
    headers = HEADERS if options.header else None
    whole = -(-options.records // DISTINCT_VALUES)
    async with client.producer() as producer:
        await producer.send(topic, "first", partition=0)
        options.begun()
        if options.via == "send":
            for number in range(options.records):
                at = number % DISTINCT_VALUES
                producer.send(topic, texts[at], key=keys[at], headers=headers)
                if number % SEND_AT_ONCE == 0:
                    await producer.wait_for_room()
        elif options.via == "send_many":
            for _ in range(whole):
                pairs = zip(texts, keys, strict=True)
                await producer.send_many(topic, [ledgermq.Record(text, key, headers) for text, key in pairs])
        elif options.via == "values":
            for _ in range(whole):
                await producer.send_many(topic, texts)
        else:
            for _ in range(whole):
                await producer.send_batch(topic, pa.table({"key": keys, "value": texts}))
        await producer.flush()
        options.ended()
    return int(options.records) if options.via == "send" else whole * DISTINCT_VALUES


async def handled(client: ledgermq.Client, topic: str, options: argparse.Namespace) -> int:
    left, done = options.records, asyncio.Event()
    if options.via in ("consumer", "group"):
        given: dict[str, Any] = {"start": "earliest"} | ({"group": topic} if options.via == "group" else {})
        async with client.consumer(topic, **given) as consumer:
            options.begun()
            async for _ in consumer:
                left -= 1
                if not left:
                    break
            options.ended()
        return int(options.records)

    async def handle(message: ledgermq.Message) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    declare = client.handler if options.via == "handler" else client.queue_handler
    concurrency = 1 if options.via == "handler" else 16
    declare(topic, group=topic, start="earliest", concurrency=concurrency)(handle)
    options.begun()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(client.run_handlers())
        await done.wait()
        options.ended()
        running.cancel()
    return int(options.records)


class Clock:
    """Wall and processor seconds between `begun` and `ended`."""

    def begun(self) -> None:
        self._begun_s, self._cpu_s = time.perf_counter(), time.process_time()

    def ended(self) -> None:
        self.seconds, self.cpu_s = time.perf_counter() - self._begun_s, time.process_time() - self._cpu_s


async def run(options: argparse.Namespace) -> None:
    clock = Clock()
    options.begun, options.ended = clock.begun, clock.ended
    work: Callable[..., Awaitable[int]] = keyed if options.what == "keyed" else handled
    async with ledgermq.connect(options.target) as client:
        records = await work(client, options.topic, options)
    print(json.dumps({"records": records, "seconds": clock.seconds, "cpu_s": clock.cpu_s}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["keyed", "handled"])
    parser.add_argument("target")
    parser.add_argument("topic")
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--header", action="store_true")
    parser.add_argument(
        "--via",
        choices=["send", "send_many", "values", "send_batch", "consumer", "group", "handler", "queue_handler"],
        default="send",
    )
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
