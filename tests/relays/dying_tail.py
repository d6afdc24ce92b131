"""The example that follows log files, for tests that kill it.

`python -m tests.relays.dying_tail TARGET PATTERN DIES_IN AFTER_S` sends to `logs` until all is read. It kills itself
with SIGKILL in step number DIES_IN, or so many seconds after that step began; 0: never.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import ledgermq
from examples.relays.tail_files import follow


async def main(target: str, pattern: str, dies_in: int, after_s: float) -> None:
    steps = 0

    def step(_: str) -> None:
        nonlocal steps
        steps += 1
        if steps == dies_in:
            if not after_s:
                os.kill(os.getpid(), signal.SIGKILL)
            asyncio.get_running_loop().call_later(after_s, os.kill, os.getpid(), signal.SIGKILL)

    async with ledgermq.connect(target) as client:
        await follow(client, "logs", [pattern], "host", once=True, step=step)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
