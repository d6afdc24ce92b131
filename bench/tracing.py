"""X5: the processor time that tracing adds to `send` of a record of 100 bytes, by what the program is in.

Clients take turns in one process: one that does not trace, and ones that do. Only the calls of `send` are timed; the
records are stored between them. The best of many short rounds counts, so that the garbage collector and neighbours on
the machine fall out; from it the time without tracing is taken off.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractContextManager, nullcontext
from itertools import count

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

import ledgermq
from bench.measures import Results
from ledgermq.client.producing.producer import Producer

ROW = "X5"
SEND, OUTSIDE, NOT_RECORDED, RECORDED = (
    "tracing, a record sent",
    "outside a trace",
    "in one not recorded",
    "in a recorded",
)
CALLS, ROUNDS, VALUE = 1_000, 60, b"v" * 100

_roots = count()


class Traced:
    def __init__(self, results: Results, rounds: int, scale: float) -> None:
        self._results, self._rounds, self._inner = results, rounds, max(5, int(ROUNDS * scale))

    def run(self) -> None:
        for _ in range(self._rounds):
            for name, added_us in added(self._inner).items():
                self._results.add(ROW, SEND, name, "µs", added_us)


def added(rounds: int) -> dict[str, float]:
    """Return the microseconds that tracing adds to a call of `send`."""
    return asyncio.run(_added(rounds))


async def _added(rounds: int) -> dict[str, float]:
    never = TracerProvider(sampler=ALWAYS_OFF).get_tracer("bench")
    always = TracerProvider(sampler=ALWAYS_ON).get_tracer("bench")
    surroundings = {
        "off": nullcontext,
        OUTSIDE: nullcontext,
        NOT_RECORDED: lambda: never.start_as_current_span("order"),
        RECORDED: lambda: always.start_as_current_span("order"),
    }
    best_us = dict.fromkeys(surroundings, float("inf"))
    root = f"memory://bench-tracing-{next(_roots)}"
    async with ledgermq.connect(root, tracing=False) as off, ledgermq.connect(root, tracing=True) as on:
        await off.create_topic("t", 1)
        producers = {name: (off if name == "off" else on).producer() for name in surroundings}
        for _ in range(rounds):
            for name, producer in producers.items():
                await producer.send("t", VALUE)  # a batch is open
                best_us[name] = min(best_us[name], _round_us(producer, surroundings[name]()))
                await producer.flush()
    return {name: best_us[name] - best_us["off"] for name in surroundings if name != "off"}


def _round_us(producer: Producer, surroundings: AbstractContextManager[trace.Span | None]) -> float:
    with surroundings:
        producer.send("t", VALUE)  # opens the batch
        begun_ns = time.process_time_ns()
        for _ in range(CALLS):
            producer.send("t", VALUE)
        return (time.process_time_ns() - begun_ns) / 1000 / CALLS
