"""After `cleanup.policy` was changed from compact to delete: versions hold what the log does not,
until it is below the log start.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from ledgermq.sources import Sources
from ledgermq_ledger.garbage.topics.retention import deletion_move
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import partition_of
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.object_store.contract import Buffer
from ledgermq_ledger.rounds.keyed_runner import clean_bundle
from tests.stores.one_put import OnePut
from tests.stores.requests_made import Requests
from tests.worlds.keyed_root import HOUR_MS, Keyed
from tests.worlds.ledgers import ledger_of
from tests.worlds.reading import opened_ledger
from tests.worlds.roots import parquet_keys


async def left(**settings: str) -> Keyed:
    """Two keys in a version, nothing in the log; then the topic is keyed no more."""
    keyed = await Keyed.open(cleanup_policy="compact", retention_ms="-1")
    await keyed.put((b"a", b"1"), (b"b", b"2"), (b"a", b"3"))
    await keyed.compact()
    assert await keyed.clean() == 1
    keyed.wait(0.02)
    await keyed.clean()
    assert not await parquet_keys(keyed.root.store)
    await keyed.alter(cleanup_policy="delete", **settings)
    return keyed


async def delete_before(keyed: Keyed, offset: int) -> None:
    root = keyed.root
    await advance_checkpoint(
        ledger_of(root.store, 1, cluster=root.cluster, sources=root.sources), deletion_move(keyed.topic, {0: offset})
    )


async def read(keyed: Keyed) -> list[int]:
    """Offsets, from the log start on."""
    reader = (await opened_ledger(keyed.root.store)).reader
    key, found = PartitionId(keyed.topic.id, 0), list[int]()
    offset = reader.log_start(key)
    while batches := await reader.read(key, offset):
        found += [at for batch in batches for at in range(batch.base_offset, batch.end)]
        offset = batches[-1].end
    return found


async def test_what_is_above_the_log_start_stays_and_is_read() -> None:
    keyed = await left()
    await keyed.put((b"b", b"4"), (b"b", None))
    await keyed.compact()
    before = await keyed.objects()
    for _ in range(3):
        keyed.wait(100)
        assert await keyed.clean() == 0
    assert await keyed.objects() == before
    assert await read(keyed) == [1, 2, 3, 4]


async def test_records_deleted_on_demand_leave_the_versions() -> None:
    keyed = await left()
    await delete_before(keyed, 2)
    assert await keyed.clean() == 0  # whole files only
    await delete_before(keyed, 3)
    assert await keyed.clean() == 1
    assert await keyed.offsets() == []
    keyed.wait(1)
    assert await keyed.clean() == 0
    assert len(await keyed.objects()) == 1
    await keyed.put((b"c", b"4"))
    await keyed.compact()
    assert await read(keyed) == [3]


async def test_retention_takes_what_is_in_versions_of_a_quiet_partition() -> None:
    keyed = await left(retention_ms=str(HOUR_MS))
    keyed.wait(0.5)
    assert await keyed.clean() == 0
    assert await read(keyed) == [1, 2]
    keyed.wait(0.6)
    assert await keyed.clean() == 1
    assert await read(keyed) == []
    keyed.wait(1)
    await keyed.clean()
    assert len(await keyed.objects()) == 1
    assert await keyed.clean() == 0


async def test_old_records_of_the_log_do_not_take_younger_ones_of_versions_along() -> None:
    keyed = await left(retention_ms=str(24 * HOUR_MS))
    await keyed.put((b"c", b"4"), age_ms=100 * HOUR_MS)
    for hours, offsets in ((0, [1, 2, 3]), (20, [1, 2, 3]), (5, [])):
        keyed.wait(hours)
        await keyed.compact()
        await keyed.clean()
        assert await read(keyed) == offsets


async def test_a_clock_that_is_ahead_takes_nothing_of_versions() -> None:
    keyed = await left(retention_ms=str(HOUR_MS))
    ahead = Sources(lambda: keyed.clock.now_us + 240 * HOUR_MS * 1000, keyed.root.sources.random)
    for cleaned in ([], [2]):
        reports = await clean_bundle(
            replace(keyed.compaction(), sources=ahead), 1, await keyed.root.catalog(), everything=False
        )
        assert [report.number for report in reports] == cleaned
        assert await read(keyed) == ([] if cleaned else [1, 2])
        keyed.wait(2)


async def test_retention_by_bytes_counts_versions_before_the_log() -> None:
    keyed = await left()
    await keyed.put((b"c", b"4"))
    await keyed.compact()
    [file] = await parquet_keys(keyed.root.store)
    size = (await keyed.root.store.head(file)).size
    await keyed.alter(retention_bytes=str(size + (await keyed.version()).size))
    assert await keyed.clean() == 0
    await keyed.alter(retention_bytes=str(size))
    assert await keyed.clean() == 1
    assert await read(keyed) == [3]


async def test_retention_by_bytes_counts_what_is_in_the_log_too_once() -> None:
    keyed = await Keyed.open(cleanup_policy="compact", retention_ms="-1")
    for keys in ((b"a", b"b"), (b"c", b"d")):
        await keyed.put(*((key, b"1") for key in keys))
        await keyed.compact()
        assert await keyed.clean() == 1
        if b"a" in keys:
            keyed.wait(0.02)
            await keyed.clean()
    [file] = await parquet_keys(keyed.root.store)
    size = (await keyed.root.store.head(file)).size
    await keyed.alter(cleanup_policy="delete", retention_bytes=str(size + (await keyed.version()).size - 1))
    assert await keyed.clean() == 0
    assert await read(keyed) == [0, 1, 2, 3]
    await keyed.alter(retention_bytes=str(size))
    await keyed.clean()
    assert await read(keyed) == [2, 3]


async def test_a_version_from_after_the_time_of_retention_counts_as_what_it_holds() -> None:
    """What was deleted on demand made it; the log above it is older by its dates."""
    keyed = await Keyed.open(cleanup_policy="compact", retention_ms="-1", parquet_target_bytes="6000")
    for key in (b"a", b"b"):
        await keyed.put((key, random.Random(1).randbytes(5000)))
        await keyed.compact()
    assert await keyed.clean() == 1
    keyed.wait(0.02)
    await keyed.clean()
    await keyed.alter(cleanup_policy="delete", retention_ms=str(24 * HOUR_MS), delete_when="0 6 * * *")
    await keyed.put((b"c", b"1"), age_ms=100 * HOUR_MS)
    await keyed.compact()
    keyed.wait(6.5)
    await delete_before(keyed, 1)
    assert await keyed.clean() == 1
    assert await keyed.clean() == 0
    assert await read(keyed) == [1, 2]
    keyed.wait(24)
    assert await keyed.clean() == 1
    assert await read(keyed) == []


async def test_what_was_to_be_archived_stays_until_it_is_deleted_on_demand() -> None:
    """Versions go to no archive."""
    keyed = await left(retention_ms=str(HOUR_MS), delete_action="archive")
    keyed.wait(2)
    assert await keyed.clean() == 0
    assert await read(keyed) == [1, 2]
    await delete_before(keyed, 3)
    assert await keyed.clean() == 1
    assert await keyed.offsets() == []


async def test_what_retention_of_the_log_has_passed_stays_where_the_topic_archives() -> None:
    keyed = await left(retention_ms=str(HOUR_MS), delete_action="archive")
    await keyed.put((b"c", b"4"))
    await keyed.compact()
    keyed.wait(2)
    await keyed.compact()
    assert partition_of(await keyed.root.newest(), keyed.topic.id, 0).log_start == 4
    assert await keyed.clean() == 0
    assert await keyed.offsets() == [1, 2]


async def test_under_a_hold_it_stays() -> None:
    keyed = await left(retention_ms=str(HOUR_MS), legal_hold="true")
    before = await keyed.objects()
    keyed.wait(2)
    assert await keyed.clean() == 0
    assert await keyed.objects() == before
    assert await read(keyed) == [1, 2]


async def test_a_topic_that_is_keyed_again_goes_on_with_its_versions() -> None:
    keyed = await left()
    await delete_before(keyed, 3)
    assert await keyed.clean() == 1
    await keyed.put((b"c", b"4"), (b"c", b"5"))
    await keyed.alter(cleanup_policy="compact")
    await keyed.compact()
    assert await keyed.clean() == 1
    assert (await keyed.version()).number == 3
    assert await keyed.offsets() == [4]
    assert await read(keyed) == [3, 4]


async def test_a_topic_that_was_altered_and_has_nothing_left_is_asked_for_once() -> None:
    keyed = await Keyed.open(cleanup_policy="delete")
    await keyed.alter(retention_ms="7")
    keyed.wait(1)
    asked = Requests(keyed.root.store)
    compaction = keyed.compaction(asked)
    for _ in range(3):
        await clean_bundle(compaction, 1, await keyed.root.catalog(), everything=False)
    assert asked.made == {("list", "keyed"): 1}
    await keyed.alter(retention_ms="8")  # it may have been keyed in between
    keyed.wait(1)
    for _ in range(3):
        await clean_bundle(compaction, 1, await keyed.root.catalog(), everything=False)
    assert asked.made == {("list", "keyed"): 2}


async def test_what_a_round_puts_that_had_begun_before_the_alteration_is_found() -> None:
    keyed = await left(retention_ms=str(HOUR_MS))
    objects = {key: await keyed.root.store.get(key) for key in await keyed.objects()}
    await keyed.root.store.delete(list(objects))
    compaction = keyed.compaction()
    assert await clean_bundle(compaction, 1, await keyed.root.catalog(), everything=False) == []
    for key, data in objects.items():
        await keyed.root.store.put_if_absent(key, [data])
    keyed.wait(2)
    assert await clean_bundle(compaction, 1, await keyed.root.catalog(), everything=False)


async def test_nothing_is_asked_for_again_once_all_has_gone() -> None:
    keyed = await left()
    await delete_before(keyed, 3)
    asked = Requests(keyed.root.store)
    compaction = keyed.compaction(asked)
    for _ in range(3):
        keyed.wait(1)
        await clean_bundle(compaction, 1, await keyed.root.catalog(), everything=False)
    assert len(await keyed.objects()) == 1
    asked.made.clear()
    await clean_bundle(compaction, 1, await keyed.root.catalog(), everything=False)
    assert not asked.made


class KeyedNoMore(OnePut):
    """The policy is altered just before the first file of a round is put: it publishes nothing."""

    def __init__(self, keyed: Keyed) -> None:
        super().__init__(keyed.root.store)
        self._keyed = keyed

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        if "/files/" in key and self._keyed.topic.settings.keyed:
            await self._keyed.alter(cleanup_policy="delete")
        await self.inner.put_if_absent(key, buffers)


@pytest.mark.parametrize("rounds", [0, 1])
async def test_files_of_a_round_that_the_alteration_kept_from_publishing_go(rounds: int) -> None:
    keyed = await Keyed.open(cleanup_policy="compact", retention_ms="-1")
    for _ in range(rounds):
        await keyed.put((b"a", b"0"), (b"b", b"0"))
        await keyed.compact()
        assert await keyed.clean() == 1
    await keyed.put((b"a", b"1"), (b"a", b"2"))
    await keyed.compact()
    before = await keyed.objects()
    assert await keyed.clean(store=KeyedNoMore(keyed)) == 0
    [file] = set(await keyed.objects()) - set(before)
    assert await keyed.clean() == 0
    assert file in await keyed.objects(), "its round may go on"
    keyed.wait(2)
    assert await keyed.clean() == 1
    assert file not in await keyed.objects()
    assert (await keyed.version()).number == rounds + 1
    assert await keyed.offsets() == [0, 1][: 2 * rounds]
    keyed.wait(2)
    assert await keyed.clean() == 0
    assert len(await keyed.objects()) == 1 + rounds
    assert await read(keyed) == list(range(2 + 2 * rounds))


async def test_a_round_that_slept_over_the_alteration_publishes_no_version_whose_files_are_gone() -> None:
    keyed = await Keyed.open(cleanup_policy="compact", retention_ms="-1")
    await keyed.put((b"a", b"1"), (b"a", b"2"))
    await keyed.compact()

    class Sleeper(OnePut):
        """It has looked, and puts the version hours later."""

        async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
            if "/versions/" in key:
                await keyed.alter(cleanup_policy="delete")
                keyed.wait(2)
                assert await keyed.clean() == 1
                keyed.wait(2)
                assert await keyed.clean() == 0
            await self.inner.put_if_absent(key, buffers)

    assert await keyed.clean(store=Sleeper(keyed.root.store)) == 0
    assert await keyed.offsets() == []
    assert len(await keyed.objects()) == 1
    assert await read(keyed) == [0, 1]


async def test_files_stay_whose_version_was_lost() -> None:
    """The log does not hold their records: a collector must not take them for files of a round that
    ended early.
    """
    keyed = await left()
    version = await keyed.version()
    await keyed.root.store.delete([version.key])
    keyed.wait(2)
    assert await keyed.clean() == 0
    assert await keyed.objects() == [file.key for file in version.files]


async def test_rounds_of_what_is_left_read_no_file() -> None:
    """So one that is missing keeps nothing else from going, and large partitions need no compactor."""
    keyed = await Keyed.open(cleanup_policy="compact", retention_ms="-1", parquet_target_bytes="6000")
    for key in (b"a", b"b"):
        await keyed.put((key, random.Random(1).randbytes(5000)))
        await keyed.compact()
    assert await keyed.clean() == 1
    await keyed.alter(cleanup_policy="delete")
    await delete_before(keyed, 1)
    gone, missing = (await keyed.version()).files
    await keyed.root.store.delete([missing.key])
    reports = await clean_bundle(keyed.compaction(), 1, await keyed.root.catalog(), everything=False, bytes_max=0)
    assert [report.number for report in reports] == [2]
    assert (await keyed.version()).files == (missing,)
    keyed.wait(2)
    await keyed.clean()
    assert gone.key not in await keyed.objects()
