"""What a cut names, copied, is a whole cluster: it can be checked, read and written on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from ledgermq.errors import DataDamaged, InvalidConfig, InvalidRequest
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import open_cluster, read_cluster
from ledgermq_ledger.cuts.reading.root import open_named
from ledgermq_ledger.fsck.check import check_root
from ledgermq_ledger.fsck.problem import Severity
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from tests.unit.cuts.test_pins import VALUES, a_cut_with_a_life_after_it
from tests.virtual_time import virtual, virtual_sources
from tests.worlds.cuts import end_attempt, take_cut
from tests.worlds.reading import opened_ledger, read_to_end
from tests.worlds.restoring import back_up_into, restore_into
from tests.worlds.roots import Root, read_parquet_rows
from tests.worlds.set_tables import a_root, make_round

T = TypeVar("T")


async def copied(root: Root, store: MemoryStore | None = None) -> MemoryStore:
    target = store or MemoryStore("copy", virtual_sources(5))
    await back_up_into(root.store, "c", target)
    return target


@virtual
async def test_a_copy_of_a_cut_is_a_cluster_that_goes_on() -> None:
    root = await a_root(has_table=False)
    await a_cut_with_a_life_after_it(root)
    target = await copied(root)
    assert await target.get(keys.CLUSTER) == await root.store.get(keys.CLUSTER)
    checked = await check_root(target, root.cluster)
    assert checked.worst in (None, Severity.NOTE), checked.problems
    plain = await read_parquet_rows(target)
    assert [plain["t", 0][offset] for offset in range(4)] == VALUES[:4], "held files are files of the log again"
    copy = Root(target, root.sources, root.cluster)
    copy.topics = dict(root.topics)
    await copy.produce("t", (0, [b"more"]))
    assert not (await copy.compact()).failures
    ledger = await opened_ledger(target)
    assert await read_to_end(ledger.reader, PartitionId(root.topics["t"].id, 0)) == dict(enumerate([*VALUES, b"more"]))
    assert not (await copy.newest()).pins


@virtual
async def test_a_copy_that_was_broken_off_is_continued() -> None:
    root = await a_root(has_table=False)
    await a_cut_with_a_life_after_it(root)
    whole = await copied(root)
    listed = [info.key async for info in whole.list("")]
    part = MemoryStore("part", virtual_sources(6))
    for key in {*listed[: len(listed) // 2], keys.RESTORE} - {keys.CLUSTER}:
        await part.put(key, await whole.get(key))
    await copied(root, part)
    assert [info.key async for info in part.list("")] == listed


@virtual
async def test_brokers_refuse_a_copy_that_was_broken_off_and_name_the_remedy() -> None:
    root = await a_root(has_table=False)
    await a_cut_with_a_life_after_it(root)
    whole, part = await copied(root), MemoryStore("part", virtual_sources(6))
    for key in [info.key async for info in whole.list("")]:
        if key != keys.CLUSTER:
            await part.put(key, await whole.get(key))
    for wanted in (None, root.cluster.cluster_id):
        with pytest.raises(
            InvalidConfig, match=r"copy of cut 'c' \(\d+\) of .* is not complete: repeat `ledgermq backup …`"
        ):
            await open_cluster(part, virtual_sources(8), cluster_id=wanted)
    assert keys.CLUSTER not in [info.key async for info in part.list("")]
    await copied(root, part)
    assert await open_cluster(part, virtual_sources(8), cluster_id=root.cluster.cluster_id) == root.cluster


@virtual
async def test_a_copy_that_is_done_is_left_alone() -> None:
    """Brokers that were started on it may have deleted what is missing, and own its bundles."""
    root = await a_root(has_table=False)
    await a_cut_with_a_life_after_it(root)
    target = await copied(root)
    [lost, *_] = [info.key async for info in target.list(keys.PARQUET)]
    await target.delete([lost])
    before = {info.key: await target.get(info.key) async for info in target.list("")}
    assert (await back_up_into(root.store, "c", target)).copied is None
    assert {info.key: await target.get(info.key) async for info in target.list("")} == before


@virtual
async def test_a_backup_and_a_restore_never_continue_each_other() -> None:
    root, target, other = await a_root(has_table=False), MemoryStore("one"), MemoryStore("two")
    await make_round(root)
    await take_cut(root)
    await copied(root, target)
    with pytest.raises(InvalidRequest, match=r"cut 'c' \(\d+\) of cluster \w+ is backed up there; give an empty root"):
        await restore_into(root.store, "c", target)
    await restore_into(root.store, "c", other)
    with pytest.raises(InvalidRequest, match=r"cut 'c' \(\d+\) of cluster \w+ is restored there; give an empty root"):
        await copied(root, other)
    again = MemoryStore("three", virtual_sources(7))
    restored = Root(other, root.sources, await read_cluster(other))
    await end_attempt(restored, "c")
    await take_cut(restored, "d")
    await back_up_into(other, "d", again)
    assert await read_cluster(again) == restored.cluster, "a restored cluster is backed up with its ids"


class Died(Exception):
    pass


class DyingStore(StoreWrapper):
    """The process dies at operation number `left` on this store, before or after its effect."""

    def __init__(self, inner: ObjectStore, left: int, *, has_effect: bool) -> None:
        super().__init__(inner)
        self.left = left
        self._has_effect = has_effect

    async def run(self, operation: str, what: str, bytes_known: int, step: Callable[[], Awaitable[T]]) -> T:
        self.left -= 1
        if self.left < 0 and not (self.left == -1 and self._has_effect):
            raise Died
        done = await step()
        if self.left < 0:
            raise Died
        return done


@pytest.mark.parametrize("has_effect", [False, True])
@virtual
async def test_a_copy_that_dies_at_any_operation_is_no_cluster_and_is_continued(has_effect: bool) -> None:
    root = await a_root(has_table=False)
    await a_cut_with_a_life_after_it(root)
    whole = await copied(root)
    listed = {info.key: await whole.get(info.key) async for info in whole.list("")}
    operation, is_whole = 0, False
    while not is_whole:
        target = MemoryStore(f"copy {operation}", virtual_sources(6))
        try:
            await back_up_into(root.store, "c", DyingStore(target, operation, has_effect=has_effect))
            is_whole = True
        except* Died:
            is_cluster = [info.key async for info in target.list(keys.CLUSTER)]
            assert not is_cluster or len([info async for info in target.list("")]) == len(listed)
            await copied(root, target)
        assert {info.key: await target.get(info.key) async for info in target.list("")} == listed
        operation += 1
    assert operation > len(listed), "each object is at least one operation"


@virtual
async def test_a_root_that_is_used_is_refused() -> None:
    root, other = await a_root(has_table=False), MemoryStore("used", virtual_sources(5))
    await a_cut_with_a_life_after_it(root)
    await other.put(keys.CLUSTER, b"{}")
    with pytest.raises(InvalidRequest, match=r"in use: there is cluster\.json; give an empty root"):
        await copied(root, other)
    with pytest.raises(InvalidRequest, match="it lies in the root"):
        await copied(root, root.store)  # type: ignore[arg-type]


@virtual
async def test_a_cut_that_is_not_whole_is_not_copied() -> None:
    root = await a_root(has_table=False)
    await a_cut_with_a_life_after_it(root)
    at = await open_named(root.store, root.cluster, "c")
    lost = keys.segment(1, at.store.cut.bundles[1].slot)
    await root.store.delete([lost])
    target = MemoryStore("copy", virtual_sources(5))
    with pytest.raises(DataDamaged, match="the cut needs it"):
        await copied(root, target)
    assert [info.key async for info in target.list(keys.CLUSTER)] == [], "it is no cluster"
