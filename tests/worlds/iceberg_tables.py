"""Give a topic of a root an Iceberg table in a catalog of SQLite, and judge its snapshots (design Z1 to Z7)."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table as Stored

from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.iceberg.catalog import Place
from ledgermq_ledger.iceberg.snapshots import chain_of
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.tables.formats.choose import open_log, table_of
from ledgermq_ledger.tables.formats.contract import Committed
from ledgermq_ledger.tables.formats.iceberg import IcebergLog, IcebergTable
from ledgermq_ledger.tables.registrar import Registrar
from tests.worlds.roots import Root
from tests.worlds.set_tables import tell

CATALOG, NAMESPACE = "lake", "events.raw"
SETTINGS = {"table_format": "iceberg", "table_catalog": CATALOG, "table_namespace": NAMESPACE}
Runs = dict[int, list[tuple[int, int]]]


def configure(patch: pytest.MonkeyPatch, folder: Path, name: str = CATALOG) -> SqlCatalog:
    """Configure a catalog as an operator does; return a client of it as readers have one."""
    folder.mkdir(exist_ok=True)
    uri, warehouse = f"sqlite:///{folder}/catalog.db", f"file://{folder}/warehouse"
    patch.setenv(f"PYICEBERG_CATALOG__{name.upper()}__URI", uri)
    patch.setenv(f"PYICEBERG_CATALOG__{name.upper()}__WAREHOUSE", warehouse)
    return SqlCatalog(name, uri=uri, warehouse=warehouse)


async def set_iceberg(root: Root, generation: int, keep_ms: int = 1_000_000_000, topic: str = "t") -> None:
    """Set the table of a generation, 0: none, and bring it into force in each bundle of the topic."""
    root.topics[topic].raw_settings.pop("table.generation", None)
    changed = SETTINGS | {"table_keep_ms": str(keep_ms)}
    if generation:
        changed["table_generation"] = str(generation)
    else:
        changed["table_format"] = "none"
    await root.alter_topic(topic, **changed)
    root.topics[topic] = (await root.catalog()).topics_by_name[topic]
    for bundle in sorted(root.topics[topic].bundles_in_use):
        await tell(root, bundle)


def registrar(root: Root, store: ObjectStore | None = None, every: int | None = None) -> Registrar:
    return Registrar(store or root.store, root.cluster, root.topics["t"], root.sources, every, run_inline)


def log_of(root: Root) -> IcebergLog:
    topic = root.topics["t"]
    of = table_of(root.cluster.cluster_id, topic)
    found = open_log(root.store, of, topic.settings, root.sources, run_inline)
    assert isinstance(found, IcebergLog)
    return found


async def catch_up(root: Root, registrar: Registrar) -> int:
    """Take turns, and wait where the next snapshot is due later. Return how many were put."""
    put = 0
    while True:
        turn = await registrar.turn()
        put += turn.committed is Committed.WON
        if turn.pause_ms:
            await wait_ms(root, turn.pause_ms)
        elif turn.committed is None:
            return put


async def wait_ms(root: Root, pause_ms: int) -> None:
    await asyncio.sleep(pause_ms / 1000)


def urls_of(stored: Stored) -> dict[int, list[str]]:
    """Return the files of each snapshot that is kept, by its place in the chain from the newest on."""
    return {
        number: [
            entry.data_file.file_path
            for manifest in snapshot.manifests(stored.io)
            for entry in manifest.fetch_manifest_entry(stored.io)
        ]
        for number, snapshot in enumerate(chain_of(stored.metadata))
    }


def runs_of(root: Root, urls: list[str]) -> Runs:
    found: Runs = {}
    prefix = Place(CATALOG, NAMESPACE, "t", root.store.url).root
    assert len(set(urls)) == len(urls), "a file is named twice"
    for url in urls:
        name = keys.parse_parquet(url.removeprefix(prefix))
        assert name is not None, url
        found.setdefault(name.partition, []).append((name.first_offset, name.last_offset + 1))
    for partition, run in found.items():
        run.sort()
        assert all(end == first for (_, end), (first, _) in pairwise(run)), f"partition {partition} has {run}"
    return found


async def runs(root: Root) -> Runs:
    """Return the newest snapshot's files, after a look at each one that is kept."""
    stored = await table(root)
    found = [runs_of(root, urls) for _, urls in sorted(urls_of(stored).items())]
    return found[0]


async def table(root: Root) -> Stored:
    read = await log_of(root).read()
    assert isinstance(read, IcebergTable)
    assert read.stored is not None
    return read.stored
