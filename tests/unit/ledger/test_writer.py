"""One term of ownership, and the traps of docs/design.md (L1 to L8): each test here loses or
doubles a record without its rule.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from ledgermq.errors import NotOwner, OutOfOrderSequence, UnknownProducer
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.chains.checkpoint import Move
from ledgermq_ledger.log.recovery import advance_checkpoint, recover
from ledgermq_ledger.log.segments.segment import encode_segment, first_batch_position
from ledgermq_ledger.log.writing.writer import LedgerWriter
from ledgermq_ledger.object_store.contract import Buffer, ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from tests.stores.faulty import FaultyStore
from tests.stores.one_put import OnePut
from tests.waiting import until
from tests.worlds.ledgers import STATES_MAX, append, append_and_wait, batch, ledger_of, own, read_values, session


@pytest.fixture
def store(sources: Sources) -> ObjectStore:
    return MemoryStore("writer", sources)


async def test_offsets_are_dense_per_partition(store: ObjectStore, sources: Sources) -> None:
    writer = await own(store, sources)
    assert await append_and_wait(writer, batch(b"a", b"b"), batch(b"x", partition=1), batch(b"c")) == [0, 0, 2]
    assert await append_and_wait(writer, batch(b"d"), batch(b"y", partition=1)) == [3, 1]
    assert await read_values(store) == {0: b"a", 1: b"b", 2: b"c", 3: b"d"}
    assert await read_values(store, partition=1) == {0: b"x", 1: b"y"}


async def test_takeover_continues_where_the_former_owner_ended(store: ObjectStore, sources: Sources) -> None:
    first = await own(store, sources, "a")
    await append_and_wait(first, batch(b"a"))
    second = await own(store, sources, "b")
    assert second.epoch == first.epoch + 1
    assert await append_and_wait(second, batch(b"b")) == [1]


async def test_a_fenced_writer_never_acknowledges(store: ObjectStore, sources: Sources) -> None:
    first = await own(store, sources, "a")
    second = await own(store, sources, "b")
    waiting = append(first, batch(b"lost"))
    with pytest.raises(NotOwner):
        await waiting[0]
    assert first.lost is not None
    with pytest.raises(NotOwner):
        await append(first, batch(b"later"))[0]
    await append_and_wait(second, batch(b"kept"))
    assert await read_values(store) == {0: b"kept"}


async def test_pipelined_puts_behind_a_lost_one_are_void(store: ObjectStore, sources: Sources) -> None:
    """The link: slot n goes to a late put of a former owner, the owner's own n+1 has landed
    already; it must not count.
    """
    former = await own(store, sources, "a")
    held = HeldStore(store)
    owner = await own(held, sources, "b")
    held.hold(keys.segment(1, owner.issued_slot + 1))
    lost = append(owner, batch(b"n"))[0], append(owner, batch(b"n+1", partition=1))[0]
    await until(lambda: exists(store, keys.segment(1, owner.issued_slot)))
    await put_late(store, former, owner.issued_slot - 1, sources)
    held.gate.set()
    for future in lost:
        with pytest.raises(NotOwner):
            await future
    again = await own(store, sources, "b")
    assert await append_and_wait(again, batch(b"n+1", partition=1), batch(b"n")) == [0, 0]
    assert await read_values(store, partition=0) == {0: b"n"}
    assert await read_values(store, partition=1) == {0: b"n+1"}


async def put_late(store: ObjectStore, former: LedgerWriter, slot: int, sources: Sources) -> None:
    """What a put of a fenced writer leaves behind when it lands after all."""
    value = batch(b"late")
    index = fmt.SegmentIndex(
        bundle=1,
        slot=slot,
        epoch=former.epoch,
        kind=fmt.DATA,
        writer=former.durable.writer,
        put_id=sources.new_id(),
        previous=former.durable.last_put_id,
    )
    index.batches.append(value.entry(0, first_batch_position()))
    await store.put_if_absent(keys.segment(1, slot), encode_segment(index, [value.data]))


class HeldStore(OnePut):
    """Holds the puts of one key until the gate opens."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.gate = asyncio.Event()
        self._held = ""

    def hold(self, key: str) -> None:
        self._held = key

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        if key == self._held:
            await self.gate.wait()
        await self.inner.put_if_absent(key, buffers)


async def exists(store: ObjectStore, key: str) -> bool:
    return any([info.key == key async for info in store.list(key)])


