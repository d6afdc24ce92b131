"""What each batch of a stream reads while partitions move from bundle to bundle, without Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from ledgermq.errors import DeadlineExceeded, OffsetOutOfRange
from ledgermq_ledger.view.following import follow
from ledgermq_spark.source.streaming import driver, followed
from ledgermq_spark.source.streaming.followed import FollowedTopics
from tests.unit.spark_source.streamed import Place, a_place, batches_until, rows, wait_for
from tests.worlds.source_root import ALL

place = pytest.fixture(a_place)


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
