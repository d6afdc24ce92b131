"""The Spark source's two halves on real servers: planned in one process, read by others, while
compaction moves the records.
"""

from __future__ import annotations

import asyncio
import pickle

import pytest

from tests.worlds.source_readers import batch_reader
from tests.worlds.source_root import ALL, compact, fill

pytestmark = pytest.mark.real


@pytest.mark.parametrize("place", ["minio_root", "hdfs_root"])
def test_every_record_is_read_once_before_and_after_compaction(request: pytest.FixtureRequest, place: str) -> None:
    root: str = request.getfixturevalue(place)
    asyncio.run(fill(root))
    reader = batch_reader({"root": root, "topic": "t", "minPartitions": "4"})
    tasks = pickle.loads(pickle.dumps(list(reader.partitions())))
    assert len(tasks) >= 4

    def read() -> list[tuple[str, int, int]]:
        rows = [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
        return sorted((row["topic"], row["partition"], row["offset"]) for row in rows)

    assert read() == ALL
    asyncio.run(compact(root))
    assert read() == ALL
