"""Rounds over ledgers that hold batches of open transactions: what they keep, what they drop, and
what else has to go on.
"""

from __future__ import annotations

from functools import partial

import pytest

from ledgermq.errors import FormatNotSupported
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.fsck.check import check_root
from ledgermq_ledger.fsck.problem import Severity
from ledgermq_ledger.garbage.topics.retention import move_internal_log_starts
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import partition_of
from ledgermq_ledger.log.history import read_history
from ledgermq_ledger.log.internal_topic import read_snapshot
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.rounds.runner import lag_of
from ledgermq_ledger.topics import settings as topic_settings
from tests.stores.backends import seeded_sources
from tests.stores.dying import Crash, DyingStore
from tests.virtual_time import run_virtual, virtual, virtual_sources
from tests.worlds.damage import damage_batch
from tests.worlds.ledgers import append_and_wait, batch, ledger_of
from tests.worlds.roots import Root, read_everything, read_parquet_rows, read_segments

STAGED = keys.STAGED_TOPIC


async def _filled(sources: Sources) -> Root:
    """Slot 1 is the claim; 2 staged 0 and 1; 3 users' and staged 2; 4 users' and internal; 5 staged 3
    to 5; 6 users'.
    """
    root = await Root.open(MemoryStore("test", sources), sources)
    await root.create_topic("t", partitions=2)
    await root.create_topic(STAGED, internal_kind="staged")
    await root.create_topic(keys.TRANSACTIONS_TOPIC, transaction_coordinators="1")
    await _put(root, (STAGED, [b"s0", b"s1"]))
    await _put(root, ("t", [b"a", b"b"]), (STAGED, [b"s2"]))
    await _put(root, ("t", [b"c"]), (keys.TRANSACTIONS_TOPIC, [b"k1", b"k2"]))
    await _put(root, (STAGED, [b"s3", b"s4", b"s5"]))
    await _put(root, ("t", [b"d"]))
    return root


async def _put(root: Root, *batches: tuple[str, list[bytes]]) -> None:
    """One segment."""
    writer = await root.writer(1)
    await append_and_wait(writer, *(batch(*values, topic_id=root.topics[name].id) for name, values in batches))
    for name, values in batches:
        root.produced.setdefault((name, 0), []).extend(values)


async def _resolve(root: Root, to_offset: int, store: ObjectStore | None = None, seed: int = 77) -> bool:
    ledger = LedgerRef(store or root.store, 1, root.cluster, virtual_sources(seed))
    return await move_internal_log_starts(ledger, {PartitionId(root.topics[STAGED].id, 0): to_offset})


async def _staged(root: Root) -> dict[int, bytes]:
    return (await read_segments(root, STAGED)).get((STAGED, 0), {})


async def _slots(root: Root) -> list[int]:
    return [keys.number(info.key) async for info in root.store.list(keys.segments(1))]


async def _check(root: Root, held_from: int) -> None:
    """Users' records are whole, in Parquet alone; staged ones from `held_from` on are still there."""
    assert not (await root.compact(sources=seeded_sources(99))).failures
    rows = await read_parquet_rows(root.store)
    assert {part: list(found.values()) for part, found in rows.items()} == {("t", 0): root.produced["t", 0]}
    wanted = dict(enumerate(root.produced[STAGED, 0]))
    found = await _staged(root)
    assert found.items() <= wanted.items()
    assert {offset: found[offset] for offset in wanted if offset >= held_from} == {
        offset: value for offset, value in wanted.items() if offset >= held_from
    }
    snapshot = await read_snapshot(root.store, await root.newest())
    assert [part.topic_id for part in snapshot.partitions] == [root.topics[keys.TRANSACTIONS_TOPIC].id]
    checked = await check_root(root.store, root.cluster, run_blocking=run_inline)
    assert [problem for problem in checked.problems if problem.severity is not Severity.NOTE] == []
    history = await read_history(ledger_of(root.store, 1, cluster=root.cluster))
    assert lag_of(history, await root.catalog()).records == 0


