"""Direct reads in a simulated cluster: replacements for the clients' threads, files and HTTP.

A broker names segments by URLs below `PLACE`; on S3 these are presigned and expire. Time passes
between the broker's answer and the read, and the segment may be deleted in it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pytest

from ledgermq.client.consuming.fetching import direct_reads
from ledgermq_ledger.object_store.contract import ObjectMissing
from tests.simulation.s3 import is_expired
from tests.simulation.trace import Coverage
from tests.simulation.watch import PLACE, WatchedStore

T = TypeVar("T")


class LateThreads(Executor):
    """A client's threads: work begins up to `late_s_max` later, in virtual time."""

    def __init__(self, random: random.Random, late_s_max: float) -> None:
        self._random = random
        self._late_s_max = late_s_max

    async def run(self, work: Callable[..., T], *args: Any) -> T:
        await asyncio.sleep(self._random.uniform(0, self._late_s_max))
        return work(*args)


@contextmanager
def readable(store: WatchedStore, coverage: Coverage) -> Iterator[None]:
    """Let clients read objects of `store` by their URLs, as from an HTTP server."""

    def read(url: str, position: int, length: int) -> bytes:
        assert url.startswith(PLACE), url
        parts = urlsplit(url)
        if is_expired(parts.query, store.now_ms()):
            coverage.saw("a direct read came too late: its URL had expired")
            raise OSError("expired")
        try:
            data = store.read_now(parts.path[1:])
        except ObjectMissing as error:
            coverage.saw("a direct read met a segment that was deleted")
            raise OSError("not found") from error
        coverage.saw("a range of a segment was read directly")
        return data[position : position + length]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(direct_reads, "_read_http", read)
        yield
