"""The example that relays changes of PostgreSQL, for tests that kill it.

`python -m tests.relays.dying_changes POSTGRES TARGET TOPIC SLOT DIES_IN HOW` sends until all is sent. In step number
DIES_IN (0: never) it kills itself with SIGKILL; HOW is a number: so many seconds after that step began; `wait`: it
says `here` instead, and goes on when it gets a line.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

import ledgermq.sync
from examples.relays.postgres_changes import Relay


def main(postgres: str, target: str, topic: str, slot: str, dies_in: int, how: str) -> None:
    steps = 0

    def step(_: str) -> None:
        nonlocal steps
        steps += 1
        if steps != dies_in:
            return
        if how == "wait":
            print("here", flush=True)
            sys.stdin.readline()
        elif how == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            threading.Timer(float(how), os.kill, (os.getpid(), signal.SIGKILL)).start()

    with ledgermq.sync.connect(target) as client:
        Relay(client, topic, slot, step=step).run(postgres, once=True)


if __name__ == "__main__":
    main(*sys.argv[1:5], int(sys.argv[5]), sys.argv[6])
