"""How whoever has an event loop runs work that blocks, as Arrow's and Parquet's does:
`asyncio.to_thread` where others share the loop.

`run_inline` where nobody does: in a simulation, and in a Python worker of Spark, which has one task
at a time and mostly one core. There each hand-over to a thread and back costs processor time for
nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

RunBlocking = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a blocking function and returns its result."""


async def run_inline(step: Callable[[], Any]) -> Any:
    return step()
