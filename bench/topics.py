"""Topics of a benchmark."""

from __future__ import annotations

import ledgermq.sync


def create(target: str, name: str, partitions: int) -> str:
    """The name, once the topic is there. `target`: addresses of brokers, or a root."""
    with ledgermq.sync.connect(target) as client:
        client.create_topic(name, partitions)
    return name
