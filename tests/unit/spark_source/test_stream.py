"""What each batch of a stream reads, without Spark: the driver's half says how far, tasks read, and
the checkpoint is JSON text.
"""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from ledgermq.errors import (
    DeadlineExceeded,
    FormatNotSupported,
    InvalidConfig,
    LedgerMQError,
    OffsetOutOfRange,
    UnknownPartition,
    UnknownTopic,
)
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.garbage.retention import log_start_move
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.object_store.file import FileStore
from ledgermq_ledger.topics.catalog import METADATA, Topic, encode_topic_record, topic_key
from ledgermq_ledger.view import follow
from ledgermq_spark.source import driver, followed
from ledgermq_spark.source.followed import FollowedTopics
from ledgermq_spark.source.stream import StreamReader
from tests.worlds.ledgers import ledger_of
from tests.worlds.roots import Root
from tests.worlds.source_readers import stream_reader
from tests.worlds.source_root import ALL, DAY, compact, fill

Row = tuple[str, int, int]
ADDED = 5
"""The bundle that is added to a cluster with five."""


class Query:
    """Asks a reader as Spark does: positions go through JSON, tasks through pickle, to a reader of
    their own.
    """

    def __init__(self, folder: Path, **options: str) -> None:
        named = {} if {"topics", "topicsPattern"} & options.keys() else {"topic": "t"}
        self.options = {"root": str(folder), **named, **options}
        self.reader = self._reader()
        self.at: dict[str, Any] | None = None

    def _reader(self) -> StreamReader:
        return stream_reader(self.options)

    def batch(self, limit: ReadLimit | None = None) -> list[Row]:
        """The next one; nothing: there is nothing new."""
        self.begin = json.loads(json.dumps(self.reader.initialOffset())) if self.at is None else self.at
        self.at = json.loads(
            json.dumps(self.reader.latestOffset(self.begin, limit or self.reader.getDefaultReadLimit()))
        )
        return [] if self.at == self.begin else self.rows(self.begin, self.at)

    def rows(self, begin: dict[str, Any], end: dict[str, Any]) -> list[Row]:
        found = []
        for task in self.reader.partitions(begin, end):
            for batch in self._reader().read(pickle.loads(pickle.dumps(task))):
                found += [(row["topic"], row["partition"], row["offset"]) for row in batch.to_pylist()]
        return sorted(found)

    def restart(self, **options: str) -> None:
        """The process is gone; what it had said is in the checkpoint."""
        self.reader.stop()
        self.options |= options
        self.reader = self._reader()


