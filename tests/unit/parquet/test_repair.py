"""Parked partitions are taken up again: as they are once their object was put back, or without the
records that an operator has given up.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ledgermq.cli.output.exit_codes import ExitCode
from ledgermq.errors import DataDamaged
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.fsck.check import check_root
from ledgermq_ledger.fsck.problem import Severity
from ledgermq_ledger.log.chains.checkpoint import partition_of
from ledgermq_ledger.log.segments.segment import read_index
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.parquet.compacting.lost import LOST
from ledgermq_ledger.parquet.compacting.repair import ParkedPartition, find_parked, repair_partition
from ledgermq_tools.ledger import repair as repair_command
from ledgermq_tools.ledger.inspect.checkpoint_report import checkpoint_report
from tests.stores.backends import file_store, memory_store
from tests.stores.late_checkpoint import LateCheckpoint
from tests.worlds.root_commands import RootCommand
from tests.worlds.roots import Root, parquet_keys, read_parquet_rows

SLOT = 3
"""Holds the records 3 to 5 of partition 1, which are damaged."""
KEY = keys.segment(1, SLOT)


async def parked_root(store: ObjectStore, sources: Sources) -> tuple[Root, bytes]:
    """Also the segment as it was before the damage."""
    root = await Root.open(store, sources, bundles=3)
    await root.create_topic("t", partitions=2)
    for name in (b"a", b"b", b"c"):
        await root.produce("t", (0, [name]), (1, [name] * 3), timestamp_ms=1_700_000_000_000)
    healthy = await store.get(KEY)
    entry = next(e for e in (await read_index(store, 1, SLOT)).index.batches if e.partition == 1)
    data = bytearray(healthy)
    data[entry.position + entry.length // 2] ^= 0xFF
    await put_back(store, bytes(data))
    assert [parked.partition for parked in (await root.compact()).parked] == [1]
    return root, healthy


async def put_back(store: ObjectStore, data: bytes) -> None:
    await store.delete([KEY])
    await store.put_if_absent(KEY, [data])


async def found_in(root: Root) -> ParkedPartition:
    [found] = await find_parked(root.store, root.cluster, run_inline)
    return found


async def rows_of(root: Root) -> list[bytes | None]:
    return list((await read_parquet_rows(root.store))["t", 1].values())


async def worst(root: Root) -> Severity | None:
    return (await check_root(root.store, root.cluster, run_blocking=run_inline)).worst


async def test_once_the_object_was_put_back_nothing_is_lost(sources: Sources) -> None:
    async with memory_store() as store:
        root, healthy = await parked_root(store, sources)
        assert [(each.first_offset, each.last_offset, each.object_key) for each in (await found_in(root)).damaged] == [
            (3, 5, KEY)
        ]
        await put_back(store, healthy)
        found = await found_in(root)
        assert found.damaged == []
        assert not (await root.compact()).records, "parked until an operator repairs it"
        assert await repair_partition(store, root.cluster, found, sources)
        assert not (await root.compact()).parked
        assert await rows_of(root) == root.produced["t", 1]
        assert partition_of(await root.newest(), root.topics["t"].id, 1).lost == []
        assert await worst(root) in (None, Severity.NOTE, Severity.UNTIDY)


async def test_what_is_given_up_leaves_rows_that_say_so_and_a_note_of_who_decided(sources: Sources) -> None:
    async with memory_store() as store:
        root, _ = await parked_root(store, sources)
        assert await repair_partition(store, root.cluster, await found_in(root), sources, decided_by="an operator")
        report = await root.compact()
        assert not report.parked
        assert not report.failures
        assert await rows_of(root) == [b"a"] * 3 + [None] * 3 + [b"c"] * 3, "each offset has its row"
        headers = await headers_of(root)
        assert headers[3:6] == [[(LOST, KEY.encode())]] * 3
        assert not any(headers[:3] + headers[6:])
        [lost] = partition_of(await root.newest(), root.topics["t"].id, 1).lost
        assert (lost.first_offset, lost.last_offset, lost.object_key, lost.decided_by) == (3, 5, KEY, "an operator")
        assert "checksum" in lost.reason
        assert lost.decided_ms > 0
        shown = (await checkpoint_report(store, 1, None)).tables
        assert [row["by"] for table in shown if table.name == "given_up" for row in table.rows] == ["an operator"]
        assert (await root.newest()).trim_slot == 5, "nothing is held back any more"
        checked = await check_root(root.store, root.cluster, run_blocking=run_inline)
        assert checked.worst is not Severity.DAMAGE
        assert [problem.object_key for problem in checked.problems if problem.code == "GIVEN_UP"] == [KEY]
        await root.produce("t", (1, [b"d"]))
        await root.compact()
        assert (await rows_of(root))[9:] == [b"d"]


async def headers_of(root: Root) -> list[Any]:
    import io

    import pyarrow.parquet as pq

    found: dict[int, Any] = {}
    for key in [key for key in await parquet_keys(root.store) if "/partition=1/" in key]:
        for row in pq.ParquetFile(io.BytesIO(await root.store.get(key))).read().to_pylist():
            found[row["offset"]] = [(header["key"], header["value"]) for header in row["headers"] or ()]
    return [found[offset] for offset in sorted(found)]


async def test_an_object_that_comes_back_after_all_is_read(sources: Sources) -> None:
    """Given up, and put back before the round: what can be read is written."""
    async with memory_store() as store:
        root, healthy = await parked_root(store, sources)
        assert await repair_partition(store, root.cluster, await found_in(root), sources)
        await put_back(store, healthy)
        await root.compact()
        assert await rows_of(root) == root.produced["t", 1]


async def test_another_batch_than_the_one_given_up_parks_again(sources: Sources) -> None:
    async with memory_store() as store:
        root, _ = await parked_root(store, sources)
        assert await repair_partition(store, root.cluster, await found_in(root), sources)
        other = keys.segment(1, SLOT + 1)
        entry = next(e for e in (await read_index(store, 1, SLOT + 1)).index.batches if e.partition == 1)
        data = bytearray(await store.get(other))
        data[entry.position + entry.length // 2] ^= 0xFF
        await store.delete([other])
        await store.put_if_absent(other, [bytes(data)])
        assert [parked.object_key for parked in (await root.compact()).parked] == [other]
        assert [each.object_key for each in (await found_in(root)).damaged] == [other], "the first has been decided"
        assert await repair_partition(store, root.cluster, await found_in(root), sources)
        await root.compact()
        assert await rows_of(root) == [b"a"] * 3 + [None] * 6


async def test_a_second_repair_and_one_of_an_old_look_change_nothing(sources: Sources) -> None:
    async with memory_store() as store:
        root, _ = await parked_root(store, sources)
        first, second = await found_in(root), await found_in(root)
        outcomes = await asyncio.gather(
            *(repair_partition(store, root.cluster, each, sources) for each in (first, second))
        )
        assert sorted(outcomes) == [False, True]
        assert len(partition_of(await root.newest(), root.topics["t"].id, 1).lost) == 1
        assert await find_parked(store, root.cluster, run_inline) == []


async def test_a_repair_in_a_checkpoint_that_is_never_read_is_made_again(sources: Sources) -> None:
    """It stood in a checkpoint under a number that was free again."""
    async with memory_store() as store:
        root, _ = await parked_root(store, sources)
        late = LateCheckpoint(
            root, lambda checkpoint: not any(part.HasField("parked") for part in checkpoint.partitions)
        )
        assert await repair_partition(late, root.cluster, await found_in(root), sources)
        assert late.came_late
        assert len(partition_of(await root.newest(), root.topics["t"].id, 1).lost) == 1
        assert await find_parked(store, root.cluster, run_inline) == []


async def test_a_missing_segment_is_never_given_up(sources: Sources) -> None:
    async with memory_store() as store:
        root, _ = await parked_root(store, sources)
        before = (await root.newest()).number
        await store.delete([KEY])
        with pytest.raises(DataDamaged, match="slot 3 is missing"):
            await find_parked(store, root.cluster, run_inline)
        assert (await root.newest()).number == before


def test_the_command(tmp_path: Path) -> None:
    async def prepare() -> None:
        async with file_store(tmp_path) as store:
            await parked_root(store, Sources())

    async def compact() -> list[bytes | None]:
        async with file_store(tmp_path) as store:
            root = Root(store, Sources(), (await Root.open(store, Sources())).cluster)
            await root.compact()
            return await rows_of(root)

    asyncio.run(prepare())
    run = RootCommand(repair_command)
    code, shown = run.json(tmp_path)
    assert (code, [(row["topic"], row["offsets"], row["outcome"]) for row in shown["partitions"]]) == (
        ExitCode.DAMAGED,
        [("t", "3-5", "damaged")],
    )
    only = ("--topic", "t", "--partition", "1", "--skip")
    code, shown = run.json(tmp_path, *only, "--dry-run")
    assert (code, [row["outcome"] for row in shown["partitions"]]) == (ExitCode.OK, ["would be given up"])
    assert run(tmp_path, "--skip")[0] == ExitCode.USAGE, "one partition has to be named"
    assert run(tmp_path, *only)[0] == ExitCode.ERROR, "no answer came to the question"
    code, shown = run.json(tmp_path, *only, "--yes", "--by", "me")
    assert (code, [(row["records"], row["outcome"]) for row in shown["partitions"]]) == (
        ExitCode.OK,
        [(3, "given up, and taken up again")],
    )
    assert asyncio.run(compact()) == [b"a"] * 3 + [None] * 3 + [b"c"] * 3
    code, shown = run.json(tmp_path)
    assert (code, shown["parked"]) == (ExitCode.OK, 0)
