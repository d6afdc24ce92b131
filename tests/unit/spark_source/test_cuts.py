"""The option `cut`: a batch query reads topics as they were at a cut, without Spark and without a broker."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path

import pytest

from ledgermq.errors import InvalidConfig, UnknownCut
from ledgermq.sources import Sources
from ledgermq_ledger.object_store.file.store import FileStore
from ledgermq_spark.source.data_source import LedgerMQDataSource
from ledgermq_spark.source.options import parse_options
from tests.worlds.cuts import drop_cut, take_cut
from tests.worlds.roots import Root
from tests.worlds.source_readers import batch_reader


def fill(folder: Path, *, dropped: bool = False) -> None:
    """Two topics with a cut, and more records after it."""

    async def main() -> None:
        sources = Sources()
        async with FileStore(folder, sources) as store:
            root = await Root.open(store, sources)
            for topic in ("a", "b"):
                await root.create_topic(topic)
                await root.produce(topic, (0, [b"1", b"2"]))
            await root.compact(sources=sources)
            await root.produce("a", (0, [b"3"]))
            await take_cut(root, "eod")
            for topic in ("a", "b"):
                await root.produce(topic, (0, [b"later"]))
            await root.compact(sources=sources)
            if dropped:
                await drop_cut(root, "eod")

    asyncio.run(main())


def values(folder: Path, **options: str) -> dict[str, list[bytes]]:
    reader = batch_reader({"root": str(folder), "topics": "a,b", **options})
    found: dict[str, list[bytes]] = {}
    for partition in reader.partitions():
        for rows in reader.read(pickle.loads(pickle.dumps(partition))):
            for topic, value in zip(rows.column("topic").to_pylist(), rows.column("value").to_pylist(), strict=True):
                found.setdefault(topic, []).append(value)
    return found


def test_many_topics_are_read_as_they_were_at_one_instant(tmp_path: Path) -> None:
    fill(tmp_path)
    assert values(tmp_path, cut="eod") == {"a": [b"1", b"2", b"3"], "b": [b"1", b"2"]}
    assert values(tmp_path) == {"a": [b"1", b"2", b"3", b"later"], "b": [b"1", b"2", b"later"]}


def test_a_cut_that_is_not_there_is_named(tmp_path: Path) -> None:
    fill(tmp_path, dropped=True)
    with pytest.raises(UnknownCut, match="cut 'eod' was dropped"):
        values(tmp_path, cut="eod")
    with pytest.raises(UnknownCut, match="cut 'other' does not exist"):
        values(tmp_path, cut="other")


def test_what_does_not_go_together_is_refused() -> None:
    given = {"root": "s3://bucket/prod", "topic": "a", "cut": "eod"}
    assert parse_options(given).cut == "eod"
    with pytest.raises(InvalidConfig, match="cut or includeArchive"):
        parse_options({**given, "includeArchive": "true"})
    source = LedgerMQDataSource(given)
    with pytest.raises(InvalidConfig, match="cut is for batch queries"):
        source.streamReader(source.schema())
