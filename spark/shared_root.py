"""The root as driver and executors alike reach it."""

from __future__ import annotations

from ledger.commands.root import root_url
from ledgermq.errors import InvalidConfig


def shared_root(root: str) -> str:
    """The URL by which executors, whose working folder is another one, reach the root. Raises InvalidConfig."""
    url = root_url(root)
    if url.startswith("memory:"):
        raise InvalidConfig(f"root {root!r}: Spark's executors are other processes and cannot see it")
    return url
