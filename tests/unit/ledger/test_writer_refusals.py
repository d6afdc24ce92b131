"""Puts that the store certainly refuses: the term goes on, nothing is acknowledged that is not
stored, and offsets stay dense.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from ledgermq.errors import LedgerMQError, NotOwner, StoreFull, StoreUnusable, Unauthorized
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.log.recovery import recover
from ledgermq_ledger.log.writing.writer import LedgerWriter
from ledgermq_ledger.object_store import settle
from ledgermq_ledger.object_store.contract import Buffer, ObjectStore, StoreUncertain
from ledgermq_ledger.object_store.memory import MemoryStore
from tests.stores.one_put import OnePut
from tests.worlds.ledgers import append, append_and_wait, batch, ledger_of, own, read_values, session


@pytest.fixture
def store(sources: Sources) -> ObjectStore:
    return MemoryStore("writer", sources)


class Refusing(OnePut):
    """`refuses`: what a put of a slot ends with; None: it lands. `later_s`: it takes so long."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.refuses: Callable[[int], LedgerMQError | None] = lambda slot: None
        self.later_s: dict[int, float] = {}

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        slot = keys.number(key) if "/segments/" in key else 0
        await asyncio.sleep(self.later_s.get(slot, 0.0))
        if (error := self.refuses(slot)) is not None:
            raise error
        await super().put_if_absent(key, buffers)


async def outcomes(*waiting: asyncio.Future[int]) -> list[object]:
    """Offsets, and the types of errors."""
    done = await asyncio.gather(*waiting, return_exceptions=True)
    return [type(each) if isinstance(each, BaseException) else each for each in done]


@pytest.mark.parametrize("error", [StoreFull("full"), StoreUnusable("read-only"), Unauthorized("expired")])
async def test_a_refused_put_ends_no_term(store: ObjectStore, sources: Sources, error: LedgerMQError) -> None:
    refusing = Refusing(store)
    writer = await own(refusing, sources)
    await append_and_wait(writer, batch(b"a"))
    refusing.refuses = lambda slot: error
    assert await outcomes(append(writer, batch(b"lost"))[0]) == [type(error)]
    assert writer.lost is None
    assert writer.durable.end(7, 0) == 1
    await writer.check_fence()
    refusing.refuses = lambda slot: None
    assert await append_and_wait(writer, batch(b"b")) == [1]
    assert await read_values(store) == {0: b"a", 1: b"b"}
    await writer.close()


async def test_only_those_from_the_refused_slot_on_are_told_that_nothing_is_stored(
    store: ObjectStore, sources: Sources
) -> None:
    """The slot below is in flight all the while, and is acknowledged as ever."""
    refusing = Refusing(store)
    writer = await own(refusing, sources)
    first = writer.issued_slot + 1
    refusing.later_s[first] = 0.01
    refusing.refuses = lambda slot: StoreFull("full") if slot > first else None
    waiting = [append(writer, batch(value))[0] for value in (b"a", b"b", b"c")]
    assert await outcomes(*waiting) == [0, StoreFull, StoreFull]
    refusing.refuses = lambda slot: None
    assert await append_and_wait(writer, batch(b"d")) == [1]
    assert await read_values(store) == {0: b"a", 1: b"d"}
    await writer.close()


@pytest.mark.parametrize("landed_first", [True, False])
async def test_segments_that_land_behind_a_refused_put_are_void(
    store: ObjectStore, sources: Sources, landed_first: bool
) -> None:
    """Two segments behind the refused one are stored, and no reader counts them: not here, and
    not after a takeover.
    """
    refusing = Refusing(store)
    writer = await own(refusing, sources)
    first = writer.issued_slot + 1
    slow = (first,) if landed_first else (first + 1, first + 2)
    refusing.later_s = dict.fromkeys(slow, 0.01)
    refusing.refuses = lambda slot: StoreFull("full") if slot == first else None
    waiting = [append(writer, batch(value, producer=session(i)))[0] for i, value in enumerate((b"a", b"b", b"c"))]
    assert await outcomes(*waiting) == [StoreFull] * 3
    while writer.puts_in_flight:
        await asyncio.sleep(0.001)
    refusing.refuses = lambda slot: None
    refusing.later_s = {}
    assert await append_and_wait(writer, batch(b"a", producer=session(0))) == [0]
    assert await append_and_wait(writer, batch(b"b", producer=session(1))) == [1]
    assert writer.durable.slot == first + 3  # in `first`, then behind the two void ones
    await writer.check_fence()
    assert await read_values(store) == {0: b"a", 1: b"b"}
    assert (await recover(ledger_of(store, 1))).state.to_proto() == writer.durable.to_proto()
    other = await own(store, sources, "b")
    with pytest.raises(NotOwner):
        await writer.check_fence()
    assert await append_and_wait(other, batch(b"c", producer=session(2))) == [2]
    await writer.close()


async def test_while_it_is_being_settled_nothing_new_is_written(store: ObjectStore, sources: Sources) -> None:
    refusing = Refusing(store)
    writer = await own(refusing, sources)
    first = writer.issued_slot + 1
    refusing.later_s = {first + 1: 0.01}
    refusing.refuses = lambda slot: StoreFull("full") if slot == first else None
    lost = [append(writer, batch(b"a"))[0], append(writer, batch(b"b"))[0]]
    assert await outcomes(*lost) == [StoreFull] * 2
    assert await outcomes(append(writer, batch(b"c"))[0]) == [StoreFull]
    await writer.drain()
    refusing.refuses = lambda slot: None
    assert await append_and_wait(writer, batch(b"d")) == [0]
    await writer.close()


async def test_an_unknown_outcome_still_ends_the_term(
    store: ObjectStore, sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle, "ATTEMPTS_MAX", 2)
    refusing = Refusing(store)
    writer = await own(refusing, sources)
    first = writer.issued_slot + 1
    errors = {first: StoreFull("full"), first + 1: StoreUncertain("no answer")}
    refusing.refuses = errors.get
    waiting = [append(writer, batch(b"a"))[0], append(writer, batch(b"b"))[0]]
    assert await outcomes(*waiting) == [
        StoreFull,
        StoreFull,
    ]  # it links to what never was: it may be stored, and is void
    await writer.ended.wait()
    assert isinstance(writer.lost, NotOwner)
    await writer.close()


async def test_a_claim_in_the_refused_slot_is_seen(store: ObjectStore, sources: Sources) -> None:
    """Its slot is empty for others too: who reads from memory must look there, though own segments
    stand behind it.
    """
    refusing = Refusing(store)
    writer = await own(refusing, sources)
    first = writer.issued_slot + 1
    refusing.later_s = {first + 2: 0.05}
    refusing.refuses = lambda slot: StoreFull("full") if slot == first else None
    lost = [append(writer, batch(b"x"))[0] for _ in range(3)]
    assert await outcomes(*lost) == [StoreFull] * 3
    await own(store, sources, "b")
    with pytest.raises(NotOwner):
        await writer.check_fence()


async def test_a_refused_release_leaves_the_term_as_it_was(store: ObjectStore, sources: Sources) -> None:
    refusing = Refusing(store)
    writer: LedgerWriter = await own(refusing, sources)
    refusing.refuses = lambda slot: StoreFull("full")
    with pytest.raises(StoreFull):
        await writer.release("b")
    refusing.refuses = lambda slot: None
    assert await append_and_wait(writer, batch(b"a")) == [0]
    await writer.release("b")
    assert writer.lost is not None
