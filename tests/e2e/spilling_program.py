"""A producer with a spill, run as a separate process that tests kill.

`python -m tests.e2e.spilling_program TARGET FOLDER COUNT DIE_AT DIE_AFTER`: it sends COUNT records to two
partitions of topic t, numbered on from what FOLDER/sent has, and keeps what it cannot deliver in
FOLDER/t.spill. FOLDER/sent gets a line for each record before it is sent, FOLDER/answered for each that was
answered, as stored or as spilled. With COUNT 0 it runs until its spill is empty.

DIE_AT is a method of the spill's file, and "before" or "after": the process kills itself with SIGKILL at the
DIE_AFTER-th call of it. "": it ends by itself.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import ledgermq
from ledgermq.client.producing.spilling.spill_file import SpillFile

PARTITIONS = 2
DELIVERY_TIMEOUT_S = 1.0


def line(folder: Path, name: str, number: int) -> None:
    with (folder / name).open("a") as file:
        file.write(f"{number}\n")


def lines(folder: Path, name: str) -> list[int]:
    return [int(text) for text in (folder / name).read_text().split()] if (folder / name).exists() else []


def die(when: str, name: str, after: int) -> None:
    inner = getattr(SpillFile, name)
    calls = 0

    async def call(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        if (calls, when) == (after, "before"):
            os.kill(os.getpid(), signal.SIGKILL)
        result = await inner(*given)
        if (calls, when) == (after, "after"):
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(SpillFile, name, call)


async def answered(folder: Path, number: int, delivery: ledgermq.Delivery) -> None:
    await delivery
    line(folder, "answered", number)


async def main(target: str, folder: Path, count: int) -> None:
    async with ledgermq.connect(target, timeout_s=2) as client:
        spill = ledgermq.Spill(folder / "t.spill")
        async with (
            client.producer(spill=spill, delivery_timeout_s=DELIVERY_TIMEOUT_S, batch_bytes_max=1) as producer,
            asyncio.TaskGroup() as tasks,
        ):
            first = len(lines(folder, "sent"))
            for number in range(first, first + count):
                line(folder, "sent", number)
                delivery = producer.send("t", b"%d" % number, partition=number % PARTITIONS)
                tasks.create_task(answered(folder, number, delivery))
                await asyncio.sleep(0.1)
            while not count and producer.spilled is not None and producer.spilled.records:
                await asyncio.sleep(0.05)


if __name__ == "__main__":
    if sys.argv[4]:
        die(*sys.argv[4].split(), int(sys.argv[5]))  # type: ignore[arg-type, call-arg]
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
