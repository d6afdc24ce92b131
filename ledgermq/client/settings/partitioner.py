"""Choose the partition of a record.

With a key: Kafka's hash, 32-bit murmur2 (Austin Appleby's MurmurHash2 with Kafka's seed), so that
producers of both systems agree. Without a key, by `KeylessPartition`: "sticky", one partition until
its batch is full or sent, then another, drawn at random: large batches and an even spread
(KIP-480); "round_robin", each in turn, from a random one on; "random", any.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Literal

from ledgermq.sources import Sources

Keyless = Literal["sticky", "round_robin", "random"]
"""Where records without a key go."""

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


class KeylessPartition:
    """The current partition for records of one topic without a key."""

    def __init__(self, sources: Sources, rule: Keyless = "sticky") -> None:
        self._random = sources.random
        self._rule = rule
        self._present: int | None = None

    def get(self, partitions: int, avoided: AbstractSet[int] = frozenset()) -> int:
        """Return the partition of the next record: none of `avoided`, unless they are all."""
        if self._rule == "random" or self._present is None or self._present >= partitions:
            self._present = self._random.randrange(partitions)
        elif self._rule == "round_robin":
            self._present = (self._present + 1) % partitions
        if self._present in avoided:
            self._present = self._other(partitions, avoided, self._present)
        return self._present

    def _other(self, partitions: int, avoided: AbstractSet[int], present: int) -> int:
        others = [number % partitions for number in range(present, present + partitions)]
        others = [number for number in others if number not in avoided] or [present]
        return others[0] if self._rule == "round_robin" else self._random.choice(others)

    def leave(self, partition: int, partitions: int) -> None:
        """Sticky: choose another partition if the complete batch was of the current one."""
        if self._rule == "sticky" and partition == self._present and partitions > 1:
            self._present = (partition + self._random.randrange(1, partitions)) % partitions
