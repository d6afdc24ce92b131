"""Run blocking work (Arrow, Parquet) from an event loop: by `asyncio.to_thread` if other tasks
share the loop.

`run_inline` is for loops without other tasks: in a simulation, and in a Python worker of Spark,
which has one task at a time and mostly one core. There, each switch to a thread and back costs
processor time for nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

RunBlocking = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a blocking function and returns its result."""


async def run_inline(step: Callable[[], Any]) -> Any:
    return step()
