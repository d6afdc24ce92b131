"""Random walks over one ledger with several writers: whatever they do, the safety invariants hold."""

from __future__ import annotations

import asyncio
import random

import pytest

from ledgermq.errors import LedgerMQError, NotOwner
from ledgermq_ledger.log.recovery import advance_checkpoint, recover
from ledgermq_ledger.log.writing.writer import LedgerWriter
from ledgermq_ledger.object_store.memory import MemoryStore
from tests.stores.faulty import Faults, FaultyStore
from tests.virtual_time import virtual, virtual_sources
from tests.worlds.ledgers import append, batch, ledger_of, read_values, take_over


@pytest.mark.parametrize("seed", range(60))
@virtual
async def test_acknowledged_records_are_kept_once_and_in_order(seed: int) -> None:
    draw = random.Random(seed)
    store = MemoryStore("walk", virtual_sources(seed))
    acknowledged: dict[tuple[int, int], bytes] = {}
    counter = 0
    writers: list[LedgerWriter] = []
    waiting: list[tuple[int, bytes, asyncio.Future[int]]] = []

    async def collect(pending: list[tuple[int, bytes, asyncio.Future[int]]]) -> None:
        for partition, value, future in pending:
            try:
                offset = await future
            except LedgerMQError:
                continue
            assert (partition, offset) not in acknowledged
            acknowledged[partition, offset] = value

    for _ in range(60):
        action = draw.random()
        if action < 0.15 or not writers:
            sources = virtual_sources(draw.getrandbits(32))
            faults = Faults(before=0.05, after=0.05, late=0.1, throttle=0.02, delay_s_max=draw.choice([0.01, 0.3, 2.0]))
            try:
                writer = await take_over(
                    ledger_of(FaultyStore(store, sources, faults), 1, sources=sources), f"b{draw.randrange(3)}"
                )
                writers.append(writer)
            except LedgerMQError:
                continue
        elif action < 0.9:
            writer = draw.choice(writers[-3:])
            batches = [(draw.randrange(2), str(counter := counter + 1).encode()) for _ in range(draw.randrange(1, 4))]
            futures = append(writer, *(batch(value, partition=partition) for partition, value in batches))
            waiting += [(p, v, f) for (p, v), f in zip(batches, futures, strict=True)]
        elif action < 0.95:
            await asyncio.sleep(draw.choice([0.01, 1.0, 20.0]))
        else:
            try:
                await advance_checkpoint(ledger_of(store, 1, sources=virtual_sources(draw.getrandbits(32))))
            except NotOwner:
                pass
    await collect(waiting)
    state = (await recover(ledger_of(store, 1))).state
    for partition in range(2):
        values = await read_values(store, partition)
        assert sorted(values) == list(range(len(values))) == list(range(state.end(7, partition)))
        assert len(set(values.values())) == len(values)
        for (p, offset), value in acknowledged.items():
            if p == partition:
                assert values[offset] == value
    for writer in writers:
        writer.end(NotOwner("the walk is over"))
