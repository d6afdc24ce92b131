"""What a look for compaction costs: each segment's index is read once, however many rounds a
backlog takes.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.log.history import read_history
from ledgermq_ledger.log.segments.indexes import SegmentIndexes
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.runner import compact_bundle
from tests.stores.backends import seeded_sources
from tests.stores.requests_made import Requests
from tests.worlds.ledgers import append_and_wait, batch, ledger_of, own
from tests.worlds.roots import Root, read_everything

ROUNDS = 10
SLOTS = 60
VALUES = [b"v" * 100] * 5
STATES_MAX = 10


async def backlog(store: Requests) -> Root:
    """Records of `SLOTS` segments, which take `ROUNDS` rounds."""
    root = await Root.open(store, seeded_sources())
    target = len(batch(*VALUES).data) * SLOTS // ROUNDS
    await root.create_topic("t", partitions=2, parquet_target_bytes=str(target), parquet_max_lag_ms=str(10**12))
    for _ in range(SLOTS):
        await root.produce("t", (0, VALUES), (1, VALUES))
    return root


async def test_a_backlog_of_many_rounds_reads_each_index_once_for_all_looks() -> None:
    store = Requests(MemoryStore("", seeded_sources()))
    root = await backlog(store)
    catalog, known = await root.catalog(), SegmentIndexes()
    by_round = []
    while True:
        store.made.clear()
        report = await compact_bundle(
            Compaction(store, root.cluster, root.sources, LocalEngine(root.sources, run_inline), known=known),
            1,
            catalog,
            everything=False,
        )
        if report is None:
            break
        by_round.append(dict(store.made))
    assert len(by_round) == ROUNDS
    in_a_task = SLOTS // ROUNDS  # one range for each task and slot that it reads; its index travels with the task
    tasks = 2
    first, *later = by_round
    empty = 2  # looks at the first empty slot: before the plan, and before the commit
    claim = 1
    assert first["get_suffix", "segments"] == SLOTS + claim + empty
    assert {made["get_suffix", "segments"] for made in later} == {empty}
    assert {made["get_range", "segments"] for made in by_round} == {tasks * in_a_task}
    assert {made["list", "segments"] for made in later} == {4}, (
        "the tail twice, what is older once, what is to be deleted once"
    )
    assert sum(made.get(("deleted", "keys"), 0) for made in by_round) <= SLOTS + 3 * ROUNDS, (
        "no segment is deleted twice"
    )
    assert max(sum(made.values()) for made in later) <= 100
    assert await read_everything(root) == root.produced


async def test_a_slot_that_holds_another_segment_now_is_read_again() -> None:
    """As when a root is removed and made anew under the same URL while a service goes on."""
    sources = seeded_sources()
    store = Requests(MemoryStore("", sources))
    known = SegmentIndexes()
    for life in (b"first", b"second"):
        writer = await own(store, sources)
        await append_and_wait(writer, batch(life, life))
        history = await read_history(ledger_of(store, 1, known=known))
        again = await read_history(ledger_of(store, 1, known=known))
        fresh = await read_history(ledger_of(store, 1))
        assert (
            [s.index for s in history.segments]
            == [s.index for s in again.segments]
            == [s.index for s in fresh.segments]
        )
        assert history.state.to_proto() == fresh.state.to_proto()
        await store.delete([info.key async for info in store.list("")])


async def test_known_indexes_are_bounded_and_given_up_when_they_are_trimmed() -> None:
    sources = seeded_sources()
    store = Requests(MemoryStore("", sources))
    writer = await own(store, sources)
    for number in range(20):
        await append_and_wait(writer, batch(b"%d" % number))
    read = await read_history(ledger_of(store, 1))
    size = read.segments[5].tail_length
    known = SegmentIndexes(bytes_max=10 * size)
    for _ in range(2):
        await read_history(ledger_of(store, 1, known=known))
        assert 0 < known.bytes_held <= known.bytes_max
    store.made.clear()
    history = await read_history(ledger_of(store, 1, known=known))
    assert 10 <= store.made["get_suffix", "segments"] <= 12
    assert [s.index for s in history.segments] == [s.index for s in read.segments]
    known.drop_below(1, 8)
    assert known.bytes_held <= 3 * size
    known.drop_below(1, 100)
    assert known.bytes_held == 0


@pytest.mark.parametrize("etag", ["a", "b"])
async def test_only_the_same_etag_finds_an_index(etag: str) -> None:
    sources = seeded_sources()
    store = Requests(MemoryStore("", sources))
    await own(store, sources)
    (claim,) = (await read_history(ledger_of(store, 1))).segments
    known = SegmentIndexes()
    known.keep(1, claim, "a")
    assert (known.find(1, claim.index.slot, etag) == replace(claim, stored_ms=0)) == (etag == "a")
    assert known.find(2, claim.index.slot, "a") is None
