"""Create topics of a benchmark."""

from __future__ import annotations

import ledgermq.sync


def create(target: str, name: str, partitions: int) -> str:
    """Return the name, once the topic exists. `target`: addresses of brokers, or a root."""
    with ledgermq.sync.connect(target) as client:
        client.create_topic(name, partitions)
    return name