class Place:
    """A root, in a folder, and the queries that read it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.queries: list[Query] = []

    def query(self, **options: str) -> Query:
        self.queries.append(Query(self.folder, **options))
        return self.queries[-1]

    def produce(self, *batches: tuple[int, int], topic: str = "t") -> None:
        """(partition, number of records)"""

        async def work(root: Root) -> None:
            await root.produce(topic, *((partition, [b"v"] * count) for partition, count in batches))

        self._run(work)

    def create(self, name: str, partitions: int = 1, bundle: int = 2) -> None:
        async def work(root: Root) -> None:
            await root.create_topic(name, partitions, bundle)

        self._run(work)

    def add_bundle(self) -> None:
        self._run(lambda root: root.add_bundles(ADDED + 1))

    def add_partition(self) -> None:
        async def work(root: Root) -> None:
            topic = root.topics["t"]
            grown = Topic(topic.id, "t", (*topic.bundles, 2), topic.raw_settings, topic.settings)
            await root.put_internal(METADATA, topic_key("t"), encode_topic_record(grown))

        self._run(work)

    def delete(self) -> None:
        """Topic t, so that its name is free at once."""

        async def work(root: Root) -> None:
            await root.remove_topic("t")
            await root.put_internal(METADATA, topic_key("t"), None)

        self._run(work)

    def delete_records(self, before: int, name: str = "t", partition: int = 0) -> None:
        """As retention does: first the log start moves, then files go that lie below it."""

        async def work(root: Root) -> None:
            topic = root.topics[name]
            key, bundle = PartitionId(topic.id, partition), topic.bundles[partition]
            assert await advance_checkpoint(
                ledger_of(root.store, bundle, sources=root.sources), log_start_move({key: before})
            )
            assert await advance_checkpoint(
                ledger_of(root.store, bundle, sources=root.sources), partial(_forget, key=key, before=before)
            )
            for file in [info.key async for info in root.store.list(keys.PARQUET)]:
                parsed = keys.parse_parquet(file)
                if parsed and (parsed.topic_id, parsed.partition) == key and parsed.last_offset < before:
                    await root.store.delete([file])

        self._run(work)

    def compact(self) -> None:
        asyncio.run(compact(self.folder))

    def move(self, bundle: int, partition: int = 0) -> None:
        """A partition of topic t."""
        self._run(lambda root: root.move("t", partition, bundle))

    def begin_move(self, bundle: int, partition: int = 0) -> None:
        """The partition is open in the other bundle, and its files are where they were."""

        async def work(root: Root) -> None:
            await root.decide_move("t", partition, bundle)
            await root.seal("t", partition)
            await root.open_moved("t", partition)

        self._run(work)

    def end_move(self, partition: int = 0) -> None:
        async def work(root: Root) -> None:
            await root.hand_over("t", partition)
            await root.end_move("t", partition)

        self._run(work)

    def _run(self, work: Any) -> None:
        async def run() -> None:
            async with FileStore(self.folder, Sources()) as store:
                root = await Root.open(store, Sources())
                root.topics = dict((await root.catalog()).topics_by_name)
                await work(root)

        asyncio.run(run())


def _forget(draft: fmt.Checkpoint, key: tuple[int, int], before: int) -> bool:
    for part in draft.partitions:
        part.parquet_start = max(part.parquet_start, before if (part.topic_id, part.partition) == key else 0)
    return True


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    asyncio.run(fill(tmp_path / "root"))
    place = Place(tmp_path / "root")
    yield place
    for query in place.queries:
        query.reader.stop()


def rows(topic: str, partition: int, first: int, end: int) -> list[Row]:
    return [(topic, partition, offset) for offset in range(first, end)]


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


def wait_for(query: Query) -> list[Row]:
    """Until something comes; the catalog is looked at every second."""
    for _ in range(100):
        if found := query.batch():
            return found
    raise AssertionError("nothing came")


def batches_until(query: Query, is_done: Callable[[], bool] = lambda: False) -> list[Row]:
    found: list[Row] = []
    for _ in range(100):
        found += query.batch()
        if is_done():
            break
    return found


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


# Partitions that move to another bundle


@pytest.fixture
def moving(place: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A place whose ledgers are looked at often, and the catalog each time."""
    monkeypatch.setattr(followed, "CATALOG_POLL_S", 0.0)
    monkeypatch.setattr(follow, "LOOK_AFTER_S", 0.001)
    monkeypatch.setattr(follow, "LOOK_AFTER_S_MAX", 0.001)
    for pause in ("POLL_S", "POLL_IDLE_S", "PAUSE_S"):
        monkeypatch.setattr(followed, pause, 0.001)
    return place


@pytest.mark.parametrize("restarts", [False, True])
def test_a_stream_goes_on_in_the_middle_of_what_has_moved(moving: Place, restarts: bool) -> None:
    query = moving.query(maxOffsetsPerTrigger="8")
    found = query.batch()
    assert len(found) == 8
    for bundle in (2, 1, 2):
        if restarts:
            query.restart()
        moving.move(bundle)
        moving.produce((0, 2))
        moving.produce((1, 1))
        found += wait_for(query)
    found += batches_until(query)
    assert sorted(found) == rows("t", 0, 0, 24) + rows("t", 1, 0, 9)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_stream_goes_on_with_the_other_partitions_while_one_moves(moving: Place, restarts: bool) -> None:
    query = moving.query(maxOffsetsPerTrigger="4")
    assert sorted(batches_until(query, lambda: query.at == query.begin)) == ALL
    moving.produce((0, 1))
    moving.begin_move(2)
    moving.produce((0, 9))
    moving.produce((1, 3))
    at = query.at
    assert wait_for(query) == rows("t", 1, 6, 9)
    begin, end = query.begin, query.at or {}
    assert begin == at
    if restarts:
        query.restart()
        assert query.rows(begin, end) == rows("t", 1, 6, 9), "a batch that runs again"
    assert batches_until(query) == []
    assert query.at == end
    moving.produce((1, 9))
    assert wait_for(query) == rows("t", 1, 9, 13), "the whole limit is for what is here"
    moving.end_move()
    moving.produce((0, 1))
    found = batches_until(query, lambda: query.at is not None and query.at["topics"]["t"]["offsets"]["0"] == 29)
    assert sorted(found) == rows("t", 0, 18, 29) + rows("t", 1, 13, 18)