@virtual
async def test_staged_batches_stay_until_the_log_start_passes_them() -> None:
    root = await _filled(virtual_sources(1))
    await _check(root, 0)
    assert await _slots(root) == [1, 2, 3, 4, 5, 6], "the oldest is staged"
    everything = dict(enumerate(root.produced[STAGED, 0]))
    assert await _staged(root) == everything
    for to_offset, slots, held_from in ((2, [1, 3, 4, 5, 6], 2), (3, [1, 5, 6], 3), (4, [1, 5, 6], 3), (6, [1], 6)):
        assert await _resolve(root, to_offset)
        await _check(root, held_from)
        assert await _slots(root) == slots
    await _put(root, ("t", [b"e"]), (STAGED, [b"s6"]))
    await _check(root, 6)
    counters = partition_of(await root.newest(), root.topics[STAGED].id, 0)
    assert (counters.parquet_start, counters.parquet_end, counters.log_start) == (6, 6, 6)
    assert (await read_everything(root))[STAGED, 0] == [b"s6"]


@virtual
async def test_the_log_start_never_goes_back_nor_beyond_the_end() -> None:
    root = await _filled(virtual_sources(2))
    assert await _resolve(root, 3)
    number = (await root.newest()).number
    for to_offset in (3, 2, 0):
        assert not await _resolve(root, to_offset)
    assert (await root.newest()).number == number
    with pytest.raises(AssertionError, match="it ends at 6"):
        await _resolve(root, 7)
    await _check(root, 3)


@virtual
async def test_a_run_by_hand_ends_although_staged_batches_remain() -> None:
    """They are no part of "everything": nothing can be done with them."""
    root = await _filled(virtual_sources(3))
    assert len((await root.compact()).rounds) == 2, "one in each bundle"
    report = await root.compact()
    assert (report.rounds, report.failures, report.lags[1].records) == ([], {}, 0)


@virtual
async def test_a_damaged_staged_batch_parks_no_partition_and_goes_as_others_do() -> None:
    root = await _filled(virtual_sources(4))
    await damage_batch(root.store, 1, 3, PartitionId(root.topics[STAGED].id, 0))
    report = await root.compact()
    assert (report.failures, report.parked) == ({}, [])
    assert list((await read_parquet_rows(root.store))["t", 0].values()) == root.produced["t", 0]
    checked = await check_root(root.store, root.cluster, run_blocking=run_inline)
    assert {problem.object_key for problem in checked.problems} == {keys.segment(1, 3)}
    assert checked.worst is Severity.DAMAGE
    assert await _resolve(root, 3)
    await _check(root, 3)


@pytest.mark.slow
@pytest.mark.parametrize("after_effect", [False, True])
def test_any_process_finishes_what_one_that_died_began(after_effect: bool) -> None:
    """It dies at any store operation of a round, of the move of the log start, or of the next round."""

    async def run(dies_at: int) -> bool:
        root = await _filled(virtual_sources(dies_at))
        dying, has_died = DyingStore(root.store, dies_at, after_effect), False
        try:
            await root.compact(dying, seeded_sources(1000 + dies_at))
            await _resolve(root, 3, dying, 1000 + dies_at)
            await root.compact(dying, seeded_sources(2000 + dies_at))
        except Crash:
            has_died = True
        assert (await read_everything(root))["t", 0] == root.produced["t", 0]
        await _check(root, 3)
        assert (await _slots(root))[-2:] == [5, 6]
        await _resolve(root, 6)
        await _check(root, 6)
        assert await _slots(root) == [1]
        return has_died

    dies_at = 1
    while run_virtual(partial(run, dies_at)):
        dies_at += 1
    assert dies_at > 60, "the run has far more operations than that"


@virtual
async def test_a_process_that_does_not_know_the_kind_of_topic_touches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Release 0.1.0 knows none of these settings. It would take staged batches for keys, and clean
    them.
    """
    root = await _filled(virtual_sources(5))
    before = [info.key async for info in root.store.list("")]
    known = {name: field for name, field in topic_settings._FIELDS.items() if name not in topic_settings.SYSTEM_NAMES}
    with monkeypatch.context() as older:
        older.setattr(topic_settings, "_FIELDS", known)
        report = await root.compact()
        assert isinstance(report.failures[0], FormatNotSupported)
        assert "internal.kind" in report.failures[0].message
    assert report.rounds == []
    assert [info.key async for info in root.store.list("")] == before
    await _check(root, 0)
