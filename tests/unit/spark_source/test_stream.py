"""What each batch of a stream reads, without Spark: the driver's half says how far, tasks read, and
the checkpoint is JSON text.
"""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from ledgermq.errors import (
    FormatNotSupported,
    InvalidConfig,
    LedgerMQError,
    OffsetOutOfRange,
    UnknownPartition,
    UnknownTopic,
)
from tests.unit.spark_source.streamed import ADDED, Place, a_place, batches_until, rows, wait_for
from tests.worlds.source_root import ALL, DAY

place = pytest.fixture(a_place)


def test_batches_follow_one_another_over_compaction_and_a_restart(place: Place) -> None:
    query = place.query()
    assert query.batch() == ALL
    assert query.batch() == []
    place.produce((0, 3), (1, 1))
    assert query.batch() == [*rows("t", 0, 18, 21), *rows("t", 1, 6, 7)]
    place.compact()
    place.produce((0, 2))
    begin = query.at
    assert query.batch() == rows("t", 0, 21, 23)
    place.compact()
    query.restart()
    assert query.rows(begin or {}, query.at or {}) == rows("t", 0, 21, 23), "a batch that runs again"
    assert query.batch() == []


@pytest.mark.parametrize("options", [{"startingOffsets": "latest"}, {"startingTimestamp": "1970-01-01T00:00:06Z"}])
def test_a_first_batch_runs_again_where_it_began_although_that_was_the_end(
    place: Place, options: dict[str, str]
) -> None:
    query = place.query(**options)
    assert query.batch() == []
    assert query.at != query.begin, "Spark has to write down at once where the query began"
    end, place_of_begin = query.at or {}, query.begin
    place.produce((0, 4))
    query.restart()
    assert query.rows(query.reader.initialOffset(), end) == []
    assert query.reader.initialOffset() != place_of_begin
    assert query.batch() == rows("t", 0, 18, 22)


def test_where_a_query_begins(place: Place) -> None:
    assert place.query(startingOffsets='{"t": {"0": 15, "1": -1}}').batch() == rows("t", 0, 15, 18)
    assert place.query(startingTimestamp="1970-01-01T00:00:00.003Z", partitions="0").batch() == rows("t", 0, 9, 18)
    with pytest.raises(OffsetOutOfRange, match="offset 99 is asked for, the log reaches from 0 to 18"):
        place.query(startingOffsets='{"t": {"0": 99}}').batch()
    assert place.query(startingOffsets='{"t": {"0": 99, "1": 5}}', failOnDataLoss="false").batch() == rows("t", 1, 5, 6)
    with pytest.raises(UnknownPartition):
        place.query(startingOffsets='{"t": {"7": 0}}').batch()
    with pytest.raises(UnknownTopic):
        place.query(topic="none").batch()
    with pytest.raises(InvalidConfig, match="a stream has no end"):
        place.query(endingOffsets="latest")


def test_a_rate_limit_is_shared_by_what_waits_in_each_partition(place: Place) -> None:
    query = place.query(maxOffsetsPerTrigger="8")
    assert query.batch() == [*rows("t", 0, 0, 6), *rows("t", 1, 0, 2)]
    assert query.batch() == [*rows("t", 0, 6, 12), *rows("t", 1, 2, 4)]
    query.restart(maxOffsetsPerTrigger="1")
    assert len(query.batch()) == 1
    assert len(query.batch(ReadAllAvailable())) == 7, "Spark may ask for all"
    assert query.batch() == []


def test_available_now_ends_where_the_log_ended(place: Place) -> None:
    query = place.query(topicsPattern="t|new", maxOffsetsPerTrigger="10")
    query.reader.prepareForTriggerAvailableNow()
    place.produce((0, 5))
    place.create("new")
    place.produce((0, 5), topic="new")
    found = []
    while batch := query.batch():
        assert len(batch) <= 10
        found += batch
    assert sorted(found) == ALL
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    assert query.batch() == [*rows("new", 0, 0, 5), *rows("t", 0, 18, 23)]


def test_new_partitions_and_topics_are_read_from_their_begin(place: Place) -> None:
    query = place.query(topicsPattern="t|new.*", startingOffsets="latest")
    assert query.batch() == []
    place.add_partition()
    place.produce((2, 2))
    place.create("new-1", 2)
    place.produce((1, 3), topic="new-1")
    assert wait_for(query) == [*rows("new-1", 1, 0, 3), *rows("t", 2, 0, 2)]
    end, begin = query.at or {}, query.begin
    place.compact()
    query.restart()
    assert query.rows(begin, end) == [*rows("new-1", 1, 0, 3), *rows("t", 2, 0, 2)]


def test_topics_in_bundles_that_are_added_to_the_cluster_are_read(place: Place) -> None:
    """By a reader that is older than the bundle."""
    query = place.query(topicsPattern="t|new.*", startingOffsets="latest")
    assert query.batch() == []
    place.add_bundle()
    place.create("new", bundle=ADDED)
    place.produce((0, 3), topic="new")
    assert wait_for(query) == rows("new", 0, 0, 3)
    end, begin = query.at or {}, query.begin
    place.compact()
    query.restart()
    assert query.rows(begin, end) == rows("new", 0, 0, 3)


def test_only_the_partitions_of_the_query(place: Place) -> None:
    query = place.query(partitions="1")
    assert query.batch() == ALL[18:]
    place.add_partition()
    place.produce((0, 1), (1, 1))
    place.produce((2, 1))
    assert query.batch() == rows("t", 1, 6, 7)


