"""An order is in the database if and only if its message is in the topic, though programs and the
broker are killed between the two.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

import ledgermq
from ledgermq.client.transactions.checks import Resolution
from tests.e2e.processes import BrokerProcesses

PROGRAM_S_MAX = 120.0
CHECKED_S_MAX = 60.0


def program(target: str, database: str, where: str) -> int:
    """Run the program until it dies; return its exit code."""
    command = [sys.executable, "-m", "tests.e2e.half_message_program", target, database, where]
    return subprocess.run(command, check=False, timeout=PROGRAM_S_MAX).returncode


@pytest.mark.slow
async def test_messages_follow_the_database_though_everybody_is_killed(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/orders.db"
    engine = create_engine(database)
    with engine.begin() as transaction:
        transaction.execute(text("CREATE TABLE orders (name TEXT)"))
    asked: list[str] = []

    def orders() -> list[str]:
        with engine.begin() as transaction:
            return [row.name for row in transaction.execute(text("SELECT name FROM orders ORDER BY name"))]

    def check(message: ledgermq.CheckedMessage) -> Resolution:
        asked.append(message.transactional_id)
        return "commit" if (message.value or b"").decode() in orders() else "rollback"

    with BrokerProcesses(tmp_path, (tmp_path / "root").as_uri()) as brokers:
        first = await asyncio.to_thread(brokers.start)
        async with ledgermq.connect(first.address) as client:
            await client.create_topic("orders", 1)
        for where in ("before", "behind"):
            code = await asyncio.to_thread(program, first.address, database, where)
            assert code == -signal.SIGKILL
        assert orders() == ["before-1", "behind-1", "behind-2"]
        brokers.kill(first)
        second = await asyncio.to_thread(brokers.start)
        async with (
            ledgermq.connect(second.address) as client,
            client.half_messages("orders-checkers", check=check),
            client.consumer("orders", start="earliest") as consumer,
        ):
            found: list[str] = []
            async with asyncio.timeout(CHECKED_S_MAX):
                while len(found) < 3 or len(set(asked)) < 2:
                    found += [(message.value or b"").decode() for message in await consumer.fetch(timeout=0.5)]
            found += [(message.value or b"").decode() for message in await consumer.fetch(timeout=2.0)]
    assert sorted(found) == ["before-1", "behind-1", "behind-2"]
    assert set(asked) == {"order-before-2", "order-behind-2"}
