"""Remember where the keys of a program go, so that a key that comes again is not hashed again."""

from __future__ import annotations

from typing import Any

from ledgermq.client.messages.record import as_bytes
from ledgermq.client.producing.partition.partition_queue import PartitionQueue
from ledgermq.client.settings.partitioner import partition_of_key

KEYS_MAX = 16_384
KEY_CHARS_MAX = 64
"""Longer keys are hashed each time."""

Key = str | bytes


class PlacesOfKeys(dict[Key, tuple[bytes, PartitionQueue]]):
    """The bytes and the queue of each key, as the program gives it: text or bytes. `queues`: those of all partitions of
    a topic without levels, a list that grows with the topic; `renew` follows.
    """

    __slots__ = ("count", "queues")

    def __init__(self, queues: list[PartitionQueue]) -> None:
        super().__init__()
        self.queues = queues
        self.count = len(queues)
        """Number of partitions for which places are remembered."""

    def __missing__(self, key: Key) -> tuple[bytes, PartitionQueue]:
        """Return the place of a key that is not remembered. Raises InvalidRecord."""
        found: Any = as_bytes("key", key)
        place = found, self.queues[partition_of_key(found, len(self.queues))]
        if len(key) <= KEY_CHARS_MAX:
            if len(self) >= KEYS_MAX:
                self.clear()
            self[key] = place
        return place

    def renew(self) -> None:
        """Forget the places: the topic has other partitions now."""
        self.clear()
        self.count = len(self.queues)
