"""A keyed topic through the source: a reader ends with the latest record of each key, at its own
offset, however often it was cleaned.
"""

from __future__ import annotations

import asyncio
import pickle
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadMaxRows

from ledgermq.sources import Sources
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.keyed_runner import clean_bundle
from ledgermq_ledger.rounds.runner import compact_bundle
from ledgermq_ledger.topics.topic import Topic
from ledgermq_spark.source.batch import BatchReader
from ledgermq_spark.source.data_source import LedgerMQDataSource
from ledgermq_spark.source.streaming.stream import StreamReader
from tests.stores.backends import file_store
from tests.worlds.keyed_topics import Row, Written, fold, put_pairs
from tests.worlds.roots import Root

KEYS, ROWS = 20, 60


class Keyed:
    """Topic t of one partition on a local folder; each step opens the root anew, as another process
    would.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.written = Written()
        self._draw = random.Random(5)
        self._topic: Topic | None = None

    def put(self, count: int = ROWS) -> None:
        draw = self._draw
        pairs = [
            (b"k%d" % draw.randrange(KEYS), None if draw.random() < 0.2 else draw.randbytes(20)) for _ in range(count)
        ]

        async def step(root: Root, topic: Topic) -> None:
            await put_pairs(root, topic, self.written, pairs)

        self._do(step)

    def clean(self) -> None:
        """To Parquet, cleaned, and the log that was cleaned is gone."""

        async def step(root: Root, _: Topic) -> None:
            engine, catalog = LocalEngine(root.sources), await root.catalog()
            while await compact_bundle(
                Compaction(root.store, root.cluster, root.sources, engine), 1, catalog, everything=True
            ):
                pass
            assert await clean_bundle(
                Compaction(root.store, root.cluster, root.sources, engine), 1, catalog, everything=True
            )
            assert [info async for info in root.store.list("parquet/")] == []

        self._do(step)

    def _do(self, step: Callable[[Root, Topic], Awaitable[None]]) -> None:
        async def main() -> None:
            async with file_store(self.folder) as store:
                root = await Root.open(store, Sources())
                root.cluster = replace(root.cluster, parquet_min_age_ms=0)
                if self._topic is None:
                    self._topic = await root.create_topic("t", cleanup_policy="compact")
                await step(root, self._topic)

        asyncio.run(main())

    @property
    def source(self) -> LedgerMQDataSource:
        return LedgerMQDataSource({"root": str(self.folder), "topic": "t", "minPartitions": "3"})


def rows_of(reader: BatchReader | StreamReader, tasks: Sequence[InputPartition]) -> list[Row]:
    """As executors read them."""
    copies = pickle.loads(pickle.dumps(list(tasks)))
    found = [row for task in copies for batch in reader.read(task) for row in batch.to_pylist()]
    return [Row(row["offset"], row["key"], row["value"]) for row in found]


def judge(keyed: Keyed, rows: list[Row], cleaned_to: int) -> None:
    written, end = keyed.written, len(keyed.written.rows)
    assert [row.offset for row in rows] == sorted({row.offset for row in rows})
    assert all(row == written.rows[row.offset] for row in rows), "at the offset where it was written"
    assert fold(rows) == written.table(end)
    below = [row.key for row in rows if row.offset < cleaned_to]
    assert len(below) == len(set(below)), "each key once"
    assert [row for row in rows if row.offset >= cleaned_to] == written.rows[cleaned_to:]


@pytest.fixture
def keyed(tmp_path: Path) -> Keyed:
    keyed = Keyed(tmp_path / "root")
    keyed.put()
    return keyed


def test_a_batch_reads_what_cleaning_left_and_the_log_behind_it(keyed: Keyed) -> None:
    for number in range(1, 4):
        keyed.clean()
        keyed.put(10)
        reader = keyed.source.reader(keyed.source.schema())
        rows = rows_of(reader, reader.partitions())
        assert len(rows) < len(keyed.written.rows)
        judge(keyed, rows, ROWS + 10 * (number - 1))


def test_a_query_that_was_planned_before_a_round_reads_what_the_round_left(keyed: Keyed) -> None:
    reader = keyed.source.reader(keyed.source.schema())
    tasks = reader.partitions()
    assert rows_of(reader, tasks) == keyed.written.rows
    keyed.clean()
    judge(keyed, rows_of(reader, tasks), ROWS)


@pytest.mark.parametrize("again", [False, True])
def test_a_stream_ends_with_the_latest_of_each_key_over_rounds(keyed: Keyed, again: bool) -> None:
    """`again`: every batch by a new process, from the checkpoint."""
    reader = keyed.source.streamReader(keyed.source.schema())
    position, rows = reader.initialOffset(), list[Row]()
    for number in range(12):
        if number in (2, 5):
            keyed.clean()
            keyed.put(20)
        if again:
            reader.stop()
            reader = keyed.source.streamReader(keyed.source.schema())
        following = reader.latestOffset(position, ReadMaxRows(15))
        while number in (2, 5) and following == position:  # not seen yet
            following = reader.latestOffset(position, ReadMaxRows(15))
        rows += rows_of(keyed.source.streamReader(keyed.source.schema()), reader.partitions(position, following))
        reader.commit(following)
        position = following
    reader.stop()
    end = len(keyed.written.rows)
    assert position["topics"]["t"]["offsets"] == {"0": end}
    assert [row.offset for row in rows] == sorted({row.offset for row in rows})
    assert all(row == keyed.written.rows[row.offset] for row in rows)
    assert fold(rows) == keyed.written.table(end)
    assert len(rows) < end
