"""A damaged `cluster.json`: each bit of a file with a checksum counts, and one without is held
against the rest of its root.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from ledgermq.errors import DataDamaged
from ledgermq.sources import Sources
from ledgermq_broker.broker import Broker
from ledgermq_broker.ports.in_process import InProcessConnector, Network
from ledgermq_broker.settings.processes import load_settings
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.cluster import CHECKSUM, ClusterSettings, decode_cluster, open_cluster, read_cluster
from ledgermq_ledger.fsck.check import Checked, check_root
from ledgermq_ledger.fsck.cluster_fit import check_fit, contradictions
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.runner import compact_root
from ledgermq_tools.ledger import fsck, gc
from tests.stores.backends import file_store, memory_store
from tests.worlds.filled_root import fill_root
from tests.worlds.ledgers import own
from tests.worlds.root_commands import RootCommand

OLD = Path(__file__).parents[2] / "golden" / "cluster-v1.json"
WITH_CHECKSUM = Path(__file__).parents[2] / "golden" / "cluster-checksum-v1.json"


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


async def test_every_flipped_bit_is_refused(sources: Sources) -> None:
    """Those in the name of the checksum's field as well, and those in the version: they name the
    damage, not a newer format.
    """
    async with memory_store() as store:
        await open_cluster(store, sources)
        data = await store.get(keys.CLUSTER)
    assert decode_cluster(data).has_checksum
    assert len(data) > 240
    for bit in range(8 * len(data)):
        with pytest.raises(DataDamaged, match=rf"^{keys.CLUSTER}: ") as refused:
            pytest.fail(f"bit {bit}: {decode_cluster(flipped(data, bit))}")
        assert refused.value.object_key == keys.CLUSTER


def test_the_golden_file_with_a_checksum_is_read_for_ever() -> None:
    cluster = decode_cluster(WITH_CHECKSUM.read_bytes())
    assert cluster == ClusterSettings(3, 1000, 5000, 20000, cluster_id="ab" * 16, created_ms=1)
    assert cluster.has_checksum


async def test_processes_from_before_checksums_read_the_file(sources: Sources) -> None:
    """They take eight fields by their names, of format version 1, and pass over the others."""
    async with memory_store() as store:
        cluster = await open_cluster(store, sources)
        found = json.loads(await store.get(keys.CLUSTER))
    assert found.keys() - {CHECKSUM} == json.loads(OLD.read_bytes()).keys()
    assert (found["format"], found["format_version"]) == ("ledgermq", 1)
    fields = {name: value for name, value in asdict(cluster).items() if name not in ("has_checksum", "former_ids")}
    assert {name: found[name] for name in fields} == fields
    assert "former_ids" not in found, "only restored clusters have it"


def test_fields_that_a_later_release_adds_are_covered() -> None:
    """And refused without a checksum: no release writes such a file."""
    found = json.loads(WITH_CHECKSUM.read_bytes())
    with pytest.raises(DataDamaged, match="checksum"):
        decode_cluster(json.dumps(found | {"later": 1}).encode())
    with pytest.raises(DataDamaged, match="later"):
        decode_cluster(json.dumps(json.loads(OLD.read_bytes()) | {"later": 1}).encode())


async def rewrite(
    store: ObjectStore, change: Callable[[dict[str, Any]], object] = lambda found: None
) -> ClusterSettings:
    """`cluster.json` as it was written before there were checksums, and changed."""
    found = json.loads(await store.get(keys.CLUSTER))
    found.pop(CHECKSUM, None)
    change(found)
    await store.delete([keys.CLUSTER])
    await store.put_if_absent(keys.CLUSTER, [json.dumps(found, indent=2).encode()])
    return await read_cluster(store)


@pytest.fixture
async def root(tmp_path: Path) -> Path:
    """Three bundles that are all claimed, a topic in segments and in Parquet."""
    folder, sources = tmp_path / "root", Sources()
    await fill_root(folder)
    async with file_store(folder) as store:
        await own(store, sources, "a", 2)
        assert not (await compact_root(store, sources, LocalEngine(sources, run_inline))).failures
    return folder


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "too few bundles": (lambda found: found.update(bundles=2), "there is ledgers/0002/"),
    "too many bundles": (lambda found: found.update(bundles=4), "ledgers/0003/ is empty"),
    "far too many bundles": (lambda found: found.update(bundles=35), "ledgers/0034/ is empty"),
    "another cluster": (lambda found: found.update(cluster_id="0" * 32), "was written by cluster"),
}


@pytest.mark.parametrize("name", CHANGES)
async def test_what_the_root_contradicts_is_refused_and_named(root: Path, name: str) -> None:
    change, text = CHANGES[name]
    async with file_store(root) as store:
        before = await rewrite(store)
        assert await contradictions(store, before) == []
        whole = await check(store, before)
        cluster = await rewrite(store, change)
        with pytest.raises(DataDamaged, match=text) as refused:
            await check_fit(store, cluster)
        assert refused.value.object_key == keys.CLUSTER
        found = await check(store, cluster)
        assert {problem.object_key for problem in found.problems} == {keys.CLUSTER}, (
            "no innocent object is called damaged"
        )
        assert all(text in problem.text for problem in found.problems)
        assert [problem.code for problem in whole.problems] == ["NO_CHECKSUM"]


async def check(store: ObjectStore, cluster: ClusterSettings) -> Checked:
    return await check_root(store, cluster, run_blocking=run_inline)


async def test_a_broker_does_not_start_on_it_and_commands_write_nothing(root: Path) -> None:
    async with file_store(root) as store:
        await rewrite(store, CHANGES["too many bundles"][0])
        before = sorted([info.key async for info in store.list("")])
        with pytest.raises(DataDamaged, match=r"cluster\.json"):
            await Broker.start(store, Sources(), load_settings(None), "a:1", InProcessConnector(Network()), run_inline)
        assert sorted([info.key async for info in store.list("")]) == before
    code, found = await asyncio.to_thread(RootCommand(fsck).json, root)
    assert (code, [problem["object_key"] for problem in found["problems"]]) == (6, [keys.CLUSTER])
    code, _, errors = await asyncio.to_thread(RootCommand(gc), root)
    assert (code, keys.CLUSTER in errors) == (6, True)


async def test_the_object_that_is_put_back_is_taken(root: Path) -> None:
    """As docs/operations.md says."""
    async with file_store(root) as store:
        whole = await store.get(keys.CLUSTER)
        await rewrite(store, CHANGES["too few bundles"][0])
        await store.delete([keys.CLUSTER])
        await store.put_if_absent(keys.CLUSTER, [whole])
        assert (await check(store, await read_cluster(store))).problems == []


async def test_a_whole_file_of_another_cluster_is_told_by_fsck(root: Path, sources: Sources) -> None:
    other = MemoryStore("other", sources)
    await open_cluster(other, sources)
    async with file_store(root) as store:
        await store.delete([keys.CLUSTER])
        await store.put_if_absent(keys.CLUSTER, [await other.get(keys.CLUSTER)])
        found = await check(store, await read_cluster(store))
        assert {(problem.object_key, problem.code) for problem in found.problems} == {(keys.CLUSTER, "CONTRADICTED")}


async def test_a_cluster_that_begins_just_now_is_no_contradiction(sources: Sources) -> None:
    """A process from before checksums has made it, and some bundles are not claimed yet."""
    async with memory_store() as store:
        await open_cluster(store, sources)
        cluster = await rewrite(store)
        await store.put_if_absent(keys.segment(0, 1), [b"the first claim"])
        await check_fit(store, cluster)


@pytest.mark.parametrize("damaged", ["checkpoints", "files", "segments"])
async def test_a_damaged_object_says_nothing_of_the_cluster(root: Path, damaged: str) -> None:
    """It is named by its own check."""
    for path in (root / "ledgers").glob(f"*/{damaged}/*"):
        path.write_bytes(b"damaged")
    async with file_store(root) as store:
        cluster = await rewrite(store)
        await check_fit(store, cluster)
        assert keys.CLUSTER not in {
            p.object_key for p in (await check(store, cluster)).problems if p.code != "NO_CHECKSUM"
        }
