"""The examples that relay changes of a database, for tests that kill them.

`python -m tests.relays.dying_changes DATABASE TARGET TOPIC NAME DIES_IN HOW` sends until all is sent. In step number
DIES_IN (0: never) it kills itself with SIGKILL; HOW is a number: so many seconds after that step began; `wait`: it
says `here` instead, and goes on when it gets a line.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

import ledgermq.sync
from examples.relays import mariadb_changes, postgres_changes


def main(database: str, target: str, topic: str, name: str, dies_in: int, how: str) -> None:
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
        relay = postgres_changes.Relay if database.startswith("postgresql:") else mariadb_changes.Relay
        relay(client, topic, name, step=step).run(database, once=True)


if __name__ == "__main__":
    main(*sys.argv[1:5], int(sys.argv[5]), sys.argv[6])
