"""How a term of ownership ends: no caller waits forever, no zombie decides an outcome, and
looking for a claim has an end.
"""

from __future__ import annotations

import asyncio

import pytest

from ledgermq.errors import LedgerMQError, NotOwner, OutOfOrderSequence, Unavailable, UnknownProducer
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.segments.segment import encode_segment
from ledgermq_ledger.log.writing.shared_run import SharedRun
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from tests.stores.faulty import Faults, FaultyStore
from tests.worlds.ledgers import append, append_and_wait, batch, ledger_of, own, read_values, session, take_over


@pytest.fixture
def store(sources: Sources) -> ObjectStore:
    return MemoryStore("writer", sources)


async def test_a_bug_in_a_listener_leaves_no_waiter_behind(store: ObjectStore, sources: Sources) -> None:
    def broken(index: fmt.SegmentIndex, data: object, keys: object) -> None:
        raise ZeroDivisionError

    writer = await take_over(ledger_of(store, sources=sources), "a", on_durable=broken)
    first, second = append(writer, batch(b"a"))[0], append(writer, batch(b"b"))[0]
    for waiting in (first, second):
        with pytest.raises(NotOwner, match="ZeroDivisionError"):
            await waiting
    assert writer.ended.is_set()
    await writer.close()


async def test_a_sequence_is_refused_for_good_only_by_the_current_owner(store: ObjectStore, sources: Sources) -> None:
    """The producer went on at the next owner; a late request of it reaches the zombie, which knows
    nothing of that.
    """
    zombie = await own(store, sources, "a")
    await append_and_wait(zombie, batch(b"a", producer=session(0)))
    owner = await own(store, sources, "b")
    await append_and_wait(owner, batch(b"b", producer=session(1)))
    with pytest.raises(NotOwner):
        await append(zombie, batch(b"c", producer=session(2)))[0]
    assert await append_and_wait(owner, batch(b"c", producer=session(2))) == [2]
    with pytest.raises(OutOfOrderSequence):
        await append(owner, batch(b"x", producer=session(7)))[0]


async def test_refusals_are_answered_when_the_term_ends_meanwhile(store: ObjectStore, sources: Sources) -> None:
    writer = await own(store, sources)
    refused = append(writer, batch(b"x", producer=session(7)))[0]
    await writer.close()
    with pytest.raises(NotOwner):
        await refused


async def test_refusals_share_the_fence_check(store: ObjectStore, sources: Sources) -> None:
    faulty = FaultyStore(store, sources)
    writer = await own(faulty, sources)
    before = faulty.calls["get_suffix"]
    waiting = append(writer, *[batch(b"x", producer=session(7, producer)) for producer in range(50)])
    for refused in waiting:
        with pytest.raises(UnknownProducer):
            await refused
    assert faulty.calls["get_suffix"] - before <= 2


class SlowReads(StoreWrapper):
    """While it reads one index the writer puts another segment: a look that went on to the last
    slot would never end.
    """

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.writer = None
        self.reads = 0

    async def get_suffix(self, key: str, length: int) -> bytes:
        if self.writer is not None:
            self.reads += 1
            assert self.reads < 20
            await append_and_wait(self.writer, batch(b"x"))
        return await self.inner.get_suffix(key, length)


async def test_the_fence_check_ends_though_the_writer_is_faster(store: ObjectStore, sources: Sources) -> None:
    slow = SlowReads(store)
    writer = await own(slow, sources)
    slow.writer = writer  # type: ignore[assignment]
    await writer.check_fence()
    assert slow.reads <= 2


async def test_the_fence_check_looks_beyond_void_segments(store: ObjectStore, sources: Sources) -> None:
    """A late put of a former owner fills the slot after ours, so the claim that fences us stands in
    the one above.
    """
    former = await own(store, sources, "a")
    zombie = await own(store, sources, "b")
    late = fmt.SegmentIndex(
        bundle=1,
        slot=zombie.issued_slot + 1,
        epoch=former.epoch,
        kind=fmt.DATA,
        writer=former.durable.writer,
        put_id=sources.new_id(),
        previous=former.durable.last_put_id,
    )
    await store.put_if_absent(keys.segment(1, late.slot), encode_segment(late, []))
    await zombie.check_fence()
    await own(store, sources, "c")
    with pytest.raises(NotOwner):
        await zombie.check_fence()


async def test_nothing_is_written_behind_a_release(store: ObjectStore, sources: Sources) -> None:
    writer = await own(store, sources)
    release = asyncio.create_task(writer.release("b"))
    await asyncio.sleep(0)
    assert writer.issued_slot == 2
    with pytest.raises(NotOwner):
        await append(writer, batch(b"late"))[0]
    await release
    assert await read_values(store) == {}


async def test_close_leaves_no_task_and_may_be_repeated(store: ObjectStore, sources: Sources) -> None:
    before = asyncio.all_tasks()
    writer = await own(store, sources)
    writer._store = FaultyStore(store, sources, Faults(delay_s_max=0.05))
    waiting = append(writer, batch(b"a"))[0]
    check = asyncio.create_task(writer.check_fence())
    await asyncio.sleep(0)
    await writer.close()
    await writer.close()
    for ended in (waiting, check):
        with pytest.raises(LedgerMQError):
            await ended
    assert asyncio.all_tasks() == before


async def test_those_who_ask_during_a_run_share_the_next() -> None:
    runs: list[int] = []
    gate = asyncio.Event()

    async def work() -> None:
        runs.append(len(runs))
        await gate.wait()

    shared = SharedRun(work)
    first = asyncio.create_task(shared.run())
    await asyncio.sleep(0.001)
    others = [asyncio.create_task(shared.run()) for _ in range(5)]
    others[0].cancel()
    await asyncio.sleep(0.001)
    assert runs == [0]
    gate.set()
    await first
    await asyncio.gather(*others[1:])
    assert runs == [0, 1]


async def test_a_closed_run_tells_those_who_wait() -> None:
    shared = SharedRun(asyncio.Event().wait)  # type: ignore[arg-type]
    waiting = asyncio.create_task(shared.run())
    await asyncio.sleep(0.001)
    await shared.close()
    with pytest.raises(Unavailable):
        await waiting
    with pytest.raises(Unavailable):
        await shared.run()
