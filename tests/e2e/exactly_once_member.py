"""A member, run as a separate process, that keeps results and offsets in one transaction of
SQLite.

`python -m tests.e2e.exactly_once_member TARGET DATABASE COUNT DIE_AFTER WHERE`: it kills itself
with SIGKILL inside its DIE_AFTER-th transaction (WHERE is `before`) or just after it (`behind`);
with 0 it runs until the table has COUNT results.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from sqlalchemy import Engine, create_engine, text

import ledgermq
from ledgermq.offset_stores.sql import SqlOffsetStore

SESSION_TIMEOUT_S = 3.0
"""How long a killed member's partitions wait for the next one."""


def results(engine: Engine) -> int:
    with engine.begin() as transaction:
        return int(transaction.execute(text("SELECT count(*) FROM results")).scalar_one())


async def main(target: str, database: str, count: int, die_after: int, where: str) -> None:
    engine = create_engine(database)
    store = SqlOffsetStore(engine)

    def work(messages: list[ledgermq.GroupMessage], entries: list[ledgermq.OffsetEntry], dies: bool) -> None:
        with engine.begin() as transaction:
            for message in messages:
                transaction.execute(text("INSERT INTO results VALUES (:value)"), {"value": int(message.value or b"")})
            store.commit_in(transaction, "g", entries)
            if dies and where == "before":
                os.kill(os.getpid(), signal.SIGKILL)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)

    transactions = 0
    async with (
        ledgermq.connect(target) as client,
        client.consumer(
            "t",
            group="g",
            commit="manual",
            offset_store=store,
            session_timeout_s=SESSION_TIMEOUT_S,
            heartbeat_wait_s=0.5,
        ) as consumer,
    ):
        while results(engine) < count:
            messages = await consumer.fetch(max_records=5, timeout=1.0)
            if messages:
                transactions += 1
                await asyncio.to_thread(work, messages, consumer.entries(messages), transactions == die_after)
                for message in messages:
                    message.ack()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]))
