"""X4: the processor time that the turn of a call costs a broker, where the call waits for no other one.

Calls come one after the other, as from gRPC each in its own turn of the event loop, whose time is taken off. A
caller's first 50 calls in a second take no turn, so they cost less than those behind them.
"""

from __future__ import annotations

import asyncio
import time

from bench.measures import Results
from ledgermq.runtime.ports.turns import Turns
from ledgermq.runtime.process.server_process import loop_factory
from ledgermq_broker.ports.grpc_server import AT_ONCE_MAX, FREE_PER_S, QUIET_TURNS, TURN_S_MAX

ROW = "X4"
TURN, FEW, MANY = "turn of a call", f"at most {FREE_PER_S} calls a second", "more calls"
TURNS = 200_000


class Turned:
    def __init__(self, results: Results, rounds: int, scale: float) -> None:
        self._results, self._rounds, self._turns = results, rounds, int(TURNS * scale)

    def run(self) -> None:
        for _ in range(self._rounds):
            for name, free_per_s in ((FEW, 2 * TURNS), (MANY, FREE_PER_S)):
                self._results.add(ROW, TURN, name, "µs", turn_us(self._turns, free_per_s))


def turn_us(count: int, free_per_s: int) -> float:
    """Return microseconds for each of so many calls: from its admission until its handler goes on, and what follows in
    the event loop. `free_per_s`: so many calls of a caller in a second take no turn.
    """
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        without_s = runner.run(_seconds(count, None))
        return 1e6 * (runner.run(_seconds(count, free_per_s)) - without_s) / count


async def _seconds(count: int, free_per_s: int | None) -> float:
    """Return the processor time of so many calls, one after the other. `free_per_s`: None for calls without turns."""
    turns = Turns(at_once_max=AT_ONCE_MAX, free_per_s=free_per_s or 0, quiet_turns=QUIET_TURNS)
    begun_s = time.process_time()
    for _ in range(count):
        if free_per_s is not None:
            turns.came("user:calm")
            if not turns.at_once("user:calm", is_new=True):
                await turns.begin("user:calm", wait_s=TURN_S_MAX, is_new=True)
        await asyncio.sleep(0)
    return time.process_time() - begun_s
