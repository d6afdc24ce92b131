"""Seals and opens in one ledger: what they refuse, what they take along, what is void."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ledgermq.errors import DataDamaged, DuplicateMessage, NotOwner, UnknownProducer
from ledgermq.protocol.naming.message_ids import hash_of
from ledgermq.sources import Sources
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.fold import LedgerState
from ledgermq_ledger.log.partitions.moves import open_after
from ledgermq_ledger.log.recovery import advance_checkpoint, recover
from ledgermq_ledger.log.writing.writer import LedgerWriter
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from tests.worlds.ledgers import STATES_MAX, TOPIC_ID, append, append_and_wait, batch, ledger_of, own, session

KEY = PartitionId(TOPIC_ID, 0)
MOVE = 21


@pytest.fixture
def store(sources: Sources) -> ObjectStore:
    return MemoryStore("moves", sources)


async def move_to(source: LedgerWriter, target: LedgerWriter, move: int = MOVE, after: int = 0) -> None:
    sealed = source.seal(KEY, move, target.bundle, after)
    assert sealed is not None
    end = await sealed
    seal = source.durable.moves.seal_of(KEY)
    assert seal is not None
    opened = target.open_partition(open_after(seal, source.bundle))
    assert opened is not None
    assert await opened == end


async def test_offsets_go_on_in_the_other_ledger_and_other_partitions_stay(
    store: ObjectStore, sources: Sources
) -> None:
    one, two = await own(store, sources), await own(store, sources, bundle=2)
    await append_and_wait(one, batch(b"a", b"b"), batch(b"x", partition=1))
    await move_to(one, two)
    assert await append_and_wait(two, batch(b"c")) == [2]
    with pytest.raises(NotOwner, match=r"moved to bundle 2 .*from offset 2 on"):
        await append_and_wait(one, batch(b"c"))
    assert await append_and_wait(one, batch(b"y", partition=1)) == [1]


async def test_what_is_in_flight_comes_before_the_seal(store: ObjectStore, sources: Sources) -> None:
    one = await own(store, sources)
    before = append(one, batch(b"a"))
    sealed = one.seal(KEY, MOVE, 2)
    late = append(one, batch(b"b"))
    assert sealed is not None
    assert (await before[0], await sealed) == (0, 1)
    with pytest.raises(NotOwner):
        await late[0]


async def test_a_retry_of_an_imported_batch_is_answered_and_not_stored_again(
    store: ObjectStore, sources: Sources
) -> None:
    one, two = await own(store, sources), await own(store, sources, bundle=2)
    await append_and_wait(one, batch(b"a", producer=session(0)))
    await move_to(one, two)
    assert await append_and_wait(two, batch(b"a", producer=session(0)), batch(b"b", producer=session(1))) == [0, 1]
    again = await own(store, sources, "b", bundle=2)
    assert await append_and_wait(again, batch(b"a", producer=session(0)), batch(b"b", producer=session(1))) == [0, 1]


async def test_a_session_of_the_other_ledger_counts_as_opened_at_no_slot(store: ObjectStore, sources: Sources) -> None:
    """Its slot is a number of another chain, so it proves nothing about states that were dropped here."""
    one, two = await own(store, sources), await own(store, sources, bundle=2)
    opened_there = one.durable.moves.opened_slot(KEY, 10**6)
    await move_to(one, two)
    with pytest.raises(UnknownProducer, match="at slot 0"):
        await append_and_wait(two, batch(b"a", producer=session(0, opened_slot=opened_there)))
    opened_here = two.durable.moves.opened_slot(KEY, two.durable.slot + 1)
    assert opened_here < 1 << 63
    assert await append_and_wait(two, batch(b"a", producer=session(0, opened_slot=opened_here))) == [0]
    await move_to(two, one, MOVE + 1, MOVE)
    with pytest.raises(UnknownProducer, match="at slot 0"):
        await append_and_wait(one, batch(b"b", producer=session(0, 2, opened_there)))


async def test_imported_producers_that_are_dropped_raise_what_is_forgotten(
    store: ObjectStore, sources: Sources
) -> None:
    """They count as seen in the slot of the open."""
    one, two = await own(store, sources), await own(store, sources, bundle=2)
    await append_and_wait(one, batch(b"a", producer=session(0)))
    for producer in range(STATES_MAX):
        await append_and_wait(two, batch(b"x", partition=1, producer=session(0, 100 + producer)))
    await move_to(one, two)
    assert two.durable.producers.forgotten_to == 2, "the oldest of the others made room"
    opened = two.durable.slot
    for producer in range(STATES_MAX):
        await append_and_wait(two, batch(b"y", partition=1, producer=session(0, 300 + producer)))
    assert two.durable.producers.forgotten_to == opened
    old = two.durable.moves.opened_slot(KEY, opened)
    with pytest.raises(UnknownProducer):
        await append_and_wait(two, batch(b"a", producer=session(0, opened_slot=old)))


async def test_ids_of_messages_and_the_stamped_time_go_along(store: ObjectStore, sources: Sources) -> None:
    one, two = await own(store, sources), await own(store, sources, bundle=2)
    with_id = replace(batch(b"a"), ids=hash_of(b"order-1"), ids_us=1000, ids_until_us=5000)
    await append_and_wait(one, with_id)
    await move_to(one, two)
    assert two.durable.append_us == 1000
    assert (one.durable.ids.count, two.durable.ids.count) == (0, 1)
    with pytest.raises(DuplicateMessage) as caught:
        await append_and_wait(two, replace(with_id, ids_us=2000))
    assert list(caught.value.stored) == [(0, 0)]


async def test_the_states_survive_a_checkpoint_and_a_takeover(store: ObjectStore, sources: Sources) -> None:
    one, two = await own(store, sources), await own(store, sources, bundle=2)
    await append_and_wait(one, batch(b"a", producer=session(0)))
    await move_to(one, two)
    for bundle, writer in ((1, one), (2, two)):
        await advance_checkpoint(ledger_of(store, bundle, sources=sources))
        state = (await recover(ledger_of(store, bundle))).state
        assert state.to_proto() == writer.durable.to_proto()
    heir = await own(store, sources, "b")
    with pytest.raises(NotOwner, match="moved to bundle 2"):
        await append_and_wait(heir, batch(b"b"))
    assert heir.seal(KEY, MOVE, 3) is None, "a repeated seal of the same move"
    assert heir.seal(KEY, MOVE + 1, 3, MOVE) is None, "it has left"


async def test_moves_that_the_ledger_knows_already_are_void(store: ObjectStore, sources: Sources) -> None:
    one, two = await own(store, sources), await own(store, sources, bundle=2)
    await append_and_wait(one, batch(b"a"))
    await move_to(one, two)
    first = one.durable.moves.seal_of(KEY)
    assert first is not None
    assert two.open_partition(open_after(first, 1)) is None
    assert two.seal(KEY, MOVE + 1, 3) is None, "it names another move before it than the one that brought it"
    await append_and_wait(two, batch(b"b"))
    await move_to(two, one, MOVE + 1, MOVE)
    assert two.open_partition(open_after(first, 1)) is None
    state = two.durable.copy()
    state.open_segment(fmt.SegmentIndex(slot=state.slot + 1, opens=[open_after(first, 1)], seals=[first]))
    assert state.moves.move(KEY) == MOVE + 1, "and who reads them all the same lets them pass"
    assert state.end(*KEY) == 2
    assert await append_and_wait(one, batch(b"c")) == [2]


def index_of(**content: object) -> fmt.SegmentIndex:
    return fmt.SegmentIndex(slot=1, kind=fmt.CLAIM, epoch=1, writer=b"w", put_id=b"p", **content)  # type: ignore[arg-type]


SEAL = fmt.PartitionSeal(topic_id=TOPIC_ID, move=MOVE, end=0, target=2)
OPEN = fmt.PartitionOpen(topic_id=TOPIC_ID, move=MOVE, start=5, source=2)
ENTRY = fmt.BatchEntry(topic_id=TOPIC_ID, base_offset=0, record_count=1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"seals": [SEAL], "batches": [ENTRY]}, "which move 21 has sealed"),
        ({"seals": [fmt.PartitionSeal(topic_id=TOPIC_ID, move=MOVE, end=4)]}, "seals partition .* at offset 4, but"),
        ({"opens": [OPEN, fmt.PartitionOpen(topic_id=TOPIC_ID, move=22, start=9)]}, "is here with end 5"),
        ({"opens": [OPEN], "batches": [ENTRY]}, "from offset 0, but the partition ends at 5"),
    ],
)
def test_a_ledger_that_contradicts_itself_is_damaged(content: dict[str, object], message: str) -> None:
    with pytest.raises(DataDamaged, match=message):
        LedgerState(STATES_MAX).apply(index_of(**content))


def test_a_removed_topic_takes_its_moves_along() -> None:
    state = LedgerState(STATES_MAX)
    state.apply(index_of(seals=[SEAL]))
    state.drop_topic(TOPIC_ID)
    assert not state.to_proto().seals
