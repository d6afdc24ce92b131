"""Keyed partitions that have moved: cleaning goes on in the new bundle, and in the old one nothing does, whatever a
process knew that slept over the move.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import pytest

from ledgermq.errors import Unavailable
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.fsck.check import check_root
from ledgermq_ledger.fsck.problem import Severity
from ledgermq_ledger.garbage.sweep import collect_garbage, sweep, tidy_keyed
from ledgermq_ledger.garbage.topics.retention import deletion_move
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import bundle_of, newest_checkpoint, partition_of
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.object_store.contract import Buffer
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from ledgermq_ledger.parquet.pages import PageReader
from ledgermq_ledger.rounds.runner import compact_bundle
from tests.stores.one_put import OnePut
from tests.worlds.damage import damage_checkpoint
from tests.worlds.keyed_root import HOUR_MS, Keyed
from tests.worlds.keyed_topics import read_plain_log
from tests.worlds.ledgers import ledger_of
from tests.worlds.reading import opened_ledger
from tests.worlds.roots import parquet_keys

OLD, NEW = 1, 2
AGED_HOURS = 0.02
PLANS = 5
LOG = keys.parquet_partition("t", 0)


async def opened(**settings: str) -> Keyed:
    return await Keyed.open(bundles=3, **settings)


async def in_versions(**settings: str) -> Keyed:
    """Offsets 0 to 2 are in a version, and nothing else is left of them; then offset 3 came."""
    keyed = await opened(**settings)
    await keyed.put((b"a", b"1"), (b"b", b"2"), (b"c", b"3"))
    await keyed.compact()
    assert await keyed.clean() == 1
    keyed.wait(AGED_HOURS)
    await keyed.clean()
    assert not await parquet_keys(keyed.root.store)
    await keyed.put((b"a", b"4"))
    return keyed


async def read(keyed: Keyed) -> list[int]:
    """Offsets, as the ledger shows them that has those below the log."""
    key, found = PartitionId(keyed.topic.id, 0), list[int]()
    bundle = bundle_of(await keyed.root.newest(keyed.bundle), key, 0)
    reader = (await opened_ledger(keyed.root.store, bundle)).reader
    offset = reader.log_start(key)
    while batches := await reader.read(key, offset):
        found += [at for batch in batches for at in range(batch.base_offset, batch.end)]
        offset = batches[-1].end
    return found


async def check_root_of(keyed: Keyed) -> None:
    """`ledgermq fsck` finds nothing damaged."""
    found = await check_root(keyed.root.store, keyed.root.cluster, run_blocking=run_inline)
    assert [problem for problem in found.problems if problem.severity is Severity.DAMAGE] == []


async def plans_before_it_comes(keyed: Keyed) -> None:
    """Several plans of the new bundle are finished for long, so their numbers are above those of the old one."""
    other = await keyed.root.create_topic("other", 1, NEW)
    for _ in range(PLANS):
        await keyed.root.produce(other.name, (0, [b"x"]))
        assert not (await keyed.root.compact()).failures
    keyed.wait(AGED_HOURS)


async def test_a_version_and_the_log_above_it_go_on_in_each_bundle() -> None:
    keyed = await in_versions(cleanup_policy="compact")
    for bundle in (NEW, OLD, NEW):
        await keyed.move(bundle)
        assert await read(keyed) == [*await keyed.offsets(), len(keyed.written.rows) - 1]
        await keyed.compact()
        assert await keyed.clean() == 1
        keyed.wait(AGED_HOURS)
        await keyed.clean()
        keyed.wait(AGED_HOURS)
        await keyed.clean()
        assert not await parquet_keys(keyed.root.store), "files of either bundle have gone"
        latest = keyed.written.latest(len(keyed.written.rows))
        assert await keyed.offsets() == await read(keyed) == sorted(row.offset for row in latest.values())
        await check_root_of(keyed)
        await keyed.put((b"b", b"in %d" % bundle))


async def test_the_age_of_what_cleaning_replaced_counts_from_the_takeover_and_not_by_the_numbers_in_names() -> None:
    keyed = await opened(cleanup_policy="compact")
    await plans_before_it_comes(keyed)
    await keyed.put((b"a", b"1"), (b"a", b"2"))
    await keyed.compact()
    assert await keyed.clean() == 1
    keyed.wait(AGED_HOURS)  # old enough by the version, and by the plan of the bundle that made the file
    await keyed.move(NEW)
    made = await parquet_keys(keyed.root.store, LOG)
    assert len(made) == 1
    [listed] = await listed_in(keyed, NEW)
    assert listed.plan > PLANS
    assert await keyed.clean() == 0
    assert await parquet_keys(keyed.root.store, LOG) == made, "its plan here is young"
    keyed.wait(AGED_HOURS)
    for _ in range(2):
        await keyed.clean()
        keyed.wait(AGED_HOURS)
    assert await parquet_keys(keyed.root.store, LOG) == []
    assert await read(keyed) == [1]


async def listed_in(keyed: Keyed, bundle: int) -> list[fmt.ParquetFile]:
    counters = partition_of(await newest_checkpoint(keyed.root.store, bundle), keyed.topic.id, 0)
    return list(await PageReader(keyed.root.store, bundle).files_from(counters, 0))


# Processes that know less


async def test_a_catalog_of_before_the_move_cleans_nothing_at_any_step() -> None:
    keyed = await in_versions(cleanup_policy="compact")
    root, old = keyed.root, await keyed.root.catalog()
    await keyed.compact()
    await root.decide_move("t", 0, NEW)
    await root.seal("t", 0)
    before = [*await keyed.objects(), *await parquet_keys(root.store)]
    await root.open_moved("t", 0)
    for bundle in (OLD, OLD, NEW, OLD, OLD):  # drained and frozen, taken over, forgotten
        keyed.wait(2)
        await compact_bundle(keyed.compaction(), bundle, await root.catalog(), everything=True)
        assert await keyed.clean(old) == 0
        assert set(before) <= {*await keyed.objects(), *await parquet_keys(root.store)}
        assert await read(keyed) == [0, 1, 2, 3]
        await check_root_of(keyed)
    await root.end_move("t", 0)
    keyed.topic = root.topics["t"]
    assert await keyed.clean() == 1
    assert await keyed.offsets() == [1, 2, 3]


class MovedMeanwhile(OnePut):
    """The partition moves just before an object below a folder is put, and the setting is put in force there."""

    def __init__(self, keyed: Keyed, folder: str, **settings: str) -> None:
        super().__init__(keyed.root.store)
        self._keyed = keyed
        self._folder = folder
        self._settings = settings

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        folder, self._folder = self._folder, "/nothing/" if self._folder in key else self._folder
        if folder in key:
            await self._keyed.move(NEW)
            await self._keyed.alter(**self._settings)
        await self.inner.put_if_absent(key, buffers)


async def test_a_round_of_before_the_move_sees_it_before_it_publishes() -> None:
    keyed = await in_versions(cleanup_policy="compact")
    old = await keyed.root.catalog()
    await keyed.compact()
    assert await keyed.clean(old, MovedMeanwhile(keyed, "/files/", legal_hold="true")) == 0
    assert await keyed.offsets() == [0, 1, 2]
    assert await read(keyed) == [0, 1, 2, 3]


async def test_a_version_that_is_published_after_the_move_is_one_that_any_process_would_have_published() -> None:
    keyed = await in_versions(cleanup_policy="compact")
    old = await keyed.root.catalog()
    await keyed.compact()
    assert await keyed.clean(old, MovedMeanwhile(keyed, "/versions/", legal_hold="true")) == 1
    before = await keyed.objects()
    keyed.wait(2)
    assert await keyed.clean(old) == await keyed.clean() == 0
    assert await keyed.objects() == before, "a hold that only the new bundle knows keeps the version of before"
    assert await read(keyed) == [1, 2, 3]
    await keyed.alter(legal_hold="false")
    for _ in range(2):
        await keyed.clean()
        keyed.wait(AGED_HOURS)
    assert await keyed.offsets() == [1, 2, 3]
    assert len(await keyed.objects()) < len(before)


async def test_versions_are_not_removed_by_what_the_old_bundle_knows() -> None:
    keyed = await in_versions(cleanup_policy="compact")
    await keyed.compact()
    assert await keyed.clean() == 1
    keyed.wait(AGED_HOURS)
    root, before = keyed.root, keyed.topic
    versions = await keyed.objects()
    await keyed.move(NEW)
    await keyed.alter(legal_hold="true")
    for bundle, topic in ((OLD, before), (NEW, before), (NEW, keyed.topic)):
        ledger = ledger_of(root.store, bundle, cluster=root.cluster, sources=root.sources)
        assert await tidy_keyed(ledger, topic, 0) == []
    assert await keyed.objects() == versions


# What else deletes


async def test_keys_that_were_not_written_are_forgotten_in_the_new_bundle() -> None:
    keyed = await in_versions()
    await keyed.move(NEW)
    keyed.wait(1.2)
    await keyed.put((b"d", b"5"))
    await keyed.compact()
    assert await keyed.clean() == 1
    assert await keyed.offsets() == [4]


async def test_tombstones_go_along_and_go_when_they_are_old() -> None:
    keyed = await in_versions(cleanup_policy="compact", delete_retention_ms="3600000")
    await keyed.put((b"b", None), (b"d", b"5"))
    await keyed.compact()
    assert await keyed.clean() == 1
    await keyed.move(NEW)
    assert await keyed.offsets() == [2, 3, 4, 5]
    keyed.wait(1.1)
    assert await keyed.clean() == 1
    assert await keyed.offsets() == [2, 3, 5]
    keyed.wait(1)
    await keyed.clean()
    assert await read(keyed) == [2, 3, 5]


async def test_records_deleted_on_demand_in_the_new_bundle_leave_the_versions() -> None:
    keyed = await in_versions(cleanup_policy="compact")
    await keyed.move(NEW)
    root = keyed.root
    ledger = ledger_of(root.store, NEW, cluster=root.cluster, sources=root.sources)
    await advance_checkpoint(ledger, deletion_move(keyed.topic, {0: 2}))
    assert await read(keyed) == [2, 3]
    assert await keyed.clean() == 1
    assert await keyed.offsets() == [2, 3]


@pytest.mark.parametrize("moves_first", [False, True])
async def test_stale_versions_go_below_the_log_start_of_the_new_bundle(moves_first: bool) -> None:
    keyed = await in_versions(cleanup_policy="compact", retention_ms="-1")
    if moves_first:
        await keyed.move(NEW)
    await keyed.alter(cleanup_policy="delete", retention_ms=str(HOUR_MS))
    if not moves_first:
        await keyed.move(NEW)
    keyed.wait(0.5)
    assert await keyed.clean() == 0
    assert await read(keyed) == [0, 1, 2, 3]
    keyed.wait(0.6)
    assert await keyed.clean() == 1
    assert await keyed.offsets() == []
    assert (await read(keyed))[:1] in ([], [3])
    keyed.wait(1)
    await keyed.clean()
    assert len(await keyed.objects()) == 1


async def test_what_moved_becomes_keyed_and_holds_the_log_of_both_bundles() -> None:
    keyed = await opened(cleanup_policy="delete", retention_ms="-1")
    await keyed.put((b"a", b"1"), (b"b", b"2"))
    await keyed.move(NEW)
    await keyed.put((b"a", b"3"))
    await keyed.alter(cleanup_policy="compact")
    await keyed.compact()
    assert await keyed.clean() == 1
    assert await keyed.offsets() == [1, 2]


# Files that nothing lists any longer


class DiesDeleting(StoreWrapper):
    """Deletes no file of the log: its process has died."""

    async def delete(self, keys_: Sequence[str]) -> None:
        if any(key.startswith(LOG) for key in keys_):
            raise Unavailable("dead")
        await self.inner.delete(keys_)


async def left_by_both_bundles() -> Keyed:
    """Offset 0 is in a file of the old bundle, 1 in one of the new one, both below the start of the log."""
    keyed = await opened(cleanup_policy="compact")
    await keyed.put((b"a", b"1"))
    await keyed.compact()
    await keyed.move(NEW)
    await keyed.put((b"a", b"2"))
    await keyed.compact()
    await keyed.clean()
    for _ in range(2):
        keyed.wait(AGED_HOURS)
        with suppress(Unavailable):
            await keyed.clean(store=DiesDeleting(keyed.root.store))
    counters = partition_of(await keyed.root.newest(NEW), keyed.topic.id, 0)
    assert counters.parquet_start == 2
    assert len(await parquet_keys(keyed.root.store, LOG)) == 2
    await keyed.put((b"b", b"3"))
    await keyed.compact()
    return keyed


async def test_files_of_two_bundles_that_nothing_lists_go() -> None:
    keyed = await left_by_both_bundles()
    keyed.wait(AGED_HOURS)
    for _ in range(2):
        await collect_garbage(keyed.root.store, keyed.root.cluster)
    assert [row.offset for row in await read_plain_log(keyed.root.store, keyed.topic)] == [2]


async def test_a_file_of_the_new_bundle_stays_while_a_lower_one_of_the_old_bundle_does() -> None:
    keyed = await left_by_both_bundles()
    keyed.wait(AGED_HOURS)
    await damage_checkpoint(keyed.root.store, OLD)
    await collect_garbage(keyed.root.store, keyed.root.cluster)
    assert [row.offset for row in await read_plain_log(keyed.root.store, keyed.topic)] == [0, 1, 2]


async def test_the_versions_of_a_removed_topic_go_and_no_old_catalog_brings_them_back() -> None:
    keyed = await in_versions(cleanup_policy="compact")
    old = await keyed.root.catalog()
    await keyed.compact()
    await keyed.move(NEW)
    moved = await keyed.root.catalog()
    await keyed.root.remove_topic("t")
    for _ in range(6):
        swept = await sweep(keyed.compaction(), grace_ms=0)
        assert not swept.failures
        keyed.wait(1)
        assert await keyed.clean(old) == 0
        assert await keyed.clean(moved) == 0
    assert await keyed.objects() == await parquet_keys(keyed.root.store) == []