@pytest.mark.parametrize("while_it_runs", [True, False])
def test_a_deleted_topic_ends_the_query_or_is_left_out(
    place: Place, while_it_runs: bool, caplog: pytest.LogCaptureFixture
) -> None:
    strict, lenient = place.query(), place.query(failOnDataLoss="false")
    assert strict.batch() == lenient.batch() == ALL
    place.delete()
    if not while_it_runs:
        strict.restart()
        lenient.restart()
    with pytest.raises(UnknownTopic, match=r"topic 't' \(id 1\) was deleted under a query that reads it"):
        batches_until(strict)
    with caplog.at_level(logging.WARNING, "ledgermq.spark"):
        assert batches_until(lenient, lambda: "was deleted" in caplog.text) == []
    place.create("t")
    place.produce((0, 2))
    assert wait_for(lenient) == rows("t", 0, 0, 2)


def test_a_topic_that_was_made_again_is_another_one(place: Place) -> None:
    strict, lenient = place.query(), place.query(failOnDataLoss="false")
    assert strict.batch() == lenient.batch() == ALL
    place.delete()
    place.create("t")
    place.produce((0, 20))
    with pytest.raises(UnknownTopic, match=r"was deleted and created again \(id \d+\) under a query that reads it"):
        batches_until(strict)
    assert wait_for(lenient) == rows("t", 0, 0, 20)


def test_records_that_are_deleted_before_they_are_read(place: Place) -> None:
    strict, lenient = (
        place.query(maxOffsetsPerTrigger="3", partitions="0", failOnDataLoss=fail) for fail in ("true", "false")
    )
    assert strict.batch() == lenient.batch() == rows("t", 0, 0, 3)
    begin, end = strict.begin, strict.at or {}
    tasks = strict.reader.partitions(begin, end)
    place.compact()
    place.delete_records(12)
    with pytest.raises(OffsetOutOfRange, match="deleted before the read"):
        list(strict._reader().read(tasks[0]))
    assert list(lenient._reader().read(tasks[0])) == []
    strict.restart()
    lenient.restart(maxOffsetsPerTrigger="100")
    with pytest.raises(
        OffsetOutOfRange, match="offset 3 is asked for, the log reaches from 12 to 18; failOnDataLoss=false"
    ):
        strict.batch()
    assert lenient.batch() == rows("t", 0, 12, 18)


NEW = [("t", 2), ("new", 0)]
"""A partition that comes later, and a topic."""


def add(place: Place, part: tuple[str, int], count: int) -> None:
    name, partition = part
    place.add_partition() if name == "t" else place.create(name)
    place.produce((partition, count), topic=name)
    place.compact()


@pytest.mark.parametrize("part", NEW, ids=str)
def test_what_is_new_begins_at_its_first_record_or_retention_took_some(place: Place, part: tuple[str, int]) -> None:
    name, partition = part
    strict, lenient = (place.query(topicsPattern="t|new", failOnDataLoss=fail) for fail in ("true", "false"))
    assert strict.batch() == lenient.batch() == ALL
    strict.reader.stop()
    lenient.reader.stop()
    add(place, part, 5)
    place.delete_records(3, name, partition)
    strict.restart()
    lenient.restart()
    with pytest.raises(
        OffsetOutOfRange, match=f"{name}/{partition}: offset 0 is asked for, the log reaches from 3 to 5"
    ):
        strict.batch()
    assert lenient.batch() == rows(name, partition, 3, 5)
    lenient.restart(failOnDataLoss="true")
    assert lenient.batch() == []


@pytest.mark.parametrize("part", NEW, ids=str)
def test_a_batch_with_what_was_new_gives_the_same_rows_again_or_none(place: Place, part: tuple[str, int]) -> None:
    name, partition = part
    query = place.query(topicsPattern="t|new", startingOffsets="latest")
    assert query.batch() == []
    add(place, part, 5)
    assert wait_for(query) == rows(name, partition, 0, 5)
    begin, end = query.begin, query.at or {}
    place.delete_records(3, name, partition)
    query.restart()
    with pytest.raises(OffsetOutOfRange, match="offset 0 is asked for, the log reaches from 3 to 5"):
        query.rows(begin, end)


def test_a_batch_asks_nothing_of_a_partition_that_came_after_it(place: Place) -> None:
    query = place.query()
    assert query.batch() == ALL
    place.produce((0, 2))
    assert wait_for(query) == rows("t", 0, 18, 20)
    begin, end = query.begin, query.at or {}
    add(place, ("t", 2), 5)
    place.delete_records(3, "t", 2)
    query.restart()
    assert query.rows(begin, end) == rows("t", 0, 18, 20)
    with pytest.raises(OffsetOutOfRange):
        query.batch()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"version": 2}, FormatNotSupported),
        ({"version": "1"}, InvalidConfig),
        ({"cluster": "another"}, InvalidConfig),
        ({"topics": None}, InvalidConfig),
        ({"topics": {"t": 5}}, InvalidConfig),
        ({"topics": {"t": {"id": 1, "offsets": {"x": 5}}}}, InvalidConfig),
        ({"topics": {"t": {"id": 1, "offsets": {"0": -5}}}}, InvalidConfig),
        ({"topics": {"t": {"id": 1, "offsets": {"0": 19}}}}, OffsetOutOfRange),
        ({"from": [1]}, InvalidConfig),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(
    place: Place, change: dict[str, Any], expected: type[LedgerMQError]
) -> None:
    query = place.query()
    query.batch()
    query.restart()
    with pytest.raises(expected):
        query.reader.latestOffset({**(query.at or {}), **change}, ReadAllAvailable())
    with pytest.raises(expected):
        query.reader.partitions(query.begin, {**(query.at or {}), **change})


def test_equal_positions_are_equal_texts(place: Place) -> None:
    query = place.query(topics=f"{DAY},t")
    query.batch()
    other = place.query(topics=f"t,{DAY}")
    other.batch()
    assert json.dumps(query.at) == json.dumps(other.at)
