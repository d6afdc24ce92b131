"""Run one member of the demo's consumer group in a separate process: member.py TARGET NAME. It
stops at SIGTERM, after a last commit.

Once it is a member, it writes "ready", and waits for a line. For each handful of messages that it
has finished it writes a line: partition, first offset, number of messages.
"""

from __future__ import annotations

import asyncio
import signal
import sys

from producing import TOPIC

import ledgermq

GROUP = "demo"
SESSION_TIMEOUT_S = 3.0
"""A member that is silent for this long loses its partitions to the others.

The demo should not wait for the default of 45 s.
"""
FETCH_RECORDS_MAX = 2000


async def main(target: str, name: str) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    settings = {
        "client_id": name,
        "session_timeout_s": SESSION_TIMEOUT_S,
        "heartbeat_wait_s": 0.5,
        "commit_interval_ms": 200,
    }
    async with ledgermq.connect(target) as client, client.consumer(TOPIC, group=GROUP, **settings) as consumer:
        await consumer.wait_ready()
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)  # until all have their share: one member would be done too soon
        while not stopped.is_set():
            for partition, offsets in runs(await consumer.fetch(FETCH_RECORDS_MAX, timeout=0.5)).items():
                sys.stdout.write(
                    f"{partition} {offsets[0]} {len(offsets)}\n"
                )  # one write: a kill leaves no part of a line
                sys.stdout.flush()
        await consumer.drain()


def runs(messages: list[ledgermq.GroupMessage]) -> dict[int, list[int]]:
    """Return offsets by partition."""
    found: dict[int, list[int]] = {}
    for message in messages:
        found.setdefault(message.partition, []).append(message.offset)
    return found


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
