"""One client process of the measurements of timed messages: works through the public SDK, and prints
one JSON line of what it did.

    python -m bench.timed_client send TARGET TOPIC --records 100000            plain records, as a comparison
    python -m bench.timed_client send TARGET TOPIC --ahead-s 3600 --spread-s 3600    at random seconds of an hour
    python -m bench.timed_client send TARGET TOPIC --at 1790000000             all of them due together
    python -m bench.timed_client receive TARGET TOPIC --records 100000         tails the topic, with lateness
    python -m bench.timed_client precise TARGET TOPIC --rate 100 --seconds 60  does both at once
    python -m bench.timed_client live TARGET TOPIC --rate 100                  plain records, until SIGTERM
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa

import ledgermq
from bench.load import DISTINCT_VALUES, SEND_AT_ONCE, WARM, punctual_loop, values
from bench.percentiles import at
from ledgermq.client.producing.producer import Producer

AHEAD_S = (2.0, 10.0)
"""How far ahead the records of `precise` are due."""
FETCH_S = 30.0
SILENCE_S_MAX = 300.0
"""A receiver that gets nothing for so long ends."""
Found = dict[str, object]


class Lateness:
    """How long after their due times records came. Times are microseconds since the epoch."""

    def __init__(self) -> None:
        self._late_us: list[np.ndarray] = []
        self.records = 0

    def add(self, due_us: np.ndarray, seen_us: int) -> None:
        self._late_us.append(seen_us - due_us)
        self.records += len(due_us)

    def found(self) -> Found:
        """Return percentiles in ms, and the number of records that came early."""
        late_ms = np.sort(np.concatenate(self._late_us)) / 1000
        return {
            "records": self.records,
            "p50_ms": float(at(late_ms.tolist(), 0.5)),
            "p99_ms": float(at(late_ms.tolist(), 0.99)),
            "max_ms": float(late_ms[-1]),
            "early": int((late_ms < 0).sum()),
        }


def due_times(options: argparse.Namespace, now_s: float) -> list[datetime] | None:
    """Return times that records get in turn: whole seconds. None: the records are plain ones."""
    if options.at:
        return [datetime.fromtimestamp(options.at, UTC)]
    if not options.spread_s:
        return None
    chance, first_s = random.Random(7), int(now_s + options.ahead_s)
    return [datetime.fromtimestamp(first_s + chance.randrange(options.spread_s), UTC) for _ in range(DISTINCT_VALUES)]


async def send(client: ledgermq.Client, topic: str, options: argparse.Namespace) -> Found:
    """Send records one by one, until all are acknowledged. The first record of a process comes before."""
    made = values(DISTINCT_VALUES, options.value_bytes, random_bytes=False)
    times = due_times(options, time.time())
    async with client.producer() as producer:
        await producer.send(topic, b"first", deliver_at=times[0] if times else None)
        begun_s, cpu_s = time.perf_counter(), time.process_time()
        for number in range(1, options.records):
            value = made[number % DISTINCT_VALUES]
            if times is None:
                producer.send(topic, value)
            else:
                producer.send(topic, value, deliver_at=times[number % len(times)])
            if number % SEND_AT_ONCE == 0:
                await producer.wait_for_room()
        await producer.flush()
        seconds, cpu_s = time.perf_counter() - begun_s, time.process_time() - cpu_s
    return {"records": options.records, "seconds": seconds, "cpu_s": cpu_s, "ended_at_s": time.time()}


async def receive(client: ledgermq.Client, topic: str, options: argparse.Namespace) -> Found:
    """Read what comes from now on; "first_due_at_s" is the lowest due time of it."""
    late, first_due_us = Lateness(), 0
    async with client.consumer(topic, start="latest") as consumer:
        await consumer.wait_ready()
        print(WARM, flush=True)
        while late.records < options.records:
            due_us, seen_us = await _fetch(consumer)
            first_due_us = min(first_due_us or int(due_us[0]), int(due_us.min()))
            late.add(due_us, seen_us)
    return {**late.found(), "first_due_at_s": first_due_us / 1e6, "ended_at_s": time.time()}


async def _fetch(consumer: ledgermq.Consumer) -> tuple[np.ndarray, int]:
    """Return the timestamps of the next records, and when they came. Raises RuntimeError if none come."""
    begun_s = time.perf_counter()
    while time.perf_counter() - begun_s < SILENCE_S_MAX:
        table = await consumer.fetch_arrow(timeout=FETCH_S)
        seen_us = time.time_ns() // 1000
        if table.num_rows:
            return table["timestamp"].cast(pa.int64()).to_numpy(), seen_us
    raise RuntimeError(f"no record came for {SILENCE_S_MAX:.0f} s")


async def precise(client: ledgermq.Client, topic: str, options: argparse.Namespace) -> Found:
    """Send at a rate records that are due some seconds ahead, and tail the topic."""
    late = Lateness()
    value = values(1, options.value_bytes, random_bytes=False)[0]
    records = int(options.rate * options.seconds)
    async with client.producer() as producer, client.consumer(topic, start="latest") as consumer:
        await consumer.wait_ready()
        await producer.send(topic, b"first", delay=0.1)
        await _fetch(consumer)

        async def read() -> None:
            while late.records < records:
                late.add(*await _fetch(consumer))

        async with asyncio.TaskGroup() as group:
            group.create_task(read())
            await _send_ahead(producer, topic, value, records, options.rate)
    return late.found()


async def _send_ahead(producer: Producer, topic: str, value: bytes, records: int, rate: float) -> None:
    chance, begun_s = random.Random(7), time.perf_counter()
    sent = []
    for number in range(records):
        await asyncio.sleep(max(0.0, begun_s + number / rate - time.perf_counter()))
        due = datetime.fromtimestamp(time.time() + chance.uniform(*AHEAD_S), UTC)
        sent.append(producer.send(topic, value, deliver_at=due))
    await asyncio.gather(*sent)


async def live(client: ledgermq.Client, topic: str, options: argparse.Namespace) -> Found:
    """Return for each record when it was to be sent, seconds since the epoch, and the milliseconds from
    then until its acknowledgement.
    """
    value = values(1, options.value_bytes, random_bytes=False)[0]
    found: list[tuple[float, float]] = []
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with client.producer() as producer, asyncio.TaskGroup() as group:
        await producer.send(topic, b"first")
        print(WARM, flush=True)
        begun_s, epoch_s, number = time.perf_counter(), time.time() - time.perf_counter(), 0

        async def one(due_s: float) -> None:
            await producer.send(topic, value)
            found.append((epoch_s + due_s, 1000 * (time.perf_counter() - due_s)))

        while not stopped.is_set():
            due_s = begun_s + number / options.rate
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            group.create_task(one(due_s))
            number += 1
    return {"latencies": found}


WORK: dict[str, Callable[[ledgermq.Client, str, argparse.Namespace], Awaitable[Found]]] = {
    "send": send,
    "receive": receive,
    "precise": precise,
    "live": live,
}


async def run(options: argparse.Namespace) -> Found:
    async with ledgermq.connect(options.target) as client:
        return await WORK[options.what](client, options.topic, options)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=[*WORK])
    parser.add_argument("target")
    parser.add_argument("topic")
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--ahead-s", type=int, default=3600, help="send: the first second at which a record is due")
    parser.add_argument("--spread-s", type=int, default=0, help="send: number of seconds from which one is drawn")
    parser.add_argument("--at", type=float, default=0.0, help="send: due time of all, seconds since the epoch")
    parser.add_argument("--seconds", type=float, default=60.0, help="precise: how long records are sent")
    parser.add_argument("--rate", type=float, default=100.0, help="precise, live: records a second")
    parser.add_argument("--profile", help="write a profile to this file")
    options = parser.parse_args(arguments)
    with asyncio.Runner(loop_factory=punctual_loop if options.what in ("precise", "live") else None) as runner:
        if options.profile:
            import cProfile

            with cProfile.Profile() as profile:
                found = runner.run(run(options))
            profile.dump_stats(options.profile)
        else:
            found = runner.run(run(options))
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
