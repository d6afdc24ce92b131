"""`includeArchive`: a query reads what retention took, wherever its files are by then; without
Spark.
"""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path

import pytest

from ledgermq.errors import DataDamaged, InvalidConfig, OffsetOutOfRange
from ledgermq.sources import Sources
from ledgermq_ledger.garbage.topics.expired_files import remove_expired as remove_expired_files
from ledgermq_ledger.garbage.topics.retention import deletion_move
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.object_store.file.store import FileStore
from ledgermq_spark.source.batch import BatchReader
from ledgermq_spark.source.data_source import LedgerMQDataSource
from tests.unit.parquet.test_gc import Clock
from tests.worlds.ledgers import ledger_of
from tests.worlds.roots import Root
from tests.worlds.source_readers import batch_reader


class Place:
    """Topic t in a folder: files of two records each, of one second after the other; the log starts
    at `log_start`.
    """

    def __init__(self, folder: Path, archive_url: str = "") -> None:
        self.folder = folder
        self.clock = Clock()
        self.archive_url = archive_url

    async def fill(self, store: FileStore, sources: Sources, deleted: int) -> None:
        root = await Root.open(store, sources)
        url = {"archive_url": self.archive_url} if self.archive_url else {}
        topic = await root.create_topic("t", delete_action="archive", **url)
        for i in range(4):
            await root.produce("t", (0, [b"%d" % (2 * i), b"%d" % (2 * i + 1)]), timestamp_ms=1000 * i)
            await root.compact(sources=sources)
        await root.produce("t", (0, [b"8"]), timestamp_ms=4000)
        if deleted:
            await advance_checkpoint(ledger_of(store, 1, sources=sources), deletion_move(topic, {0: deleted}))

        def retention(draft: object) -> bool:
            part = next(part for part in draft.partitions if part.topic_id == topic.id)  # type: ignore[attr-defined]
            part.log_start = 6
            return True

        await advance_checkpoint(ledger_of(store, 1, sources=sources), retention)
        self.root = root

    def open(self, deleted: int = 0) -> Place:
        async def main() -> None:
            sources = Sources(self.clock)
            async with FileStore(self.folder, sources) as store:
                await self.fill(store, sources, deleted)

        asyncio.run(main())
        return self

    def expire(self) -> int:
        """Files below the log start go to the archive."""

        async def main() -> int:
            sources = Sources()
            async with _OldStore(self.folder, sources) as store:
                root = self.root
                root.store = store
                return await remove_expired_files(
                    ledger_of(store, 1, cluster=root.cluster, sources=sources), await root.catalog()
                )

        return asyncio.run(main())

    def query(self, **options: str) -> BatchReader:
        return batch_reader({"root": str(self.folder), "topic": "t", "includeArchive": "true", **options})


class _OldStore(FileStore):
    async def store_time_ms(self) -> int:
        return await super().store_time_ms() + 10**9


def offsets(reader: BatchReader, tasks: list[object] | None = None) -> list[int]:
    found = []
    for task in tasks if tasks is not None else reader.partitions() or [None]:
        for batch in reader.read(pickle.loads(pickle.dumps(task))):
            for row in batch.to_pylist():
                assert row["value"] == b"%d" % row["offset"]
                found.append(row["offset"])
    return found


@pytest.mark.parametrize("elsewhere", [False, True])
def test_all_is_read_whether_it_has_moved_or_not(tmp_path: Path, elsewhere: bool) -> None:
    place = Place(tmp_path / "root", (tmp_path / "vault").as_uri() if elsewhere else "").open()
    planned = place.query(minPartitions="5")
    tasks = list(planned.partitions())
    assert offsets(place.query()) == list(range(9)), "below the log start, not archived yet"
    assert place.expire() == 3
    assert (tmp_path / ("vault" if elsewhere else "root") / "archive" / "topic=t").is_dir()
    assert offsets(place.query()) == list(range(9))
    assert offsets(planned, tasks) == list(range(9)), "planned before the files moved"
    assert offsets(place.query(includeArchive="false")) == [6, 7, 8]


def test_offsets_and_times_reach_into_the_archive(tmp_path: Path) -> None:
    place = Place(tmp_path / "root").open()
    place.expire()
    assert offsets(place.query(startingOffsets='{"t": {"0": 3}}', endingOffsets='{"t": {"0": 7}}')) == [3, 4, 5, 6]
    assert offsets(place.query(startingTimestamp="1970-01-01T00:00:01Z")) == [2, 3, 4, 5, 6, 7, 8]
    assert offsets(place.query(startingTimestamp="1970-01-01T00:00:02Z", endingTimestamp="1970-01-01T00:00:03Z")) == [
        4,
        5,
    ]
    assert offsets(place.query(startingTimestamp="1970-01-01T00:00:04Z")) == [8]
    assert offsets(place.query(startingOffsets="latest")) == []
    with pytest.raises(OffsetOutOfRange):
        offsets(place.query(includeArchive="false", startingOffsets='{"t": {"0": 3}}'))


def test_records_deleted_on_demand_are_not_shown(tmp_path: Path) -> None:
    place = Place(tmp_path / "root").open(deleted=2)
    assert offsets(place.query()) == list(range(2, 9))
    place.expire()
    assert offsets(place.query()) == list(range(2, 9))


def test_an_archive_is_plain_parquet(tmp_path: Path) -> None:
    import pyarrow.dataset as ds

    place = Place(tmp_path / "root").open()
    place.expire()
    table = ds.dataset(tmp_path / "root" / "archive", partitioning=None).to_table()
    assert sorted(table["offset"].to_pylist()) == list(range(6))
    assert set(table["topic"].to_pylist()) == {"t"}


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    place = Place(tmp_path / "root").open()
    place.expire()
    file = min((tmp_path / "root" / "archive").rglob("*.parquet"))
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(DataDamaged, match="archive/topic=t"):
        offsets(place.query())


def test_the_archive_of_another_cluster_is_not_read(tmp_path: Path) -> None:
    vault = (tmp_path / "vault").as_uri()
    Place(tmp_path / "root", vault).open().expire()
    other = Place(tmp_path / "other", vault).open()
    assert offsets(other.query(includeArchive="false")) == [6, 7, 8]
    with pytest.raises(InvalidConfig, match=r"set another archive\.url"):
        other.query().partitions()


def test_streams_have_no_archive(tmp_path: Path) -> None:
    source = LedgerMQDataSource(
        {"root": str(Place(tmp_path / "root").open().folder), "topic": "t", "includeArchive": "true"}
    )
    with pytest.raises(InvalidConfig, match="includeArchive"):
        source.streamReader(source.schema())
    with pytest.raises(InvalidConfig, match="true or false"):
        Place(tmp_path / "root").query(includeArchive="perhaps")
