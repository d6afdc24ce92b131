"""Flip a bit in the topics' metadata while no broker runs: the next broker starts, serves
everything, and repairs it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

import ledgermq
from ledgermq.sources import Sources
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.root.open import open_store
from ledgermq_ledger.rounds.runner import compact_root
from ledgermq_tools.ledger import fsck, repair
from tests.e2e.admin_port import ADMIN, AdminPort
from tests.e2e.processes import QUICK, BrokerProcesses
from tests.waiting import wait_until
from tests.worlds.root_commands import RootCommand


async def fill(root: Path) -> None:
    """Topics in a snapshot of bundle 0, and one behind it."""
    async with ledgermq.connect(root.as_uri()) as client:
        await client.create_topic("early", partitions=2)
        async with client.producer() as producer:
            await producer.send("early", b"kept", partition=1)
    async with await open_store(root.as_uri(), sources=Sources()) as store:
        await compact_root(store, Sources(), LocalEngine(Sources()))
    async with ledgermq.connect(root.as_uri()) as client:
        await client.create_topic("late", partitions=2)


async def everything_is_served(root: Path) -> None:
    await everything_is_served_by(root.as_uri())


async def everything_is_served_by(target: str) -> None:
    async with ledgermq.connect(target) as client:
        assert {topic.name for topic in await client.list_topics()} == {"early", "late"}
        async with client.producer() as producer:
            await producer.send("late", b"new", partition=0)
        values: list[bytes | None] = []
        async with asyncio.timeout(60), client.consumer("early", start="earliest") as consumer:
            while not values:
                values += [message.value for message in await consumer.fetch(10, 1.0)]
        assert values == [b"kept"]


def newest(root: Path, folder: str) -> Path:
    return max(path for path in (root / "ledgers" / "0000" / folder).iterdir() if path.name.isdigit())


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-60] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("folder", ["snapshots", "checkpoints", "segments"])
@pytest.mark.parametrize("harm", [flip, cut, Path.unlink])
async def test_a_cluster_starts_with_one_damaged_object_of_bundle_0(
    tmp_path: Path, folder: str, harm: Callable[[Path], None]
) -> None:
    root = tmp_path / "root"
    await fill(root)
    harm(newest(root, folder))
    await everything_is_served(root)


def test_fsck_names_it_and_repair_mends_it_without_a_broker(tmp_path: Path) -> None:
    root = tmp_path / "root"
    asyncio.run(fill(root))
    check, mend = RootCommand(fsck), RootCommand(repair)
    assert check.json(root)[0] in (0, 9)
    path = newest(root, "checkpoints")
    good, key = path.read_bytes(), str(path.relative_to(root))
    flip(path)
    code, found = check.json(root)
    assert code == 6
    [problem] = [each for each in found["problems"] if each["severity"] == "damage"]
    assert problem["object_key"] == key
    assert "second copy is sound" in problem["text"]
    code, found = mend.json(root, "--dry-run")
    assert (code, [each["object_key"] for each in found["objects"]]) == (0, [key])
    assert path.read_bytes() != good
    code, found = mend.json(root)
    assert (code, found["damaged_metadata"]) == (0, 1)
    assert path.read_bytes() == good
    assert check.json(root)[0] in (0, 9)

    copy = path.with_name(f"{path.name}.copy")
    flip(path)
    flip(copy)
    code, found = check.json(root)
    assert code == 6
    assert {key, f"{key}.copy"} <= {each["object_key"] for each in found["problems"] if each["severity"] == "damage"}
    code, _, err = mend(root)
    assert code == 6
    assert key in err
    copy.write_bytes(good)
    assert mend(root)[0] == 0
    asyncio.run(everything_is_served(root))


def test_a_broker_tells_of_metadata_that_is_lost_and_goes_on_once_it_is_put_back(tmp_path: Path) -> None:
    root = tmp_path / "root"
    asyncio.run(fill(root))
    path = newest(root, "snapshots")
    good, key = path.read_bytes(), str(path.relative_to(root))
    for each in (path, path.with_name(f"{path.name}.copy")):
        flip(each)
    with BrokerProcesses(tmp_path, root.as_uri(), (*QUICK, *ADMIN)) as brokers:
        admin = AdminPort(brokers.start())
        wait_until(lambda: any(key in note for note in admin.ready()[1].get("notes", [])))
        assert admin.metrics()["ledgermq_damaged_objects_total"]["lost",] == 1
        path.write_bytes(good)
        wait_until(lambda: not admin.ready()[1].get("notes"))
        asyncio.run(everything_is_served_by(brokers.addresses))
