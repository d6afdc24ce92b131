"""What a query reads, task by task, without Spark: the driver's half plans, the executors' half
reads.
"""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path

import pytest

from ledgermq.errors import InvalidConfig, LedgerMQError, OffsetOutOfRange, UnknownPartition, UnknownTopic
from ledgermq.sources import Sources
from ledgermq_ledger.garbage.topics.retention import log_start_move
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.object_store.file.store import FileStore
from ledgermq_spark.source.batch import BatchReader
from tests.worlds.ledgers import ledger_of
from tests.worlds.roots import Root
from tests.worlds.source_readers import batch_reader
from tests.worlds.source_root import ALL, DAY, compact, fill


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    asyncio.run(fill(tmp_path / "root"))
    return tmp_path / "root"


def reader(folder: Path, **options: str) -> BatchReader:
    named = {} if {"topics", "topicsPattern"} & options.keys() else {"topic": "t"}
    return batch_reader({"root": str(folder), **named, **options})


def offsets(reader: BatchReader, tasks: list[object] | None = None) -> list[tuple[str, int, int]]:
    """Each task as an executor gets it."""
    found = []
    for task in tasks if tasks is not None else reader.partitions() or [None]:
        for batch in reader.read(pickle.loads(pickle.dumps(task))):
            found += [(row["topic"], row["partition"], row["offset"]) for row in batch.to_pylist()]
    return found


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ALL),
        ({"partitions": "1"}, ALL[18:]),
        ({"startingOffsets": "latest"}, []),
        ({"endingOffsets": "earliest"}, []),
        ({"startingOffsets": '{"t": {"0": 4, "1": -1}}'}, ALL[4:18]),
        ({"startingOffsets": '{"t": {"0": -1}}', "endingOffsets": '{"t": {"1": 2}}'}, ALL[18:20]),
        ({"startingOffsets": '{"t": {"0": 5}}', "endingOffsets": '{"t": {"0": 13, "1": 0}}'}, ALL[5:13]),
        ({"startingTimestamp": "1970-01-01T00:00:00.003Z", "partitions": "0"}, ALL[9:18]),
        (
            {
                "startingTimestamp": "1970-01-01T00:00:00.001Z",
                "endingTimestamp": "1970-01-01T00:00:00.002Z",
                "partitions": "0",
            },
            ALL[3:6],
        ),
        ({"startingTimestamp": "1970-01-01T00:00:06Z"}, []),
        ({"minPartitions": "9"}, ALL),
        ({"minPartitions": "1000"}, ALL),
        ({"topics": f"t, {DAY}"}, [*ALL, (DAY, 0, 0), (DAY, 0, 1)]),
        ({"topicsPattern": "2024-.*"}, [(DAY, 0, 0), (DAY, 0, 1)]),
    ],
    ids=str,
)
def test_options_choose_what_is_read(
    folder: Path, options: dict[str, str], expected: list[tuple[str, int, int]]
) -> None:
    assert offsets(reader(folder, **options)) == expected


@pytest.mark.parametrize(("asked", "least"), [(1, 1), (7, 7), (24, 24), (1000, 24)])
def test_there_are_as_many_tasks_as_asked_for(folder: Path, asked: int, least: int) -> None:
    assert len(reader(folder, minPartitions=str(asked)).partitions()) >= least
    assert len(reader(folder).partitions()) == 1


def test_tasks_give_the_same_after_compaction_has_moved_their_records(folder: Path) -> None:
    planned = reader(folder, minPartitions="5")
    tasks = list(planned.partitions())
    asyncio.run(compact(folder))
    assert offsets(planned, tasks) == ALL


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"startingOffsets": '{"t": {"7": 1}}'}, UnknownPartition, "there is no partition 7"),
        ({"partitions": "2"}, UnknownPartition, "there is no partition 2"),
        ({"startingOffsets": '{"t": {"0": 99}}'}, OffsetOutOfRange, "the log ends at 18"),
        ({"endingOffsets": '{"t": {"0": 99}}'}, OffsetOutOfRange, "the log ends at 18"),
        ({"topics": "none"}, UnknownTopic, "topic 'none' does not exist"),
        ({"topicsPattern": "nothing"}, UnknownTopic, "topicsPattern 'nothing' matches no topic .* a whole name"),
        ({"topics": "__metadata"}, InvalidConfig, "belongs to the system"),
        ({"root": "/nowhere"}, InvalidConfig, "there is no cluster"),
    ],
    ids=str,
)
def test_what_cannot_be_read_is_said(
    folder: Path, options: dict[str, str], kind: type[LedgerMQError], text: str
) -> None:
    with pytest.raises(kind, match=text):
        reader(folder, **options).partitions()


def test_a_relative_root_is_the_drivers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    planned = reader(folder, root="root")
    tasks = list(planned.partitions())
    monkeypatch.chdir("/")
    assert offsets(planned, tasks) == ALL


def test_a_root_in_memory_is_refused(folder: Path) -> None:
    with pytest.raises(InvalidConfig, match="other processes"):
        reader(folder, root="memory://x")


def test_records_that_retention_took_fail_the_query_unless_told_otherwise(folder: Path) -> None:
    async def retain() -> None:
        async with FileStore(folder, Sources()) as store:
            topic = (await (await Root.open(store, Sources())).catalog()).living("t")
            await advance_checkpoint(
                ledger_of(store, 1, sources=Sources()), log_start_move({PartitionId(topic.id, 0): 4})
            )

    asyncio.run(retain())
    wanted = {"startingOffsets": '{"t": {"0": 2, "1": 0}}'}
    with pytest.raises(OffsetOutOfRange, match="the log starts at 4"):
        reader(folder, **wanted).partitions()
    assert offsets(reader(folder, **wanted, failOnDataLoss="false")) == ALL[4:]
    assert offsets(reader(folder)) == ALL[4:], "earliest is what is left"
