"""One program that sends as much as it can: `python -m bench.flood flood TARGET TOPIC --connections 16`.

Each connection keeps its producer's buffer full. It says that it is warm once each has stored a record,
begins, and ends at SIGTERM, with the time and the bytes of each acknowledgement.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
from collections.abc import Iterator

import pyarrow as pa

import ledgermq
from bench.load import DISTINCT_VALUES, WARM, values
from ledgermq.buffers import MIB

BUFFER_BYTES = 16 * MIB
"""Of each connection: 16 of them can fill what a broker has for records."""


class Flood:
    def __init__(self, target: str, topic: str, value_bytes: int) -> None:
        self._target, self._topic = target, topic
        self._rows = pa.record_batch(
            {"value": pa.array(values(DISTINCT_VALUES, value_bytes, random_bytes=True), pa.binary())}
        )
        self._bytes = DISTINCT_VALUES * value_bytes
        self.acknowledged: list[tuple[float, int]] = []

    async def run(self, connections: int) -> None:
        """Raises the first error of a producer."""
        loop, stopped, ready = asyncio.get_running_loop(), asyncio.Event(), iter(range(connections - 1))
        loop.add_signal_handler(signal.SIGTERM, stopped.set)
        async with asyncio.TaskGroup() as group:
            for _ in range(connections):
                group.create_task(self._send(group, ready, stopped))

    async def _send(self, group: asyncio.TaskGroup, ready: Iterator[int], stopped: asyncio.Event) -> None:
        async with (
            ledgermq.connect(self._target) as client,
            client.producer(buffer_bytes_max=BUFFER_BYTES, compression="none") as producer,
        ):
            await producer.send(self._topic, b"first")
            if next(ready, None) is None:
                print(WARM, flush=True)
            while not stopped.is_set():
                delivery = await producer.send_batch(self._topic, self._rows)
                group.create_task(self._note(delivery))
            await producer.flush()

    async def _note(self, delivery: ledgermq.BatchDelivery) -> None:
        await delivery
        self.acknowledged.append((asyncio.get_running_loop().time(), self._bytes))


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["flood"])
    parser.add_argument("target")
    parser.add_argument("topic")
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--value-bytes", type=int, default=1000)
    options = parser.parse_args()
    flood = Flood(options.target, options.topic, options.value_bytes)
    await flood.run(options.connections)
    print(json.dumps({"acknowledged": flood.acknowledged}))


if __name__ == "__main__":
    asyncio.run(main())
