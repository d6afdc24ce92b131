"""Whom a writer refuses, because another producer has the partition: what is stored is acknowledged again, and
only the present owner tells a producer that it may not write.
"""

from __future__ import annotations

import asyncio

import pytest

from ledgermq.errors import NotOwner, PartitionHeld, ProducerFenced, Unavailable
from ledgermq.sources import Sources
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.writing.in_flight import Append
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from tests.worlds.ledgers import append, append_and_wait, batch, ledger_of, own, read_values, session, take_over


class Rule:
    """Refuses everybody with `error`, if there is one."""

    error: Exception | None = None

    def __call__(self, key: PartitionId, producer_id: bytes, principal: int) -> None:
        if self.error is not None:
            raise self.error


@pytest.fixture
def store(sources: Sources) -> ObjectStore:
    return MemoryStore("writer", sources)


async def test_a_stored_batch_is_acknowledged_again_and_the_next_one_refused(
    store: ObjectStore, sources: Sources
) -> None:
    rule = Rule()
    writer = await take_over(ledger_of(store, sources=sources), "a", may_write=rule)
    assert await append_and_wait(writer, batch(b"a", producer=session(0))) == [0]
    rule.error = ProducerFenced("fenced")
    assert await append_and_wait(writer, batch(b"a", producer=session(0))) == [0]
    with pytest.raises(ProducerFenced):
        await append(writer, batch(b"b", producer=session(1)))[0]
    rule.error = Unavailable("its holder changes")
    with pytest.raises(Unavailable):
        await append(writer, batch(b"b", producer=session(1)))[0]
    own_batch = Append(batch(b"own"), asyncio.get_running_loop().create_future(), is_own=True)
    writer.write([own_batch])
    assert await own_batch.done == 1
    rule.error = None
    assert await append_and_wait(writer, batch(b"b", producer=session(1))) == [2]
    assert await read_values(store) == {0: b"a", 1: b"own", 2: b"b"}
    await writer.close()


@pytest.mark.parametrize("error", [ProducerFenced("fenced"), PartitionHeld("held")])
async def test_a_former_owner_tells_no_producer_that_it_may_not_write(
    store: ObjectStore, sources: Sources, error: Exception
) -> None:
    rule = Rule()
    zombie = await take_over(ledger_of(store, sources=sources), "a", may_write=rule)
    rule.error = error
    with pytest.raises(type(error)):
        await append(zombie, batch(b"a"))[0]
    owner = await own(store, sources, "b")
    with pytest.raises(NotOwner):
        await append(zombie, batch(b"a"))[0]
    assert await append_and_wait(owner, batch(b"a")) == [0]
    await owner.close()
