"""What lies beside the numbered objects of a ledger holds nothing up, whatever its name."""

from __future__ import annotations

import pytest

from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint
from ledgermq_ledger.log.history import read_history
from ledgermq_ledger.log.recovery import advance_checkpoint, recover
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.topics.catalog import read_catalog
from tests.stores.backends import memory_store
from tests.worlds.ledgers import append_and_wait, batch, ledger_of, own

STRANGE = ["x", "00000000000000000002.tmp", "9" * 30, "2", "_$folder$", "zzz", "00000000000000000001/x", "-1"]


async def strew(store: ObjectStore, bundle: int) -> None:
    folders = (keys.segments, keys.checkpoints, keys.compactions, keys.file_pages, keys.snapshots)
    for folder in folders:
        for name in STRANGE:
            if "$" not in name:
                await store.put(folder(bundle) + name, b"foreign")


async def test_foreign_objects_are_passed_over(sources: Sources) -> None:
    async with memory_store() as store:
        await strew(store, 1)
        await strew(store, 0)
        writer = await own(store, sources)
        for value in (b"one", b"two"):
            await append_and_wait(writer, batch(value))
        await advance_checkpoint(ledger_of(store, 1, sources=sources))
        await append_and_wait(writer, batch(b"three"))
        assert (await newest_checkpoint(store, 1)).number == 1
        assert (await recover(ledger_of(store, 1))).next_slot == 5
        assert [slot.index.slot for slot in (await read_history(ledger_of(store, 1))).segments] == [1, 2, 3, 4]
        assert (await read_catalog(ledger_of(store, 0))).offset == 0


@pytest.mark.parametrize("name", STRANGE)
def test_a_strange_name_is_no_number(name: str) -> None:
    assert not keys.is_numbered(keys.segments(1) + name, keys.segments(1))


def test_a_number_counts_only_in_its_own_folder() -> None:
    assert keys.is_numbered(keys.segment(1, 7), keys.segments(1))
    assert not keys.is_numbered(keys.segment(1, 7), keys.segments(2))
    assert not keys.is_numbered(keys.segment(1, 7), keys.ledger(1))
