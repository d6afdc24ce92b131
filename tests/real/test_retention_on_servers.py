"""Archives and garbage collection on real servers: what retention takes is archived and read, what
a dead round left is removed.
"""

from __future__ import annotations

import asyncio
import io
import re

import pyarrow.parquet as pq
import pytest

from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.cluster import ClusterDefaults, open_cluster
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.parquet.compacting.round import run_round
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.root.open import open_store
from ledgermq_ledger.topics.topic import METADATA, encode_topic_record, topic_key
from ledgermq_tools.ledger import fsck, gc
from tests.worlds.root_commands import RootCommand
from tests.worlds.roots import Root, parquet_keys, read_everything
from tests.worlds.source_readers import batch_reader

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

PLACES = pytest.mark.parametrize("place", ["minio_root", "hdfs_root"])
DEFAULTS = ClusterDefaults(bundles=2, url_life_ms=1_000, parquet_min_age_ms=4_000)
FILES = 3
VALUES = [b"%d" % number for number in range(2 * FILES)]
GONE_S_MAX = 120.0


async def opened(store: ObjectStore, **settings: str) -> Root:
    sources = Sources()
    root = Root(store, sources, await open_cluster(store, sources, DEFAULTS))
    await root.put_internal(METADATA, topic_key(METADATA.name), encode_topic_record(METADATA, creation=True))
    await root.create_topic("t", 1, 1, **settings)
    return root


async def archived(store: ObjectStore) -> list[bytes]:
    """Values, in order of offset, as a plain reader finds them, who passes over names that begin
    with "_".
    """
    found: dict[int, bytes] = {}
    async for info in store.list(keys.ARCHIVE):
        if info.key == keys.ARCHIVE_OWNER:
            continue
        for row in pq.ParquetFile(io.BytesIO(await store.get(info.key))).read(columns=["offset", "value"]).to_pylist():
            assert row["offset"] not in found
            found[row["offset"]] = row["value"]
    return [found[offset] for offset in sorted(found)]


def read_by_query(root_url: str, **options: str) -> list[tuple[int, bytes]]:
    reader = batch_reader({"root": root_url, "topic": "t", **options})
    rows = [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]
    return [(row["offset"], row["value"]) for row in rows]


@PLACES
@pytest.mark.parametrize("elsewhere", [False, True])
def test_records_that_retention_takes_are_archived_and_read(
    request: pytest.FixtureRequest, place: str, elsewhere: bool
) -> None:
    """In the root itself, and at another URL of the same server."""
    root_url: str = request.getfixturevalue(place)
    vault_url = re.sub(r"/(root-\d+)", r"/vault-of-\1", root_url)

    async def main() -> None:
        settings = {"delete_action": "archive", "retention_ms": "1000"} | (
            {"archive_url": vault_url} if elsewhere else {}
        )
        async with (
            await open_store(root_url, sources=Sources()) as store,
            await open_store(vault_url, sources=Sources()) as vault,
        ):
            root = await opened(store, **settings)
            place_of_archive, other = (vault, store) if elsewhere else (store, vault)
            for number in range(FILES):
                await root.produce("t", (0, VALUES[2 * number : 2 * number + 2]))
                assert not (await root.compact()).failures
                assert set(VALUES[: 2 * number + 2]) <= {
                    *await archived(place_of_archive),
                    *(await read_everything(root)).get(("t", 0), []),
                }
            async with asyncio.timeout(GONE_S_MAX):
                while await parquet_keys(store):
                    await asyncio.sleep(0.5)
                    assert not (await root.compact()).failures
            assert (await archived(place_of_archive), await archived(other)) == (VALUES, [])
            await root.produce("t", (0, [b"new"]))

    asyncio.run(main())
    everything = [*enumerate(VALUES), (len(VALUES), b"new")]
    assert read_by_query(root_url) == everything[-1:]
    assert read_by_query(root_url, includeArchive="true") == everything
    assert read_by_query(root_url, includeArchive="true", startingOffsets='{"t": {"0": 3}}') == everything[3:]
    assert RootCommand(fsck).json(root_url)[1]["verdict"] == "clean"


@PLACES
def test_gc_removes_what_a_dead_round_left_and_nothing_else(request: pytest.FixtureRequest, place: str) -> None:
    """No process has tidied up behind the round; a stranger's object is left alone, and so is what
    is live.
    """
    root_url: str = request.getfixturevalue(place)

    async def fill() -> None:
        async with await open_store(root_url, sources=Sources()) as store:
            root = await opened(store)
            await root.produce("t", (0, VALUES))
            engine, catalog = LocalEngine(root.sources, run_inline), await root.catalog()
            assert await run_round(Compaction(store, root.cluster, root.sources, engine), 1, catalog, everything=True)
            await root.produce("t", (0, [b"in a segment"]))
            await store.put_if_absent("notes.txt", [b"mine"])
            newest_ms = (await store.head("notes.txt")).modified_ms
            while await store.store_time_ms() < newest_ms + 1000:
                await asyncio.sleep(0.1)

    async def left() -> list[str]:
        async with await open_store(root_url, sources=Sources()) as store:
            return sorted([info.key async for info in store.list("") if not info.key.startswith(keys.ledger(0))])

    asyncio.run(fill())
    before = asyncio.run(left())
    run = RootCommand(gc)
    assert {row["kind"] for row in run.json(root_url, "--dry-run", "--grace", "1h")[1]["found"]} <= {"fence"}, (
        "all else is younger than that"
    )
    code, planned = run.json(root_url, "--dry-run", "--grace", "0s")
    assert (code, asyncio.run(left())) == (0, before)
    code, done = run.json(root_url, "--grace", "0s")
    assert (code, done["objects"], done["not_removed"]) == (0, planned["objects"], 0)
    removed = {row["key"] for row in done["found"] if row["removed"]}
    assert {keys.segment(1, 2), keys.compaction(1, 1)} <= removed
    assert asyncio.run(left()) == [key for key in before if key not in removed]
    assert "notes.txt" in asyncio.run(left())
    assert run.json(root_url, "--grace", "0s")[1]["objects"] == 0
    assert read_by_query(root_url) == [*enumerate(VALUES), (len(VALUES), b"in a segment")]
    found = RootCommand(fsck).json(root_url)[1]["problems"]
    assert [problem["object_key"] for problem in found] == ["notes.txt"]
