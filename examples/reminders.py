"""Remind customers of unpaid orders: an order that is not paid in time gets a reminder.

    pip install "ledgermq[broker]"
    python examples/reminders.py [TARGET]         # by default a broker on the folder ./ledgermq-reminders

For each order the program sends a message to itself that comes a quarter of an hour
later. `examples/test_reminders.py` tests it in a moment.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from pathlib import Path

import ledgermq

PATIENCE = timedelta(minutes=15)


async def remind(client: ledgermq.Client, group: str = "reminders") -> None:
    """Read the topics `orders`, `payments` and `due`, and write reminders to `reminders`, until cancelled."""
    for topic in ("orders", "due", "reminders"):
        await client.create_topic(topic, partitions=1, if_not_exists=True)
    await client.create_topic("payments", partitions=1, settings={"cleanup.policy": "compact"}, if_not_exists=True)
    async with (
        client.table("payments") as payments,
        client.producer() as producer,
        client.consumer(["orders", "due"], group=group, start="earliest") as consumer,
    ):
        async for message in consumer:
            if message.topic == "orders":
                await producer.send("due", message.value, key=message.key, delay=PATIENCE)
            elif message.key not in payments:
                await producer.send("reminders", message.value, key=message.key)


async def main(target: str) -> None:
    async with ledgermq.connect(target) as client:
        await remind(client)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else Path("ledgermq-reminders").absolute().as_uri()))
