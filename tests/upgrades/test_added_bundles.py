"""Added bundles between releases: a root of the first release takes them, and a process that does not know
them refuses the root, whether it starts afterwards or has been running since before.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import ledgermq
from ledgermq.errors import FormatNotSupported, LedgerMQError
from ledgermq.sources import Sources
from ledgermq_ledger import cluster as cluster_file
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import FORMAT_VERSION, GROWN_VERSION, read_cluster
from ledgermq_ledger.fsck.check import check_root
from ledgermq_ledger.fsck.problem import Severity
from ledgermq_ledger.object_store.file.store import FileStore
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.service import CompactionService, ServiceEvents
from ledgermq_ledger.topics import settings as topic_settings
from tests.upgrades.golden import VERSIONS, contents, copy_root

BEFORE = "0.1.0"
"""A release that does not know added bundles."""


@asynccontextmanager
async def grown_root(tmp_path: Path, version: str) -> AsyncIterator[tuple[Path, FileStore]]:
    root = copy_root(version, tmp_path)
    async with ledgermq.connect(root.as_uri(), timeout_s=20) as client:
        added = await client.add_bundles(2)
        await client.create_topic("new", 2)
        assert {each.bundle for each in (await client.describe_topic("new")).partitions} == {
            added.before,
            added.before + 1,
        }
        async with client.producer() as producer:
            for partition in range(2):
                await producer.send("new", b"x", partition=partition)
    async with FileStore(root, Sources()) as store:
        yield root, store


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_root_of_every_release_takes_bundles(tmp_path: Path, version: str) -> None:
    async with grown_root(tmp_path, version) as (root, store):
        cluster = await read_cluster(store)
        assert cluster.format_version == GROWN_VERSION
        assert cluster.has_checksum, "also where the file had none"
        checked = await check_root(store, cluster)
        assert [problem for problem in checked.problems if problem.severity is Severity.DAMAGE] == []
        async with (
            ledgermq.connect(root.as_uri(), timeout_s=20) as client,
            client.consumer("new", start="earliest", until_end=True) as consumer,
        ):
            assert [message.value async for message in consumer] == [b"x", b"x"]


async def test_a_process_of_an_earlier_release_refuses_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with grown_root(tmp_path, BEFORE) as (root, store):
        before = contents(root)
        monkeypatch.setattr(cluster_file, "FORMAT_VERSIONS_READ", (FORMAT_VERSION,))
        with pytest.raises(FormatNotSupported, match=f"this root has format version {GROWN_VERSION}") as refused:
            await read_cluster(store)
        assert refused.value.object_key == keys.CLUSTER
        with pytest.raises(FormatNotSupported):
            async with ledgermq.connect(root.as_uri()):
                pass
        assert contents(root) == before


class Failures(ServiceEvents):
    def __init__(self) -> None:
        self.seen: list[LedgerMQError] = []

    def bundle_failed(self, bundle: int, error: LedgerMQError) -> None:
        self.seen.append(error)


async def test_a_compactor_of_an_earlier_release_that_runs_refuses_the_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with grown_root(tmp_path, BEFORE) as (root, store):
        cluster, sources = await read_cluster(store), Sources()
        failures = Failures()
        service = CompactionService(store, cluster, sources, LocalEngine(sources), failures)
        before = contents(root)
        known = {name: of for name, of in topic_settings._FIELDS.items() if name != topic_settings.CLUSTER_BUNDLES}
        monkeypatch.setattr(topic_settings, "_FIELDS", known)
        await service.run_once(collect=True)
        [error] = failures.seen
        assert isinstance(error, FormatNotSupported)
        assert topic_settings.CLUSTER_BUNDLES in error.message
        with pytest.raises(FormatNotSupported):
            await Compaction(store, cluster, sources, LocalEngine(sources)).catalog()
        assert contents(root) == before
