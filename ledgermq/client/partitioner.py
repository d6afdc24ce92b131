"""Choose the partition of a record.

With a key: Kafka's hash, 32-bit murmur2 (Austin Appleby's MurmurHash2 with Kafka's seed), so that
producers of both systems agree. Without a key: one partition until its batch is full or sent, then
another, drawn at random: large batches and an even spread (KIP-480).
"""

from __future__ import annotations

from functools import lru_cache

from ledgermq.sources import Sources

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Return the unsigned 32-bit hash."""
    length = len(data)
    h = _SEED ^ length
    whole = length & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        h = h * _M & _MASK ^ k
    if length & 3:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


_murmur2_cached = lru_cache(maxsize=16_384)(murmur2)
_CACHED_KEY_BYTES_MAX = 64


def partition_of_key(key: bytes, partitions: int) -> int:
    """Return the partition of a key, as Kafka's default does: the hash without its sign bit,
    modulo the number of partitions.
    """
    hashed = _murmur2_cached(key) if len(key) <= _CACHED_KEY_BYTES_MAX else murmur2(key)
    return (hashed & 0x7FFFFFFF) % partitions


class StickyPartition:
    """The current partition for records of one topic without a key."""

    def __init__(self, sources: Sources) -> None:
        self._random = sources.random
        self._present: int | None = None

    def get(self, partitions: int) -> int:
        if self._present is None or self._present >= partitions:
            self._present = self._random.randrange(partitions)
        return self._present

    def leave(self, partition: int, partitions: int) -> None:
        """Choose another partition if the complete batch was of the current one."""
        if partition == self._present and partitions > 1:
            self._present = (partition + self._random.randrange(1, partitions)) % partitions
