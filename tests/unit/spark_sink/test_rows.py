"""Rows find the partitions that the SDK would give them, whole columns at a time; what cannot be
stored is named by its row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from random import Random
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.client.connection.routing import TopicRoute
from ledgermq.client.settings.partitioner import partition_of_key
from ledgermq.errors import InvalidRecord, MessageTooLarge, PublishNotAccepted, UnknownPartition, UnknownTopic
from ledgermq.sources import Sources
from ledgermq_spark.sink.rows.collecting import PART_BYTES, Collector
from ledgermq_spark.sink.rows.rows import Routed, RowRouter
from tests.virtual_time import virtual_sources

T = TypeVar("T")


class Topics:
    """`grown`: partitions of a topic once brokers are asked again."""

    def __init__(self, grown: int = 0, settings: Mapping[str, str] | None = None, **partitions: int) -> None:
        self.settings = {"max.message.bytes": "1000", **(settings or {})}
        self.partitions = partitions
        self.grown = grown
        self.asked_again = 0

    async def find(self, name: str, again: bool) -> TopicRoute:
        self.asked_again += again
        if name not in self.partitions:
            raise UnknownTopic(f"topic {name!r} does not exist")
        count = self.grown if again and self.grown else self.partitions[name]
        return TopicRoute(name, sorted(self.partitions).index(name) + 1, count, self.settings, 0.0)


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def route(topics: Topics, topic: str, *batches: pa.RecordBatch) -> list[Routed]:
    async def work() -> list[Routed]:
        router = RowRouter(topic, topics.find, virtual_sources(1))
        return [routed for batch in batches for routed in await router.route(batch)]

    return run(work())


ROW = st.tuples(
    st.sampled_from(("a", "b")), st.none() | st.sampled_from([b"x", b"yy", b""]), st.none() | st.integers(0, 1)
)


@given(st.lists(ROW, min_size=1, max_size=40))
def test_each_row_comes_out_once_in_order_where_it_belongs(rows: list[tuple[str, bytes | None, int | None]]) -> None:
    names, keys, partitions = (list(column) for column in zip(*rows, strict=True))
    batch = pa.record_batch(
        {
            "topic": pa.array(names),
            "partition": pa.array(partitions, pa.int32()),
            "key": pa.array(keys, pa.binary()),
            "value": pa.array([str(i) for i in range(len(rows))]),
            "offset": pa.array(range(len(rows))),
        }
    )
    routed = route(Topics(a=2, b=3), "", batch)
    seen = []
    for part in routed:
        numbers = [int(value) for value in part.rows.column("value").to_pylist()]
        assert numbers == sorted(numbers)
        seen += numbers
        for number in numbers:
            name, key, partition = rows[number]
            assert part.topic.name == name
            if partition is not None:
                assert part.partition == partition
            elif key is not None:
                assert part.partition == partition_of_key(key, part.topic.partitions)
    assert sorted(seen) == list(range(len(rows)))
    assert len({(part.topic.name, part.partition) for part in routed}) == len(routed)


def test_errors_name_the_row_of_the_task_and_bounds() -> None:
    good = pa.record_batch({"value": pa.array(["x"] * 5)})
    big = pa.record_batch({"value": pa.array(["x", "y" * 5000, "z"]), "key": pa.array(["k"] * 3)})
    with pytest.raises(
        MessageTooLarge,
        match=r"row 6 of this task has 5001 bytes \(columns key 1, value 5000.* topic t takes up to 1000",
    ):
        route(Topics(t=1), "t", good, big)
    beyond = pa.record_batch({"value": pa.array(["x", "y"]), "partition": pa.array([None, 4], pa.int32())})
    with pytest.raises(
        UnknownPartition, match="row 6 of this task: column partition is 4; topic t has the partitions 0 to 2"
    ):
        route(Topics(t=3), "t", good, beyond)
    with pytest.raises(UnknownPartition, match="column partition is -1;"):
        route(Topics(t=3), "t", pa.record_batch({"value": pa.array(["x"]), "partition": pa.array([-1])}))
    nowhere = pa.record_batch({"value": pa.array(["x", "y"]), "topic": pa.array(["t", "s"])})
    with pytest.raises(UnknownTopic, match="row 1 of this task, column topic: topic 's' does not exist"):
        route(Topics(t=3), "", nowhere)
    with pytest.raises(UnknownTopic, match="the option topic: topic 'u' does not exist"):
        route(Topics(t=3), "u", nowhere)
    unsaid = pa.record_batch({"value": pa.array(["x", "y"]), "topic": pa.array(["t", None])})
    with pytest.raises(InvalidRecord, match="row 1 of this task: column topic is null"):
        route(Topics(t=3), "", unsaid)
    assert len(route(Topics(t=3), "t", unsaid)) == 1, "the option goes before the column"


def test_what_a_topic_does_not_take_is_refused_before_anything_is_decided() -> None:
    rows = pa.record_batch({"value": pa.array(["x"] * 3), "key": pa.array(["a", None, None])})
    with pytest.raises(InvalidRecord, match="row 1 of this task: column key is null; topic t is keyed"):
        route(Topics(settings={"cleanup.policy": "compact,delete"}, t=3), "t", rows)
    with pytest.raises(PublishNotAccepted, match="the option topic: topic 't' takes no records"):
        route(Topics(settings={"accept.publish": "false"}, t=3), "t", rows)
    with pytest.raises(PublishNotAccepted, match="topic '__metadata' takes no records"):
        route(Topics(__metadata=1), "__metadata", rows)


def test_a_partition_that_was_added_meanwhile_is_asked_for() -> None:
    topics = Topics(grown=8, t=2)
    [routed] = route(topics, "t", pa.record_batch({"value": pa.array(["x"]), "partition": pa.array([7])}))
    assert (routed.partition, topics.asked_again) == (7, 1)


def batch_of(counts: Mapping[str, int], size: int = 500) -> pa.RecordBatch:
    """`counts`: rows of each topic, one after the other."""
    names = [name for name, count in counts.items() for _ in range(count)]
    return pa.record_batch({"topic": pa.array(names), "value": pa.array([b"x" * size] * len(names))})


@pytest.mark.parametrize("rare_first", [True, False])
def test_a_row_of_a_rare_topic_holds_no_more_than_itself(rare_first: bool) -> None:
    counts = {"b": 1, "a": 1000} if rare_first else {"a": 1000, "b": 1}
    routed = {part.topic.name: part.rows for part in route(Topics(a=1, b=1), "", batch_of(counts))}
    assert routed["b"].num_rows == 1
    assert routed["b"].get_total_buffer_size() < 1000
    assert routed["a"].num_rows == 1000


def test_small_rows_amid_large_ones_hold_no_more_than_themselves() -> None:
    values = [b"x"] * 600 + [b"x" * 900] * 400
    rows = pa.record_batch({"topic": pa.array(["b"] * 600 + ["a"] * 400), "value": pa.array(values)})
    parts = list(route(Topics(a=1, b=1), "", rows))
    assert sum(part.rows.num_rows for part in parts) == 1000
    for part in parts:
        assert part.rows.get_total_buffer_size() <= 2 * part.rows.nbytes + 1000


def test_what_a_collector_keeps_holds_little_more_than_it_counts() -> None:
    """Each time nearly all of a batch goes on at once, and one row, or the last piece of one
    partition, stays.
    """
    collector, topics = Collector(100_000, 10_000_000), Topics(a=50, b=1)
    before = pa.total_allocated_bytes()
    kept = 0
    for part in route(topics, "", *[batch_of({"a": 1000, "b": 1}) for _ in range(50)]):
        kept += part.rows.nbytes - sum(out.rows.nbytes for out in collector.add(part))
    del part
    assert kept < 5_000_000
    assert pa.total_allocated_bytes() - before < 2 * kept + 100_000


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 300), st.integers(1, 9)), max_size=40))
def test_a_collector_is_bounded_and_keeps_order(adds: list[tuple[int, int, int]]) -> None:
    route_ = TopicRoute("t", 1, 4, {}, 0.0)
    bound = 9 * PART_BYTES
    collector = Collector(500, bound)
    given_rows: dict[int, list[str]] = {}
    got: dict[int, list[str]] = {}
    held = 0
    for at, (partition, size, count) in enumerate(adds):
        values = [f"{at}.{i}".ljust(size, "-") for i in range(count)]
        given_rows.setdefault(partition, []).extend(values)
        rows = pa.RecordBatch.from_arrays([pa.array(values)], names=["value"])
        held += rows.nbytes
        for out in collector.add(Routed(route_, partition, rows)):
            assert out.rows.nbytes <= 550 or out.rows.num_rows == 1
            held -= out.rows.nbytes
            got.setdefault(out.partition, []).extend(out.rows.column("value").to_pylist())
        assert held <= collector.held_bytes + 100 * len(adds)
        assert collector.held_bytes <= bound
    for out in collector.rest():
        got.setdefault(out.partition, []).extend(out.rows.column("value").to_pylist())
    assert got == given_rows


def one_row_each(topics: Topics, partitions: int, batches: int) -> list[Routed]:
    """A row for each partition, again and again, in their order."""
    rows = pa.record_batch({"value": pa.array([b"x"] * partitions), "partition": pa.array(range(partitions))})
    return route(topics, "t", *[rows] * batches)


def test_a_part_is_counted_with_what_it_takes_besides_its_rows() -> None:
    """Each partition has one row: joining frees nothing, so that there are never more parts than
    there is room for.
    """
    collector = Collector(1_000_000, 100 * PART_BYTES)
    waiting: set[int] = set()
    for part in one_row_each(Topics(t=1000), 1000, 1):
        waiting.add(part.partition)
        for out in collector.add(part):
            waiting.remove(out.partition)
        assert len(waiting) * PART_BYTES <= collector.held_bytes <= 100 * PART_BYTES
    assert len(waiting) > 70
    assert {out.partition for out in collector.rest()} == waiting
    assert collector.held_bytes == 0


def test_small_parts_are_joined_before_any_partition_goes() -> None:
    """Twenty partitions find room for a hundred parts, and a thousand rows of few bytes."""
    collector = Collector(1_000_000, 100 * PART_BYTES)
    for part in one_row_each(Topics(t=20), 20, 50):
        assert not list(collector.add(part))
        assert collector.held_bytes <= 100 * PART_BYTES
    assert [out.rows.num_rows for out in collector.rest()] == [50] * 20
    assert collector.held_bytes == 0


def test_a_batch_for_many_partitions_is_cut_one_part_at_a_time() -> None:
    async def work() -> None:
        router = RowRouter("t", Topics(t=1000).find, virtual_sources(1))
        rows = pa.record_batch({"value": pa.array([b"x"] * 1000), "partition": pa.array(range(1000))})
        before = pa.total_allocated_bytes()
        parts = await router.route(rows)
        most = max(pa.total_allocated_bytes() - before for _ in parts)
        assert most < 200_000, "the rows, and a part or two: a thousand parts are a million bytes"

    run(work())


def test_a_row_of_the_future_is_refused_before_anything_is_decided() -> None:
    times = pa.array([0, 3_600_000_001], pa.timestamp("us", "UTC"))
    batch = pa.record_batch({"value": pa.array(["now", "future"]), "timestamp": times})

    async def work(**settings: str) -> int:
        router = RowRouter("t", Topics(settings=settings, t=1).find, Sources(lambda: 0, Random(1)))
        return sum(routed.rows.num_rows for routed in await router.route(batch))

    with pytest.raises(InvalidRecord, match=r"row 1 of this task: column timestamp is 3600 s ahead.*after\.max\.ms"):
        run(work())
    assert run(work(**{"message.timestamp.after.max.ms": "-1"})) == 2
    assert run(work(**{"message.timestamp.after.max.ms": "3600001"})) == 2
    assert run(work(**{"message.timestamp.type": "LogAppendTime"})) == 2
