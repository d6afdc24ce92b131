"""What a cut names is not deleted, whatever goes on in the root (design I8 to I12), and goes when the cut is over; and
each rule of the gate is needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ledgermq.errors import DataDamaged, ResourceExhausted
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.cuts import names
from ledgermq_ledger.cuts.pinned import Pinned, PinReader
from ledgermq_ledger.cuts.pins import PINS_MAX, base_of, pin_move, unpin_move
from ledgermq_ledger.cuts.record import over_in
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.fsck.check import check_root
from ledgermq_ledger.garbage.gate import Gate
from ledgermq_ledger.garbage.topics import removed
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import (
    PINS_VERSION,
    check_successor,
    decode_checkpoint,
    encode_checkpoint,
    genesis,
)
from ledgermq_ledger.log.chains.envelope import TRAILER
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from tests.virtual_time import run_virtual, virtual
from tests.worlds.cuts import begin_cut, drop_cut, end_cuts, fix_cut, read_at, take_cut
from tests.worlds.roots import Root, parquet_keys, read_parquet_rows
from tests.worlds.set_tables import AGED_S, a_root, make_round, raise_start, tidy


def test_a_pin_is_of_the_checkpoint_that_has_it_first() -> None:
    draft = genesis(1)
    draft.number = 7
    assert pin_move(30)(draft)
    assert not pin_move(30)(draft)
    draft.number = 8
    assert pin_move(20)(draft)
    assert [(pin.cut, pin.base) for pin in draft.pins] == [(20, 8), (30, 7)]
    assert (base_of(draft, 30), base_of(draft, 31)) == (7, 0)
    assert not unpin_move({31})(draft)
    assert unpin_move({30, 31})(draft)
    assert [pin.cut for pin in draft.pins] == [20]


def test_pins_are_bounded_and_the_error_says_what_to_do() -> None:
    draft = genesis(3)
    draft.pins.extend(fmt.Pin(cut=cut, base=1) for cut in range(PINS_MAX))
    with pytest.raises(ResourceExhausted, match=r"bundle 3 has 1000 pins .*ledgermq cut list"):
        pin_move(PINS_MAX)(draft)
    assert not pin_move(5)(draft), "one that is there is found, also at the bound"


def test_a_checkpoint_with_pins_has_a_version_that_earlier_releases_refuse() -> None:
    checkpoint = fmt.Checkpoint(bundle=1, number=4, trim_slot=1)
    assert TRAILER.unpack(encode_checkpoint(checkpoint)[-TRAILER.size :])[2] == 1
    pin_move(9)(checkpoint)
    data = encode_checkpoint(checkpoint)
    assert TRAILER.unpack(data[-TRAILER.size :])[2] == PINS_VERSION
    assert decode_checkpoint(data, keys.checkpoint(1, 4)) == checkpoint


def test_no_process_puts_a_pin_of_another_checkpoint() -> None:
    base, new = genesis(1), genesis(1)
    new.number = 1
    new.pins.add(cut=3, base=1)
    check_successor(base, new)
    later = genesis(1)
    later.number = 2
    later.pins.add(cut=3, base=2)
    with pytest.raises(AssertionError, match="the pin of cut 3"):
        check_successor(new, later)


def test_a_gate_does_not_work_without_the_pins() -> None:
    checkpoint = fmt.Checkpoint(bundle=1, number=4, trim_slot=1)
    with pytest.raises(AssertionError, match="only a checkpoint says whether a cut names it"):
        Gate().why_kept(keys.segment(1, 3))
    pin_move(9)(checkpoint)
    with pytest.raises(AssertionError, match="its pins were not read"):
        Gate(checkpoint=checkpoint)


async def a_cut_with_a_life_after_it(root: Root) -> int:
    """A cut of two files and a tail in segments; then rounds, and a log start behind all that the cut has."""
    for _ in range(2):
        await make_round(root)
    await root.produce("t", (0, [b"tail"]), (1, [b"tail"]))
    cut = await take_cut(root)
    for _ in range(3):
        await make_round(root)
    await asyncio.sleep(AGED_S)
    for partition in (0, 1):
        await raise_start(root, 6, partition)
    for _ in range(2):
        assert not (await root.compact()).failures
        await tidy(root)
        await asyncio.sleep(AGED_S)
    return cut


VALUES = [b"a", b"b", b"a", b"b", b"tail"]


async def has_all(root: Root, cut: int) -> bool:
    found = [await read_at(root, cut, "t", partition) for partition in (0, 1)]
    return found == [dict(enumerate(VALUES))] * 2


@virtual
async def test_a_cut_is_read_whole_while_retention_goes_on() -> None:
    root = await a_root(has_table=False)
    cut = await a_cut_with_a_life_after_it(root)
    plain = await read_parquet_rows(root.store)
    assert min(plain["t", 0]) == 4, "retention went on: the files below the log start are gone from parquet/"
    held = await parquet_keys(root.store, names.HELD)
    assert len(held) == 4, "each of them was handed over"
    assert await has_all(root, cut)
    assert not (await check_root(root.store, root.cluster)).problems


@virtual
async def test_what_only_a_dropped_cut_needs_goes() -> None:
    root, other = await a_root(has_table=False), await a_root(has_table=False)
    await a_cut_with_a_life_after_it(root)
    await drop_cut(root)
    await end_cuts(root)
    assert not await parquet_keys(root.store, names.HELD)
    assert not await parquet_keys(root.store, names.CUTS)
    assert not any([(await root.newest(bundle)).pins for bundle in range(3)])
    await tidy(root)
    assert not (await root.compact()).failures

    async def without(cut_root: Root) -> int:  # the same life without a cut
        for _ in range(2):
            await make_round(cut_root)
        await cut_root.produce("t", (0, [b"tail"]), (1, [b"tail"]))
        for _ in range(3):
            await make_round(cut_root)
        await asyncio.sleep(AGED_S)
        for partition in (0, 1):
            await raise_start(cut_root, 6, partition)
        for _ in range(2):
            assert not (await cut_root.compact()).failures
            await tidy(cut_root)
            await asyncio.sleep(AGED_S)
        return len(await parquet_keys(cut_root.store, keys.PARQUET))

    assert len(await parquet_keys(root.store, keys.PARQUET)) == await without(other)
    for folder in (keys.segments(1), keys.compactions(1), keys.checkpoints(1)):
        assert len(await parquet_keys(root.store, folder)) == len(await parquet_keys(other.store, folder)), folder
    assert not (await check_root(root.store, root.cluster)).problems


@virtual
async def test_while_a_cut_is_pending_every_slot_from_its_base_on_stays() -> None:
    root = await a_root(has_table=False)
    await make_round(root)
    cut, bases = await begin_cut(root, "c")
    for _ in range(3):
        await make_round(root)
    await fix_cut(root, "c", cut, bases)
    await tidy(root)
    assert await read_at(root, cut, "t", 0) == dict(enumerate([b"a", b"b"] * 4))


@virtual
async def test_a_removed_topic_is_read_at_the_cut_and_its_name_is_free() -> None:
    root = await a_root(has_table=False)
    await make_round(root)
    cut = await take_cut(root)
    await root.remove_topic("t")
    compaction = Compaction(root.store, root.cluster, root.sources, LocalEngine(root.sources, run_inline))
    for _ in range(3):
        await asyncio.sleep(AGED_S)
        done = await removed.remove(compaction, await root.catalog())
        assert not done.failures
    assert [topic.name for topic in done.free] == ["t"]
    assert not await parquet_keys(root.store, keys.PARQUET)
    assert await read_at(root, cut, "t", 1) == {0: b"a", 1: b"b"}


@virtual
async def test_a_partition_that_moved_away_is_read_at_the_cut() -> None:
    """I10: the bundle that deletes the files now has only its own base, which does not list them."""
    root = await a_root(has_table=False)
    for _ in range(2):
        await make_round(root)
    cut = await take_cut(root)
    await root.move("t", 0, 2)
    await make_round(root)
    await asyncio.sleep(AGED_S)
    await raise_start(root, 4)
    for _ in range(3):
        assert not (await root.compact()).failures
        await tidy(root, bundle=2)
        await asyncio.sleep(AGED_S)
    assert await parquet_keys(root.store, names.HELD)
    assert await read_at(root, cut, "t", 0) == dict(enumerate([b"a", b"b"] * 2))


@virtual
async def test_a_stale_catalog_takes_no_cut_for_over() -> None:
    root = await a_root(has_table=False)
    before = await root.catalog()
    cut = await take_cut(root)
    assert not over_in(before, cut)
    assert not over_in(await root.catalog(), cut)
    await drop_cut(root)
    assert over_in(await root.catalog(), cut)


@virtual
async def test_nothing_is_deleted_while_something_of_a_cut_is_missing() -> None:
    root = await a_root(has_table=False)
    await make_round(root)
    cut = await take_cut(root)
    base = next(pin.base for pin in (await root.newest()).pins if pin.cut == cut)
    await make_round(root)
    await root.store.delete([keys.checkpoint(1, base)])
    with pytest.raises(DataDamaged, match="a cut needs it"):
        await tidy(root)


# The twins of the model's mutants


def base_deleted(patch: pytest.MonkeyPatch) -> None:
    def of_checkpoints(cls: type[Gate], checkpoint: fmt.Checkpoint) -> Gate:
        return cls(checkpoint=checkpoint, pinned=Pinned())

    patch.setattr(Gate, "of_checkpoints", classmethod(of_checkpoints))
    original = Pinned.keeps
    patch.setattr(Pinned, "keeps", lambda self, key: None if "/checkpoints/" in key else original(self, key))


def slots_deleted(patch: pytest.MonkeyPatch) -> None:
    original = Pinned.keeps
    patch.setattr(Pinned, "keeps", lambda self, key: None if "/segments/" in key else original(self, key))


def files_deleted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Gate, "is_handed_over", lambda self, key: False)


Break = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("rule", [base_deleted, slots_deleted, files_deleted])
def test_without_a_rule_a_cut_is_lost(rule: Break) -> None:
    async def run() -> None:
        root = await a_root(has_table=False)
        assert await has_all(root, await a_cut_with_a_life_after_it(root))

    with pytest.MonkeyPatch.context() as patch:
        rule(patch)
        with pytest.raises((AssertionError, DataDamaged)):
            run_virtual(run)


def test_without_the_bases_of_other_bundles_a_moved_partition_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    original = PinReader._of_pin

    async def own_only(self: PinReader, bundle: int, pin: fmt.Pin, *, has_moves: bool) -> Pinned:
        return await original(self, bundle, pin, has_moves=False)

    monkeypatch.setattr(PinReader, "_of_pin", own_only)
    test: Callable[[], Awaitable[None] | None] = test_a_partition_that_moved_away_is_read_at_the_cut
    with pytest.raises(AssertionError):
        test()


def test_the_names_of_held_files() -> None:
    key = keys.ParquetName("t", 3, 10, 19, 7, 2).key
    assert names.held(key) == "held/_7/partition=3/00000000000000000010-00000000000000000019-7-2.parquet"
    assert names.is_held(names.held(key))
    assert names.held(keys.ParquetName(None, 3, 10, 19, 7, 2).key) == names.held(key)
    assert not names.is_held("held/_8/partition=3/00000000000000000010-00000000000000000019-7-2.parquet")
    assert names.parse_cut(names.cut(5)) == 5
    assert names.parse_cut("cuts/5") is None
    with pytest.raises(AssertionError):
        names.held(keys.keyed_version(PartitionId(1, 0), 1))
