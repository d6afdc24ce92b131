"""What reading a ledger costs: requests, counted. Compaction and takeover do it again and again."""

from __future__ import annotations

from collections import Counter

from ledgermq_ledger.log.history import read_history
from ledgermq_ledger.log.recovery import PARALLEL_READS, advance_checkpoint, recover
from ledgermq_ledger.object_store.memory import MemoryStore
from tests.stores.faulty import FaultyStore
from tests.virtual_time import run_virtual, virtual_sources
from tests.worlds.ledgers import append_and_wait, batch, ledger_of, own

BEFORE, AFTER = PARALLEL_READS + 3, 5
"""Slots up to the checkpoint, and behind it."""


async def _ledger() -> FaultyStore:
    store, sources = FaultyStore(MemoryStore(), virtual_sources()), virtual_sources()
    writer = await own(store, sources)
    for i in range(BEFORE - 1):  # the claim is one, too
        await append_and_wait(writer, batch(b"%d" % i))
    await advance_checkpoint(ledger_of(store, 1, sources=sources), durable=writer.durable)
    for i in range(AFTER):
        await append_and_wait(writer, batch(b"later %d" % i))
    store.calls.clear()
    return store


def test_recovery_reads_only_what_follows_the_checkpoint() -> None:
    async def main() -> Counter[str]:
        store = await _ledger()
        assert (await recover(ledger_of(store, 1))).state.slot == BEFORE + AFTER
        return store.calls

    assert run_virtual(main) == {"list": 3, "get": 1, "get_suffix": AFTER + 1}


def test_a_history_reads_each_slot_once_and_lists_only_unknown_keys() -> None:
    async def main() -> Counter[str]:
        store = await _ledger()
        history = await read_history(ledger_of(store, 1))
        assert [segment.index.slot for segment in history.segments] == list(range(1, BEFORE + AFTER + 1))
        return store.calls

    assert run_virtual(main) == {"list": 4, "get": 1, "get_suffix": BEFORE + AFTER + 1}


def test_a_checkpoint_looks_for_the_newest_once_before_and_once_after_its_fold() -> None:
    async def main() -> Counter[str]:
        store = await _ledger()
        assert await advance_checkpoint(ledger_of(store, 1, sources=virtual_sources(7))) is not None
        return store.calls

    assert run_virtual(main) == {"list": 3, "get": 1, "get_suffix": AFTER + 1, "put_if_absent": 1}


def test_a_claim_reads_each_slot_once_though_it_recovers_twice() -> None:
    async def main() -> Counter[str]:
        store = await _ledger()
        writer = await own(store, virtual_sources(7), "b")
        assert writer.durable.slot == BEFORE + AFTER + 1
        return store.calls

    first, second = AFTER + 1, 1 + 1  # the slots that are there, and the empty one behind them; then only what came
    assert run_virtual(main) == {"list": 6, "get": 2, "get_suffix": first + second, "put_if_absent": 1}