def test_a_partition_that_moves_before_the_query_knew_it_is_read_from_its_begin(moving: Place) -> None:
    query = moving.query(topicsPattern="t|new", startingOffsets="latest")
    assert query.batch() == []
    moving.add_partition()
    moving.produce((2, 3))
    moving.begin_move(1, partition=2)
    moving.produce((0, 1))
    assert wait_for(query) == rows("t", 0, 18, 19)
    moving.end_move(2)
    assert wait_for(query) == rows("t", 2, 0, 3)


def test_a_batch_with_records_of_a_partition_that_moves_waits_when_it_runs_again(moving: Place) -> None:
    query = moving.query()
    assert query.batch() == ALL
    begin, end = query.begin, query.at or {}
    moving.begin_move(2)
    query.restart()
    with ending(moving):
        assert query.rows(begin, end) == ALL
    assert query.batch() == []


@pytest.mark.parametrize("fails", ["true", "false"])
def test_records_of_a_moved_partition_that_are_deleted_before_they_are_read(moving: Place, fails: str) -> None:
    """By the new bundle, after a move during which they could not be read."""
    query = moving.query(failOnDataLoss=fails)
    assert query.batch() == ALL
    moving.produce((0, 4))
    moving.begin_move(2)
    moving.produce((1, 1))
    assert wait_for(query) == rows("t", 1, 6, 7)
    moving.end_move()
    moving.compact()
    moving.delete_records(20)
    if fails == "true":
        with pytest.raises(OffsetOutOfRange, match="offset 18 is asked for, the log reaches from 20 to 22"):
            wait_for(query)
    else:
        assert wait_for(query) == rows("t", 0, 20, 22)


@contextmanager
def ending(place: Place) -> Iterator[None]:
    """The move ends while this is going on, or before."""
    thread = threading.Timer(0.1, place.end_move)
    thread.start()
    try:
        yield
    finally:
        thread.join()


@pytest.mark.parametrize("begun", [False, True])
def test_available_now_waits_for_the_end_of_a_move(moving: Place, begun: bool) -> None:
    """The query would take a stream that stands still for its end."""
    query = moving.query(maxOffsetsPerTrigger="8")
    if not begun:
        query.reader.prepareForTriggerAvailableNow()
    moving.begin_move(2)
    moving.produce((0, 1))
    with ending(moving):
        if begun:
            query.reader.prepareForTriggerAvailableNow()
        found = []
        while part := query.batch():
            found += part
    assert sorted(found) == sorted(ALL + rows("t", 0, 18, 18 + begun))


@pytest.mark.parametrize("batches_max", [1, 1000])
def test_a_batch_is_planned_again_where_its_partition_has_moved(
    moving: Place, batches_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its end and its tasks. Without room in the index, the old ledger is read again for them."""
    monkeypatch.setattr(driver, "FollowedTopics", partial(FollowedTopics, index_batches_max=batches_max))
    monkeypatch.setattr(followed, "RECENT_BYTES_MAX", 0)
    query = moving.query()
    begin = query.reader.initialOffset()
    end = query.reader.latestOffset(begin, query.reader.getDefaultReadLimit())
    moving.move(2)
    moving.move(2, partition=1)
    assert query.rows(begin, end) == ALL
    query.restart()
    assert query.rows(begin, end) == ALL


def test_a_stream_that_waited_too_long_fails_and_can_go_on(moving: Place) -> None:
    query = moving.query(moveTimeoutS="0.02")
    assert query.batch() == ALL
    moving.begin_move(2)
    for again in (False, True):
        if again:
            query.restart()
        with pytest.raises(DeadlineExceeded, match=r"waited 0\.02 s for .*: t/0 moves from bundle 1 to 2"):
            batches_until(query)
    moving.end_move()
    moving.produce((0, 2))
    assert wait_for(query) == rows("t", 0, 18, 20)


def test_a_stream_that_begins_at_the_end_begins_at_that_of_the_new_bundle(moving: Place) -> None:
    moving.begin_move(2)
    moving.produce((0, 2))
    query = moving.query(startingOffsets="latest")
    with ending(moving):
        assert query.batch() == []
    moving.produce((0, 1))
    assert wait_for(query) == rows("t", 0, 20, 21)
