"""Choose the partition of a record.

With a key: Kafka's hash, 32-bit murmur2 (Austin Appleby's MurmurHash2 with Kafka's seed), so that
producers of both systems agree. Without a key, by `KeylessPartition`: "sticky", one partition until
its batch is full or sent, then another, drawn at random: large batches and an even spread
(KIP-480); "round_robin", each in turn, from a random one on; "random", any. All of them keep to `Preferred`
partitions, where there are some.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from ledgermq.sources import Sources

Keyless = Literal["sticky", "round_robin", "random"]
"""Where records without a key go."""

HASHED_TOGETHER_MIN = 100
"""Fewer keys of one length are hashed one by one, which is faster then."""

PREFERRED_LOOKS = 4
"""Preferred partitions that are looked at before another one is taken. Each costs a choice, not a record."""

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
    return (_hash_of(key) & 0x7FFFFFFF) % partitions


def _hash_of(key: bytes) -> int:
    return _murmur2_cached(key) if len(key) <= _CACHED_KEY_BYTES_MAX else murmur2(key)


def partitions_of_keys(keys: pa.Array, partitions: int) -> pa.Array:
    """Return the partition of each key of a binary column (int32), as `partition_of_key` does; null for a null.

    Many keys of one length are hashed together, a word of all of them at a time.
    """
    lengths = pc.binary_length(keys)
    rows, found = [], []
    for length in pc.unique(lengths.drop_null()).to_pylist():
        alike = pc.indices_nonzero(pc.equal(lengths, length))
        rows.append(alike)
        same = keys.take(alike)
        if len(same) >= HASHED_TOGETHER_MIN:
            found.append(_murmur2_alike(same, length))
        else:
            found.append(pa.array([_hash_of(key) for key in same.to_pylist()], pa.uint32()))
    if not rows:
        return pa.nulls(len(keys), pa.int32())
    hashed = pc.bit_wise_and(pa.concat_arrays(found), _word(0x7FFFFFFF)).cast(pa.int64())
    chosen = pc.subtract(hashed, pc.multiply(pc.divide(hashed, partitions), partitions)).cast(pa.int32())
    nulls = pc.indices_nonzero(keys.is_null())
    in_order = pc.sort_indices(pa.concat_arrays([*rows, nulls]))
    return pa.concat_arrays([chosen, pa.nulls(len(nulls), pa.int32())]).take(in_order)


def _murmur2_alike(keys: pa.Array, length: int) -> pa.Array:
    """Return the hashes (uint32) of keys that all have this length. Arithmetic of uint32 wraps."""
    h = pa.repeat(_word((_SEED ^ length) & _MASK), len(keys))
    m, words, whole = _word(_M), _words(keys, length), length // 4
    for word in words[:whole]:
        k = pc.multiply(word, m)
        k = pc.multiply(pc.bit_wise_xor(k, pc.shift_right(k, _word(24))), m)
        h = pc.bit_wise_xor(pc.multiply(h, m), k)
    for rest in words[whole:]:
        h = pc.multiply(pc.bit_wise_xor(h, rest), m)
    h = pc.multiply(pc.bit_wise_xor(h, pc.shift_right(h, _word(13))), m)
    return pc.bit_wise_xor(h, pc.shift_right(h, _word(15)))


def _words(keys: pa.Array, length: int) -> list[pa.Array]:
    """Return the words of keys of one length, column by column; the last one may be filled up with zeros."""
    if not length:
        return []
    if missing := -length % 4:
        keys = pc.binary_join_element_wise(keys, pa.scalar(bytes(missing)), pa.scalar(b""))
    width = -(-length // 4)
    words = pa.Array.from_buffers(pa.uint32(), len(keys) * width, [None, keys.buffers()[2]])
    rows = pa.FixedSizeListArray.from_arrays(words, width)
    return [pc.list_element(rows, at) for at in range(width)]


def _word(value: int) -> pa.Scalar:
    return pa.scalar(value, pa.uint32())


@dataclass(frozen=True, slots=True)
class Preferred:
    """Partitions that records without a key go to, as long as one of them is not full. `places`: not empty,
    ascending. `is_full(partition)`: so much waits there that another one is better.
    """

    places: Sequence[int]
    is_full: Callable[[int], bool]


class KeylessPartition:
    """The current partition for records of one topic without a key."""

    def __init__(self, sources: Sources, rule: Keyless = "sticky") -> None:
        self._random = sources.random
        self._rule = rule
        self._present: int | None = None

    def get(self, partitions: int, avoided: AbstractSet[int] = frozenset(), preferred: Preferred | None = None) -> int:
        """Return the partition of the next record: none of `avoided`, unless they are all."""
        last, is_new = self._present, self._rule != "sticky"
        if self._rule == "random" or self._present is None or self._present >= partitions:
            self._present, is_new = self._random.randrange(partitions), True
        elif self._rule == "round_robin":
            self._present = (self._present + 1) % partitions
        if preferred is not None and (is_new or self._present in avoided):
            self._present = self._prefer(preferred, self._present, last if self._rule == "sticky" else None)
        if self._present in avoided:
            self._present = self._other(partitions, avoided, self._present)
        return self._present

    def _prefer(self, preferred: Preferred, any_other: int, last: int | None) -> int:
        """Return a preferred partition: the first one that is not full, from the one in turn or a random one on, and
        `last` only behind the others; `any_other` if those looked at are full and it is not.
        """
        places = preferred.places
        in_turn = self._rule == "round_robin"
        first = bisect_left(places, any_other) if in_turn else self._random.randrange(len(places))
        looked_at = [places[(first + step) % len(places)] for step in range(min(PREFERRED_LOOKS, len(places)))]
        looked_at.sort(key=lambda place: place == last)  # a stable sort
        room = (place for place in (*looked_at, any_other) if not preferred.is_full(place))
        return next(room, looked_at[0])

    def _other(self, partitions: int, avoided: AbstractSet[int], present: int) -> int:
        others = [number % partitions for number in range(present, present + partitions)]
        others = [number for number in others if number not in avoided] or [present]
        return others[0] if self._rule == "round_robin" else self._random.choice(others)

    def leave(self, partition: int, partitions: int, preferred: Preferred | None = None) -> None:
        """Sticky: choose another partition if the complete batch was of the current one."""
        if self._rule == "sticky" and partition == self._present and partitions > 1:
            self._present = (partition + self._random.randrange(1, partitions)) % partitions
            if preferred is not None:
                self._present = self._prefer(preferred, self._present, partition)