async def test_acknowledgement_waits_for_all_slots_below(store: ObjectStore, sources: Sources) -> None:
    held = HeldStore(store)
    writer = await own(held, sources)
    held.hold(keys.segment(1, writer.issued_slot + 1))
    lower, upper = append(writer, batch(b"lower"))[0], append(writer, batch(b"upper"))[0]
    await until(lambda: exists(store, keys.segment(1, writer.issued_slot)))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not upper.done()
    assert writer.durable.end(7, 0) == 0
    held.gate.set()
    assert (await lower, await upper) == (0, 1)


@pytest.mark.parametrize("fault", ["before", "after", "late", "throttle"])
async def test_a_put_of_unknown_outcome_is_settled_by_reading_back(
    store: ObjectStore, sources: Sources, fault: str
) -> None:
    faulty = FaultyStore(store, sources)
    writer = await own(faulty, sources)
    faulty.script("put_if_absent", fault)  # type: ignore[arg-type]
    assert await append_and_wait(writer, batch(b"once")) == [0]
    await faulty.settled()
    assert await read_values(store) == {0: b"once"}


class PausedClaim(OnePut):
    """Its owner sleeps between recovery and claim, while `meanwhile` happens."""

    def __init__(self, inner: ObjectStore, meanwhile: Callable[[], Awaitable[None]]) -> None:
        super().__init__(inner)
        self._meanwhile = meanwhile

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        await self._meanwhile()
        await self.inner.put_if_absent(key, buffers)


async def test_a_claim_that_fills_a_deleted_slot_opens_no_term(store: ObjectStore, sources: Sources) -> None:
    """The second recovery: the slot for which the claim was meant was written, trimmed and deleted
    while the claimer slept.
    """
    owner = await own(store, sources, "a")

    async def meanwhile() -> None:
        slot = owner.issued_slot + 1
        await append_and_wait(owner, batch(b"a"))
        await append_and_wait(owner, batch(b"b"))
        await advance_checkpoint(ledger_of(store, 1, sources=sources), trim_to(owner.durable.slot + 1), owner.durable)
        await store.delete([keys.segment(1, slot)])

    with pytest.raises(NotOwner):
        await own(PausedClaim(store, meanwhile), sources, "zombie")
    assert await append_and_wait(owner, batch(b"c")) == [2]


def trim_to(slot: int) -> Move:
    def move(draft: fmt.Checkpoint) -> bool:
        draft.trim_slot = slot
        return True

    return move


async def test_a_zombie_that_fills_a_deleted_slot_runs_into_a_kept_claim(store: ObjectStore, sources: Sources) -> None:
    """Its put of slot n succeeds, for n was deleted; but the claim that ended its term stands
    below, in a slot that it never won.
    """
    held = HeldStore(store)
    zombie = await own(held, sources, "zombie")
    held.hold(keys.segment(1, zombie.issued_slot + 1))
    first = append(zombie, batch(b"z1"))[0]
    owner = await own(store, sources, "b")
    await append_and_wait(owner, batch(b"b"))
    await advance_checkpoint(ledger_of(store, 1, sources=sources), trim_to(owner.durable.slot + 1), owner.durable)
    await store.delete([keys.segment(1, owner.durable.slot)])
    second = append(zombie, batch(b"z2"))[0]
    await until(lambda: exists(store, keys.segment(1, owner.durable.slot)))
    held.gate.set()
    for future in (first, second):
        with pytest.raises(NotOwner):
            await future


async def test_a_late_put_of_a_former_owner_is_void_and_the_owner_claims_again(
    store: ObjectStore, sources: Sources
) -> None:
    former = await own(store, sources, "a")
    await append_and_wait(former, batch(b"a"))
    owner = await own(store, sources, "b")
    await put_late(store, former, owner.issued_slot + 1, sources)
    with pytest.raises(NotOwner):
        await append(owner, batch(b"b"))[0]
    again = await own(store, sources, "b")
    assert await append_and_wait(again, batch(b"b")) == [1]
    assert await read_values(store) == {0: b"a", 1: b"b"}


async def test_the_fence_check_sees_a_claim_without_any_put(store: ObjectStore, sources: Sources) -> None:
    first = await own(store, sources, "a")
    await first.check_fence()
    await own(store, sources, "b")
    with pytest.raises(NotOwner):
        await first.check_fence()
    assert first.lost is not None


