"""A topic with an Iceberg table in a folder: pyiceberg and polars read it while retention deletes, a broker is killed,
and a former snapshot stays readable.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import polars as pl
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError

import ledgermq
from ledgermq.errors import InvalidConfig, Unavailable
from tests.e2e.processes import BrokerProcesses
from tests.e2e.test_tables import OPTIONS, ledgermq_says
from tests.waiting import wait_until
from tests.worlds.iceberg_tables import NAMESPACE, configure

TABLE = {
    "table.format": "iceberg",
    "table.catalog": "lake",
    "table.namespace": NAMESPACE,
    "table.keep.ms": 60_000,
}
IDENTIFIER = (*NAMESPACE.split("."), "t")


def values_by_pyiceberg(catalog: SqlCatalog, snapshot: int | None = None) -> list[bytes]:
    scan = catalog.load_table(IDENTIFIER).scan(selected_fields=("offset", "value"), snapshot_id=snapshot)
    return scan.to_arrow().sort_by("offset").column("value").to_pylist()


def values_by_polars(catalog: SqlCatalog) -> list[bytes]:
    """By the file of metadata alone, without the catalog. Without another package it plans by PyIceberg."""
    place = catalog.load_table(IDENTIFIER).metadata_location
    return pl.scan_iceberg(place).sort("offset").select("value").collect()["value"].to_list()


def has(catalog: SqlCatalog, values: list[bytes]) -> bool:
    """Whether both readers see just these values."""
    try:
        return values_by_pyiceberg(catalog) == values_by_polars(catalog) == values
    except NoSuchTableError:
        return False


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_readers_of_iceberg_follow_a_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, catalog = tmp_path / "root", configure(monkeypatch, tmp_path / "lake")
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")

    async def see(*values: bytes) -> None:
        await asyncio.to_thread(wait_until, lambda: has(catalog, list(values)), 60)

    with BrokerProcesses(tmp_path, root.as_uri(), OPTIONS) as brokers:
        first = await asyncio.to_thread(brokers.start)
        async with ledgermq.connect(first.address) as client:
            await client.create_topic("t", 1, TABLE)
            for batch in (b"a", b"b"):
                async with client.producer() as producer:
                    await producer.send("t", batch)
                await ledgermq_says("compact", str(root))
            await see(b"a", b"b")
            snapshot = catalog.load_table(IDENTIFIER).current_snapshot()
            assert snapshot is not None
            await client.delete_records("t", {0: 1})
            await ledgermq_says("compact", str(root))
            await see(b"b")
            await asyncio.sleep(4.5)  # files are old enough to go
            await ledgermq_says("gc", str(root))
            assert values_by_pyiceberg(catalog, snapshot.snapshot_id) == [b"a", b"b"], "readers may have it open"
        second = await asyncio.to_thread(brokers.start)
        brokers.kill(first)
        async with ledgermq.connect(second.address) as client:
            async with client.producer() as producer:
                await producer.send("t", b"c")
            await ledgermq_says("compact", str(root))
            await see(b"b", b"c")
            asked = ("table", "describe", "t", "--target", second.address)
            said = json.loads(await ledgermq_says(*asked, "--output", "json"))
            assert (said["format"], said["folder"]) == ("iceberg", catalog.load_table(IDENTIFIER).metadata_location)
            assert [(each["start"], each["end"], each["missing"]) for each in said["partition_list"]] == [(1, 3, 0)]
            await ledgermq_says("fsck", str(root))
            await client.tables.drop("t")
            await see()
            assert "table.catalog" in (await client.describe_topic("t")).settings, "a repeated drop finds it by that"
    await ledgermq_says("fsck", str(root))


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, tmp_path / "lake")
    configure(monkeypatch, tmp_path / "gone", "gone")
    configure(monkeypatch, tmp_path / "root", "inside")
    monkeypatch.setenv("PYICEBERG_CATALOG__GONE__URI", f"sqlite:///{tmp_path}/nowhere/catalog.db")
    with BrokerProcesses(tmp_path, (tmp_path / "root").as_uri(), OPTIONS) as brokers:
        broker = await asyncio.to_thread(brokers.start)
        async with ledgermq.connect(broker.address) as client:
            for wrong, error, why in (
                ({"table.catalog": ""}, InvalidConfig, r"needs table\.catalog and table\.namespace"),
                ({"table.catalog": "other"}, InvalidConfig, "'other' is not configured in this broker"),
                ({"table.catalog": "gone"}, Unavailable, "cannot be reached"),
                ({"table.catalog": "inside"}, InvalidConfig, "lies in the root"),
                ({"table.namespace": "a..b"}, InvalidConfig, "separated by dots"),
                ({"cleanup.policy": "compact"}, InvalidConfig, "no Iceberg table"),
            ):
                with pytest.raises(error, match=why):
                    await client.create_topic("t", 1, TABLE | wrong)
            with pytest.raises(InvalidConfig, match="200 partitions at most"):
                await client.create_topic("t", 201, TABLE)
            await client.create_topic("t", 1, TABLE)
            with pytest.raises(InvalidConfig, match="cannot change while the topic has a table"):
                await client.alter_topic("t", settings={"table.format": "delta", "table.delta.place": "topic"})
