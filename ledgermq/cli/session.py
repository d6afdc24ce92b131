"""How commands reach the cluster: the public SDK with the target and the time limit that the user gave."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import ledgermq


@asynccontextmanager
async def connected(target: str, timeout_s: float, *, may_make: bool = False) -> AsyncIterator[ledgermq.Client]:
    """`may_make`: a cluster, where a root URL holds none; a command that only looks, or changes what is there, refuses it.

    Raises InvalidConfig for a target that is none, Unavailable.
    """
    async with ledgermq.connect(target, timeout_s=timeout_s, must_exist=not may_make) as client:
        yield client
