"""A program, run as a separate process, that sends half messages around transactions of SQLite and
dies.

`python -m tests.e2e.half_message_program TARGET DATABASE WHERE`: it sends order 1 and completes it,
then sends order 2 and kills itself with SIGKILL before the local transaction commits (WHERE is
`before`) or just after it (`behind`).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from sqlalchemy import create_engine, text

import ledgermq
from ledgermq.client.transactions.checks import Resolution


async def main(target: str, database: str, where: str) -> None:
    engine = create_engine(database)

    def order(number: int, dies: bool) -> Resolution:
        with engine.begin() as transaction:
            transaction.execute(text("INSERT INTO orders VALUES (:name)"), {"name": f"{where}-{number}"})
            if dies and where == "before":
                os.kill(os.getpid(), signal.SIGKILL)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return "commit"

    async with (
        ledgermq.connect(target) as client,
        client.half_messages("orders-checkers", check=lambda message: "unknown") as half,
    ):
        for number in (1, 2):
            await half.send_in_transaction(
                "orders",
                f"{where}-{number}",
                transactional_id=f"order-{where}-{number}",
                execute=lambda _, number=number: order(number, number == 2),  # type: ignore[misc]
            )


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
