"""A handler with `Retry.metaq`, run as a separate process that tests kill.

`python -m tests.e2e.retrying_member TARGET FOLDER COUNT DIE_AT DIE_AFTER`: every message whose
number is a multiple of 5 fails until FOLDER/cured exists. FOLDER/handled gets a line for each call
that succeeded, FOLDER/failed for each that failed. The process kills itself with SIGKILL at its
DIE_AFTER-th failed message: a second `before` it is stored, when it is `stored` and not
acknowledged, when it is handled again (`recovering`), or when that has succeeded and it is not yet
removed (`recovered`); with 0 it runs until COUNT messages are handled and its store is empty.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import ledgermq
from ledgermq.client.groups.handlers.recovering.local_store import LocalStore

SESSION_TIMEOUT_S = 3.0
"""How long a killed member's partitions wait for the next one."""
COMMITTED_S = 1.0
"""By then whatever was acknowledged is committed; every acknowledgement is, at once."""


def line(folder: Path, name: str, message: ledgermq.Message) -> None:
    with (folder / name).open("ab") as file:
        file.write((message.value or b"") + b"\n")


def lines(folder: Path, name: str) -> list[int]:
    return [int(text) for text in (folder / name).read_text().split()] if (folder / name).exists() else []


async def unacknowledged(client: ledgermq.Client) -> int:
    return sum(lag.messages for lag in (await client.groups.lag("g")).values())


def die_within(name: str, *, after: int, behind: bool) -> None:
    """Make the process kill itself at the `after`-th call of this method of the store."""
    inner = getattr(LocalStore, name)
    count = 0

    async def call(*given: Any) -> None:
        nonlocal count
        count += 1
        number = count
        if behind:
            await inner(*given)
        if number == after:
            if not behind:
                await asyncio.sleep(COMMITTED_S)
            os.kill(os.getpid(), signal.SIGKILL)
        if not behind:
            await inner(*given)

    setattr(LocalStore, name, call)


async def main(target: str, folder: Path, count: int, die_at: str, die_after: int) -> None:
    if die_after and die_at != "recovering":
        name = "remove" if die_at == "recovered" else "add"
        die_within(name, after=die_after, behind=die_at == "stored")
    retry = ledgermq.Retry.metaq(
        attempts=2, wait_ms_step=10, store=folder / "g.retry", recover_every_s=0.5, messages_max=1000
    )
    async with ledgermq.connect(target) as client:

        @client.handler(
            "t",
            group="g",
            ordered_by=None,
            concurrency=4,
            retry=retry,
            commit_interval_ms=1,
            session_timeout_s=SESSION_TIMEOUT_S,
            heartbeat_wait_s=0.5,
            on_failure=lambda message, error, attempt: line(folder, "failed", message),
        )
        async def handle(message: ledgermq.GroupMessage) -> None:
            if int(message.value or b"") % 5 == 0 and not (folder / "cured").exists():
                raise ZeroDivisionError
            if die_at == "recovering" and int(message.value or b"") % 5 == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            line(folder, "handled", message)

        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(client.run_handlers(stop=stop))
            while len(set(lines(folder, "handled"))) < count or await unacknowledged(client) or handle.stored:
                await asyncio.sleep(0.1)
            stop.set()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5])))
