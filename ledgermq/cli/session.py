"""How commands reach the cluster: the public SDK with the target and the time limit that the user gave."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import ledgermq


@asynccontextmanager
async def connected(target: str, timeout_s: float) -> AsyncIterator[ledgermq.Client]:
    """Raises InvalidConfig for a target that is none, Unavailable."""
    async with ledgermq.connect(target, timeout_s=timeout_s) as client:
        yield client
