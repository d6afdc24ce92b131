"""Where records go: Kafka's own vectors, and the sticky choice."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.client.messages.descriptions import check_partition
from ledgermq.client.settings.partitioner import (
    HASHED_TOGETHER_MIN,
    Keyless,
    KeylessPartition,
    murmur2,
    partition_of_key,
    partitions_of_keys,
)
from ledgermq.errors import InvalidConfig, UnknownPartition
from ledgermq.sources import Sources


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_kafka_s(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed % 2**32


@given(st.binary(max_size=100), st.integers(1, 1000))
def test_a_key_always_has_the_same_partition(key: bytes, partitions: int) -> None:
    assert partition_of_key(key, partitions) == (murmur2(key) & 0x7FFFFFFF) % partitions
    assert 0 <= partition_of_key(key, partitions) < partitions


@given(st.lists(st.none() | st.binary(max_size=40), min_size=1, max_size=12), st.integers(1, 20), st.integers(0, 5))
def test_many_keys_at_once_go_where_each_would_go(keys: list[bytes | None], partitions: int, skipped: int) -> None:
    column = pa.array(keys * (HASHED_TOGETHER_MIN // 6), pa.binary()).slice(skipped)  # fewer than it takes, and more
    expected = [None if key is None else partition_of_key(key, partitions) for key in column.to_pylist()]
    assert partitions_of_keys(column, partitions).to_pylist() == expected


def test_records_without_key_stay_together_until_the_batch_is_complete() -> None:
    sticky = KeylessPartition(Sources(random=random.Random(1)))
    first = sticky.get(8)
    assert {sticky.get(8) for _ in range(100)} == {first}
    sticky.leave((first + 1) % 8, 8)
    assert sticky.get(8) == first
    sticky.leave(first, 8)
    assert sticky.get(8) != first


def test_sticky_batches_spread_over_all_partitions() -> None:
    sticky = KeylessPartition(Sources(random=random.Random(1)))
    used = set()
    for _ in range(200):
        used.add(sticky.get(8))
        sticky.leave(sticky.get(8), 8)
    assert used == set(range(8))


def test_one_partition_is_left_for_itself() -> None:
    sticky = KeylessPartition(Sources(random=random.Random(1)))
    sticky.leave(sticky.get(1), 1)
    assert sticky.get(1) == 0


@pytest.mark.parametrize("partition", [-1, 3, 2**40])
def test_a_partition_that_is_not_there_is_refused(partition: int) -> None:
    with pytest.raises(UnknownPartition):
        check_partition(partition, 3, "t")


@pytest.mark.parametrize("partition", [1.0, "1", True])
def test_a_partition_that_is_no_number_is_refused(partition: object) -> None:
    with pytest.raises(InvalidConfig):
        check_partition(partition, 3, "t")


@pytest.mark.parametrize("rule", ["sticky", "round_robin", "random"])
def test_avoided_partitions_get_nothing_as_long_as_others_are_left(rule: Keyless) -> None:
    chosen = KeylessPartition(Sources(random=random.Random(1)), rule)
    used = set()
    for _ in range(200):
        used.add(chosen.get(6, {0, 2, 5}))
        chosen.leave(chosen.get(6, {0, 2, 5}), 6)
    assert used == {1, 3, 4}
    assert {chosen.get(1, {0}), chosen.get(1)} == {0}
    used = {chosen.get(3, {0, 1, 2}) for _ in range(100)}
    assert used <= {0, 1, 2}


def test_round_robin_goes_on_with_the_next_partition_that_is_not_avoided() -> None:
    turns = KeylessPartition(Sources(random=random.Random(1)), "round_robin")
    while turns.get(5) != 0:
        pass
    assert [turns.get(5, {2, 3}) for _ in range(6)] == [1, 4, 0, 1, 4, 0]
