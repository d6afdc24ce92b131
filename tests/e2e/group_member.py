"""A member of a group as a separate process, for tests that kill it: `python -m
tests.e2e.group_member TARGET TOPIC GROUP LOG`.

Each line of its log is one event, written at once: monotonic time, event, partition, offset.
SIGTERM: finish, commit, leave.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time

import ledgermq
from ledgermq import TopicPartition, errors

COMMIT_EVERY = 20


class Log:
    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, event: str, partition: int = -1, offset: int = -1) -> None:
        os.write(self._file, f"{time.monotonic_ns()} {event} {partition} {offset}\n".encode())


async def main(target: str, topic: str, group: str, path: str) -> None:
    log = Log(path)
    position = {}

    def on_assigned(partitions: list[TopicPartition]) -> None:
        for each in partitions:
            log.write("assigned", each.partition, consumer.position(each.partition))

    def on_revoked(partitions: list[TopicPartition]) -> None:
        for each in partitions:
            log.write("revoked", each.partition, position.get(each.partition, -1))

    def on_lost(partitions: list[TopicPartition]) -> None:
        for each in partitions:
            log.write("lost", each.partition)

    async with ledgermq.connect(target) as client:
        consumer = client.consumer(
            topic,
            group=group,
            commit="acked",
            commit_interval_ms=60_000,
            session_timeout_s=8,
            heartbeat_wait_s=1,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            on_lost=on_lost,
        )
        draining: list[asyncio.Task[None]] = []
        asyncio.get_running_loop().add_signal_handler(
            signal.SIGTERM, lambda: draining.append(asyncio.get_running_loop().create_task(consumer.drain(20)))
        )
        log.write("started")
        count = 0
        async with consumer:
            async for message in consumer:
                await asyncio.sleep(0.001)
                log.write("handled", message.partition, message.offset)
                position[message.partition] = message.offset + 1
                message.ack()
                count += 1
                if count % COMMIT_EVERY == 0:
                    try:
                        for partition, offset in (await consumer.commit()).items():
                            log.write("committed", partition.partition, offset)
                    except (errors.GroupError, errors.RetriableError) as error:
                        log.write(f"refused:{error.code}")
            await asyncio.gather(*draining)
        log.write("left")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:5]))
