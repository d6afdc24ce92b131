"""A process that reads a topic and writes another, exactly once, for tests that kill it.

`python -m tests.e2e.transactional_member TARGET COUNT DIE_AFTER WHERE`: it kills itself with
SIGKILL in its DIE_AFTER-th transaction, when everything is staged (WHERE is `staged`), or just after
the commit (`committed`); with 0 it runs until `out` has COUNT records.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import ledgermq
from ledgermq.errors import TransactionAborted

SESSION_TIMEOUT_S = 3.0
"""How long a killed member's partitions wait for the next one."""


async def main(target: str, count: int, die_after: int, where: str) -> None:
    transactions_run = 0
    async with (
        ledgermq.connect(target) as client,
        client.transactions("copy-0") as transactions,
        client.consumer(
            "in", group="g", commit="manual", session_timeout_s=SESSION_TIMEOUT_S, heartbeat_wait_s=0.5
        ) as consumer,
    ):
        while sum((await client.list_offsets("out")).values()) < count:
            messages = await consumer.fetch(max_records=5, timeout=1.0)
            if not messages:
                continue
            transactions_run += 1
            try:
                async with transactions.begin(reading=consumer) as transaction:
                    for message in messages:
                        transaction.send("out", message.value, partition=message.partition)
                    await transaction.flush()
                    await transaction.send_offsets(consumer, messages)
                    if transactions_run == die_after and where == "staged":
                        os.kill(os.getpid(), signal.SIGKILL)
            except TransactionAborted:  # on a busy machine its session was over: it reads on where the group is
                continue
            if transactions_run == die_after:
                os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
