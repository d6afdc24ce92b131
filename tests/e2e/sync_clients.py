"""A synchronous client of a cluster in this process."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import ledgermq
import ledgermq.sync

names = (f"sync-{number}" for number in itertools.count())


def sync_client() -> Iterator[ledgermq.sync.Client]:
    with ledgermq.sync.connect(f"memory://{next(names)}") as client:
        yield client
