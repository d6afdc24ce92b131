"""A cut that is restored is a new cluster, which goes on; what breaks a restore off loses nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from ledgermq.errors import (
    DataDamaged,
    InvalidConfig,
    InvalidRequest,
    LedgerMQError,
    UnknownCut,
)
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import (
    RESTORED_VERSION,
    ClusterSettings,
    encode_cluster,
    mark_grown,
    open_cluster,
    read_cluster,
    read_note,
)
from ledgermq_ledger.cuts.reading.restore import Restored
from ledgermq_ledger.fsck.check import check_root
from ledgermq_ledger.fsck.problem import Severity
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from tests.unit.cuts.test_backup import Died, DyingStore
from tests.unit.cuts.test_pins import VALUES, a_cut_with_a_life_after_it
from tests.virtual_time import virtual, virtual_sources
from tests.worlds.cuts import drop_cut, end_attempt, end_cuts, take_cut
from tests.worlds.reading import opened_ledger, read_to_end
from tests.worlds.restoring import restore_into, root_of
from tests.worlds.roots import cluster_with, read_parquet_rows
from tests.worlds.set_tables import a_root, make_round


def empty(name: str = "new") -> MemoryStore:
    return MemoryStore(name, virtual_sources(5))


async def objects_of(store: ObjectStore) -> dict[str, bytes]:
    return {info.key: await store.get(info.key) async for info in store.list("")}


async def check_clean(store: ObjectStore) -> None:
    checked = await check_root(store, await read_cluster(store))
    assert checked.worst in (None, Severity.NOTE), checked.problems


# What a restored root is


@virtual
async def test_a_restored_cut_is_a_new_cluster_that_goes_on() -> None:
    root, target = await a_root(has_table=False), empty()
    await a_cut_with_a_life_after_it(root)
    before = await objects_of(root.store)
    done = await restore_into(root.store, "c", target)
    assert await objects_of(root.store) == before, "the source is read only"
    assert done.cluster == await read_cluster(target)
    assert done.cluster.cluster_id != root.cluster.cluster_id
    assert (done.cluster.format_version, done.cluster.former_ids) == (RESTORED_VERSION, (root.cluster.cluster_id,))
    await check_clean(target)
    plain = await read_parquet_rows(target)
    assert [plain["t", 0][offset] for offset in range(4)] == VALUES[:4], "held files are files of the log again"
    new = root_of(done, target, root)
    await new.produce("t", (0, [b"more"]))
    for _ in range(2):
        await make_round(new)
    await check_clean(target)
    ledger = await opened_ledger(target)
    rows = await read_to_end(ledger.reader, PartitionId(root.topics["t"].id, 0))
    assert list(rows.values()) == [*VALUES, b"more", b"a", b"b", b"a", b"b"]
    assert not (await new.newest()).pins


@virtual
async def test_a_restored_cluster_is_restored_again() -> None:
    root, first, second = await a_root(has_table=False), empty("first"), empty("second")
    await make_round(root)
    await take_cut(root)
    new = root_of(await restore_into(root.store, "c", first), first, root)
    await end_attempt(new, "c")
    await make_round(new)
    await take_cut(new, "d")
    done = await restore_into(first, "d", second)
    assert done.cluster.former_ids == (root.cluster.cluster_id, new.cluster.cluster_id)
    await make_round(root_of(done, second, root))
    await check_clean(second)
    assert [len(rows) for rows in (await read_parquet_rows(second)).values()] == [6, 6]


@virtual
async def test_added_bundles_come_along_and_more_may_be_added() -> None:
    root, target = await a_root(has_table=False), empty()
    await root.add_bundles(5)
    root.cluster = replace(await read_cluster(root.store), bundles=3)
    await make_round(root)
    await take_cut(root)
    done = await restore_into(root.store, "c", target)
    assert done.cluster.format_version == RESTORED_VERSION
    new = root_of(done, target, root)
    assert (await new.catalog()).bundles(new.cluster) == 5
    before = await target.get(keys.CLUSTER)
    await mark_grown(target, new.cluster)
    assert await target.get(keys.CLUSTER) == before, "its version says all that version 2 says"
    await new.add_bundles(6)
    await check_clean(target)


@virtual
async def test_what_was_deleted_after_the_cut_is_there_again() -> None:
    root, target = await a_root(has_table=False), empty()
    await make_round(root)
    await take_cut(root)
    await root.remove_topic("t")
    for _ in range(3):
        assert not (await root.compact()).failures
        await asyncio.sleep(21)
    done = await restore_into(root.store, "c", target)
    assert {topic.name for topic in (await root_of(done, target, root).catalog()).living_topics()} >= {"t"}
    assert [list(rows.values()) for rows in (await read_parquet_rows(target)).values()] == [[b"a", b"b"]] * 2
    await check_clean(target)


@virtual
async def test_files_of_a_third_cluster_are_foreign_in_a_restored_one() -> None:
    root, target = await a_root(has_table=False), empty()
    await make_round(root)
    await take_cut(root)
    done = await restore_into(root.store, "c", target)
    own = encode_cluster(done.cluster)
    await target.put(keys.CLUSTER, cluster_with(own, former_ids=["c" * 32]))
    found = await check_root(target, await read_cluster(target))
    assert [problem.code for problem in found.problems] == ["CONTRADICTED"]
    await target.put(keys.CLUSTER, own)
    await check_clean(target)


# How it is broken off, and refused


@pytest.mark.parametrize("has_effect", [False, True])
@virtual
async def test_a_restore_that_dies_at_any_operation_is_no_cluster_and_is_continued(has_effect: bool) -> None:
    root, whole = await a_root(has_table=False), empty("whole")
    await a_cut_with_a_life_after_it(root)
    await restore_into(root.store, "c", whole)
    listed = (await objects_of(whole)).keys()
    operation, is_whole = 0, False
    while not is_whole:
        target = empty(f"copy {operation}")
        try:
            await restore_into(root.store, "c", DyingStore(target, operation, has_effect=has_effect))
            is_whole = True
        except* Died:
            left = (await objects_of(target)).keys()
            assert keys.CLUSTER not in left or left == listed
            if left and keys.CLUSTER not in left:
                assert keys.RESTORE in left, "what it is stands before all else"
                with pytest.raises(InvalidConfig, match="repeat `ledgermq restore …`"):
                    await open_cluster(target, virtual_sources(8))
            await restore_into(root.store, "c", target, seed=32)
        assert (await objects_of(target)).keys() == listed
        note = await read_note(target)
        assert note is not None
        assert note.cluster == await open_cluster(target, virtual_sources(8))
        operation += 1
    assert operation > len(listed), "each object is at least one operation"
    await check_clean(target)


@virtual
async def test_a_restore_that_is_done_does_nothing_and_two_at_once_make_one_cluster() -> None:
    root, target = await a_root(has_table=False), empty()
    await a_cut_with_a_life_after_it(root)
    both = await asyncio.gather(*(restore_into(root.store, "c", target, seed) for seed in (41, 42)))
    assert len({done.cluster.cluster_id for done in both}) == 1
    await check_clean(target)
    [lost, *_] = [info.key async for info in target.list(keys.PARQUET)]
    await target.delete([lost])
    before = await objects_of(target)
    again = await restore_into(root.store, "c", target)
    assert again.copied is None
    assert await objects_of(target) == before, "brokers may have deleted what is missing"


@virtual
async def test_a_root_that_is_used_is_refused_and_stays_as_it_is() -> None:
    root = await a_root(has_table=False)
    await take_cut(root)
    for key in (keys.CLUSTER, "notes.txt", "brokers/b.json"):
        other = empty("other")
        await other.put(key, b"{}")
        with pytest.raises(InvalidRequest, match=f"in use: there is {key}; give an empty root"):
            await restore_into(root.store, "c", other)
        assert await objects_of(other) == {key: b"{}"}
    with pytest.raises(InvalidRequest, match="it lies in the root"):
        await restore_into(root.store, "c", root.store)
    inside = MemoryStore(f"{root.store.url.removeprefix('memory://')}/inside", virtual_sources(5))
    with pytest.raises(InvalidRequest, match="it lies in the root"):
        await restore_into(root.store, "c", inside)


@virtual
async def test_another_cut_is_not_restored_into_the_same_root() -> None:
    root, target = await a_root(has_table=False), empty()
    await take_cut(root)
    await take_cut(root, "d")
    await restore_into(root.store, "c", target)
    before = await objects_of(target)
    with pytest.raises(InvalidRequest, match=r"cut 'c' \(\d+\) of cluster \w+ is restored there"):
        await restore_into(root.store, "d", target)
    assert await objects_of(target) == before


class Between(DyingStore):
    """Runs something right before operation number `left`."""

    def __init__(self, inner: ObjectStore, left: int, act: object) -> None:
        super().__init__(inner, left, has_effect=False)
        self._act = act

    async def run(self, operation, what, bytes_known, step):  # type: ignore[no-untyped-def]
        self.left -= 1
        if self.left == -1:
            await self._act()  # type: ignore[operator]
        return await step()


@virtual
async def test_a_broker_that_starts_on_the_empty_root_meanwhile_and_the_restore_never_both_go_on() -> None:
    """At each operation of either: both orders of the two."""
    root = await a_root(has_table=False)
    await make_round(root)
    await take_cut(root)
    seen, refused = set[tuple[bool, bool]](), list[LedgerMQError]()
    for operation in range(60):
        target = empty(f"new {operation}")
        results: list[ClusterSettings | Restored] = []

        async def begin(target: MemoryStore = target, results: list[ClusterSettings | Restored] = results) -> None:
            try:
                results.append(await open_cluster(target, virtual_sources(8)))
            except InvalidConfig as error:
                refused.append(error)

        try:
            results.append(await restore_into(root.store, "c", Between(target, operation, begin)))
        except InvalidRequest as error:
            refused.append(error)
        ids = {each.cluster.cluster_id if isinstance(each, Restored) else each.cluster_id for each in results}
        assert len(ids) <= 1
        seen.add((any(isinstance(each, Restored) for each in results), len(results) == 2))
    for operation in range(8):
        target = empty(f"other {operation}")
        done: list[Restored] = []

        async def run(target: MemoryStore = target, done: list[Restored] = done) -> None:
            try:
                done.append(await restore_into(root.store, "c", target))
            except InvalidRequest as error:
                refused.append(error)

        try:
            cluster = await open_cluster(Between(target, operation, run), virtual_sources(8))
            assert not done or done[0].cluster == cluster
        except InvalidConfig as error:
            refused.append(error)
    texts = ("is not complete: repeat `ledgermq restore …`, or use another root", "give an empty root")
    assert all(any(text in error.message for text in texts) for error in refused), refused
    assert seen >= {(True, False), (False, False)}


@virtual
async def test_a_cut_that_is_dropped_meanwhile_ends_the_restore_by_name() -> None:
    root = await a_root(has_table=False)
    await a_cut_with_a_life_after_it(root)

    async def drop() -> None:
        await drop_cut(root)
        await end_cuts(root)
        for _ in range(2):
            await make_round(root)
            await asyncio.sleep(21)

    target = empty()
    with pytest.raises(UnknownCut, match=r"cut 'c' was dropped, .* keep a cut until then"):
        await restore_into(Between(root.store, 20, drop), "c", target)
    assert keys.CLUSTER not in await objects_of(target)
    with pytest.raises(UnknownCut, match="take another one"):
        await restore_into(root.store, "c", target)


@virtual
async def test_a_cut_that_is_not_whole_is_not_restored() -> None:
    root, target = await a_root(has_table=False), empty()
    await make_round(root)
    await take_cut(root)
    [lost, *_] = [info.key async for info in root.store.list(keys.PARQUET)]
    await root.store.delete([lost])
    with pytest.raises(DataDamaged, match="the cut needs it"):
        await restore_into(root.store, "c", target)
    assert keys.CLUSTER not in await objects_of(target)
