"""Create topics of a benchmark."""

from __future__ import annotations

import ledgermq.sync
from ledgermq import Tls


def create(target: str, name: str, partitions: int, tls: Tls | None = None, token: str = "") -> str:
    """Return the name, once the topic exists. `target`: addresses of brokers, or a root."""
    with ledgermq.sync.connect(target, tls=tls, token=token) as client:
        client.create_topic(name, partitions)
    return name