async def test_the_fence_check_looks_beyond_an_own_slot_that_is_gone(store: ObjectStore, sources: Sources) -> None:
    """A slot that this writer has put and that is absent may have landed and been deleted: the
    claim stands above it.
    """
    faulty = FaultyStore(store, sources)
    first = await own(faulty, sources, "a")
    slot = first.issued_slot + 1
    faulty.script("put_if_absent", "after")
    faulty.script("get_suffix", "before")
    waiting = append(first, batch(b"landed"))[0]
    await until(lambda: exists(store, keys.segment(1, slot)))
    assert not waiting.done()
    second = await own(store, sources, "b")
    await append_and_wait(second, batch(b"b"))
    await store.delete([keys.segment(1, slot)])  # as trimming would
    with pytest.raises(NotOwner):
        await first.check_fence()


async def test_concurrent_fence_checks_share_their_reads(store: ObjectStore, sources: Sources) -> None:
    faulty = FaultyStore(store, sources)
    writer = await own(faulty, sources)
    before = faulty.calls["get_suffix"]
    await asyncio.gather(*(writer.check_fence() for _ in range(50)))
    assert faulty.calls["get_suffix"] - before <= 2


async def test_release_ends_the_term_in_the_ledger(store: ObjectStore, sources: Sources) -> None:
    first = await own(store, sources, "a")
    waiting = append(first, batch(b"a"))[0]
    await first.release("b")
    assert await waiting == 0
    state = (await recover(ledger_of(store, 1))).state
    assert state.released
    with pytest.raises(NotOwner) as caught:
        await append(first, batch(b"later"))[0]
    assert caught.value.owner == "b"


async def test_a_retry_joins_the_flush_that_holds_it_and_is_stored_once(store: ObjectStore, sources: Sources) -> None:
    writer = await own(store, sources)
    first, again = (
        append(writer, batch(b"a", producer=session(0)))[0],
        append(writer, batch(b"a", producer=session(0)))[0],
    )
    assert (await first, await again) == (0, 0)
    assert await append_and_wait(writer, batch(b"a", producer=session(0))) == [0]
    assert await read_values(store) == {0: b"a"}


async def test_a_retry_after_takeover_is_stored_once(store: ObjectStore, sources: Sources) -> None:
    first = await own(store, sources, "a")
    await append_and_wait(first, batch(b"a", b"b", producer=session(0)))
    second = await own(store, sources, "b")
    assert await append_and_wait(second, batch(b"a", b"b", producer=session(0))) == [0]
    assert await append_and_wait(second, batch(b"c", producer=session(2))) == [2]


async def test_sequences_out_of_order_are_refused_and_nothing_is_stored(store: ObjectStore, sources: Sources) -> None:
    writer = await own(store, sources)
    await append_and_wait(writer, batch(b"a", producer=session(0)))
    with pytest.raises(OutOfOrderSequence):
        await append(writer, batch(b"gap", producer=session(5)))[0]
    with pytest.raises(UnknownProducer):
        await append(writer, batch(b"who", producer=session(3, producer=2)))[0]
    assert await read_values(store) == {0: b"a"}


async def test_a_forgotten_producer_is_not_taken_for_a_new_one(store: ObjectStore, sources: Sources) -> None:
    writer = await own(store, sources)
    for producer in range(STATES_MAX + 1):
        await append_and_wait(
            writer, batch(b"a", producer=session(0, producer=producer, opened_slot=writer.durable.slot))
        )
    with pytest.raises(UnknownProducer, match="forgotten"):
        await append(writer, batch(b"a", producer=session(0, producer=0, opened_slot=1)))[0]
    assert len(await read_values(store)) == STATES_MAX + 1


async def test_recovery_starts_from_the_checkpoint_and_says_the_same(store: ObjectStore, sources: Sources) -> None:
    writer = await own(store, sources)
    for value in (b"a", b"b", b"c"):
        await append_and_wait(writer, batch(value, producer=session(ord(value) - ord("a"))))
    full = (await recover(ledger_of(store, 1))).state.to_proto()
    checkpoint = await advance_checkpoint(ledger_of(store, 1, sources=sources), durable=writer.durable)
    assert checkpoint is not None
    after = await recover(ledger_of(store, 1))
    assert after.tail == []
    assert after.state.to_proto() == full == checkpoint.state
