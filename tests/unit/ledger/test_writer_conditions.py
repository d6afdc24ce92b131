"""Appends that expect where their partition ends (design P12): judged by what is issued, after repetitions, and
refused only for what is durable.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from ledgermq.errors import ConditionFailed, NotOwner
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.log.segments.segment import Batch
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from tests.unit.ledger.test_writer import HeldStore
from tests.worlds.ledgers import append, append_and_wait, batch, own, read_values, session


@pytest.fixture
def store(sources: Sources) -> ObjectStore:
    return MemoryStore("conditions", sources)


def expecting(end: int, value: bytes, sequence: int = 0, producer: int = 1) -> Batch:
    return replace(batch(value, producer=session(sequence, producer)), expect_end=end)


async def test_a_batch_is_stored_only_where_it_expects_the_end(store: ObjectStore, sources: Sources) -> None:
    writer = await own(store, sources)
    assert await append_and_wait(writer, expecting(0, b"a")) == [0]
    for wrong in (0, 2):
        with pytest.raises(ConditionFailed, match="nothing of it is stored") as refused:
            await append_and_wait(writer, expecting(wrong, b"b", 1))
        assert refused.value.end == 1
    assert await append_and_wait(writer, expecting(1, b"c", 1)) == [1]
    assert await read_values(store) == {0: b"a", 1: b"c"}


async def test_of_two_with_one_condition_in_one_segment_one_is_stored(store: ObjectStore, sources: Sources) -> None:
    writer = await own(store, sources)
    first, second, next_one = append(
        writer, expecting(0, b"a"), expecting(0, b"b", producer=2), expecting(1, b"c", producer=3)
    )
    assert (await first, await next_one) == (0, 1)
    with pytest.raises(ConditionFailed) as refused:
        await second
    assert refused.value.end == 1


async def test_a_repetition_is_acknowledged_whatever_its_condition_says_by_now(
    store: ObjectStore, sources: Sources
) -> None:
    first = await own(store, sources, "a")
    assert await append_and_wait(first, expecting(0, b"a")) == [0]
    await append_and_wait(first, batch(b"b"))
    assert await append_and_wait(first, expecting(0, b"a")) == [0]
    second = await own(store, sources, "b")
    assert await append_and_wait(second, expecting(0, b"a")) == [0]
    assert await read_values(store) == {0: b"a", 1: b"b"}


async def test_a_failure_waits_until_its_cause_is_durable(store: ObjectStore, sources: Sources) -> None:
    held = HeldStore(store)
    writer = await own(held, sources)
    held.hold(keys.segment(1, writer.issued_slot + 1))
    cause, late = append(writer, batch(b"a"))[0], append(writer, expecting(0, b"b"))[0]
    for _ in range(20):
        await asyncio.sleep(0)
    assert not late.done()
    held.gate.set()
    assert await cause == 0
    with pytest.raises(ConditionFailed) as refused:
        await late
    assert refused.value.end == 1


async def test_a_fenced_owner_refuses_no_condition(store: ObjectStore, sources: Sources) -> None:
    former = await own(store, sources, "a")
    second = await own(store, sources, "b")
    await append_and_wait(second, batch(b"a"))
    with pytest.raises(NotOwner):
        await append_and_wait(former, expecting(1, b"b"))
    with pytest.raises(ConditionFailed):
        await append_and_wait(second, expecting(0, b"b"))
