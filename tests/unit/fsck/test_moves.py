"""Roots in which a partition has moved: a sound one has no finding, a ledger that lies has one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.fsck.ledgers.ledger_check import LedgerView, check_ledger
from ledgermq_ledger.fsck.ledgers.move_check import check_moves
from ledgermq_ledger.fsck.ledgers.offset_check import check_offsets, check_sequences
from ledgermq_ledger.fsck.problem import Problems, Severity
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.partitions.moves import open_after
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.log.writing.writer import LedgerWriter
from ledgermq_ledger.object_store.memory import MemoryStore
from tests.worlds.ledgers import SMALL_CLUSTER, TOPIC_ID, append_and_wait, batch, ledger_of, own, session

KEY = PartitionId(TOPIC_ID, 0)


@pytest.fixture
def store(sources: Sources) -> MemoryStore:
    return MemoryStore("moves", sources)


async def move(source: LedgerWriter, target: LedgerWriter, number: int, after: int = 0) -> None:
    sealed = source.seal(KEY, number, target.bundle, after)
    assert sealed is not None
    await sealed
    seal = source.durable.moves.seal_of(KEY)
    assert seal is not None
    started = target.open_partition(open_after(seal, source.bundle))
    assert started is not None
    await started


async def there_and_back(store: MemoryStore, sources: Sources) -> None:
    one, two = await own(store, sources), await own(store, sources, bundle=2)
    await append_and_wait(one, batch(b"a", b"b", producer=session(0)), batch(b"x", partition=1))
    await move(one, two, 21)
    await append_and_wait(two, batch(b"c", producer=session(2)))
    await move(two, one, 22, 21)
    await append_and_wait(one, batch(b"d", producer=session(3)))


async def views_of(store: MemoryStore, problems: Problems) -> list[LedgerView]:
    views = [await check_ledger(store, bundle, problems, quick=False) for bundle in (1, 2)]
    return [view for view in views if view is not None]


def codes(views: list[LedgerView], problems: Problems) -> set[str]:
    for view in views:
        check_offsets(view, set(), problems)
        check_sequences(view, SMALL_CLUSTER, problems)
    check_moves(views, problems)
    return {problem.code for problem in problems.all if problem.severity is Severity.DAMAGE}


@pytest.mark.parametrize("checkpoints", [(), (1,), (2,), (1, 2)])
async def test_a_sound_root_has_no_finding(store: MemoryStore, sources: Sources, checkpoints: tuple[int, ...]) -> None:
    await there_and_back(store, sources)
    for bundle in checkpoints:
        await advance_checkpoint(ledger_of(store, bundle, sources=sources))
    problems = Problems()
    views = await views_of(store, problems)
    assert [len(view.valid) for view in views] == [5, 4]
    assert codes(views, problems) == set()


def change(views: list[LedgerView], slot: int, what: Callable[[fmt.SegmentIndex], object]) -> None:
    what(next(index for index in views[0].valid if index.slot == slot))


LIES: dict[str, Callable[[list[LedgerView]], None]] = {
    "BATCH_AFTER_SEAL": lambda views: change(
        views, 3, lambda index: index.batches.add(topic_id=TOPIC_ID, base_offset=2, record_count=1)
    ),
    "OPEN_WITHOUT_SEAL": lambda views: change(views, 4, lambda index: setattr(index.opens[0], "move", 23)),
    "OFFSET_GAP": lambda views: change(views, 5, lambda index: setattr(index.batches[0], "base_offset", 4)),
}


@pytest.mark.parametrize("code", LIES)
async def test_a_ledger_that_lies_is_damaged(store: MemoryStore, sources: Sources, code: str) -> None:
    await there_and_back(store, sources)
    problems = Problems()
    views = await views_of(store, problems)
    LIES[code](views)
    assert code in codes(views, problems)


async def test_an_open_at_another_offset_than_the_seal_is_damage(store: MemoryStore, sources: Sources) -> None:
    await there_and_back(store, sources)
    problems = Problems()
    views = await views_of(store, problems)
    change(views, 4, lambda index: setattr(index.opens[0], "start", 2))
    change(views, 5, lambda index: setattr(index.batches[0], "base_offset", 2))
    check_moves(views, problems)
    [found] = problems.all
    assert (found.code, found.object_key) == ("OPEN_WITHOUT_SEAL", keys.ledger(1))
    assert "sealed it at offset 3 for bundle 1" in found.text
