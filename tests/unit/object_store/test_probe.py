"""The start-up probe refuses every store on which two brokers could own one ledger."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ledgermq.errors import StoreUnusable, Unavailable
from ledgermq_ledger.object_store.contract import AlreadyExists, Buffer
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.probe import probe_store
from tests.stores.faulty import Faults, FaultyStore
from tests.virtual_time import virtual, virtual_sources


class IgnoresTheCondition(MemoryStore):
    """As `rclone serve s3` does: every put creates it again."""

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        await self.put(key, b"".join(buffers))


class SaysNoButOverwrites(MemoryStore):
    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        try:
            await super().put_if_absent(key, buffers)
        except AlreadyExists:
            await self.put(key, b"".join(buffers))
            raise


@pytest.mark.parametrize("kind", [IgnoresTheCondition, SaysNoButOverwrites])
@virtual
async def test_a_store_that_ignores_create_if_absent_is_refused(kind: type[MemoryStore]) -> None:
    store = kind("bad", virtual_sources())
    with pytest.raises(StoreUnusable, match="If-None-Match"):
        await probe_store(store, virtual_sources())
    assert store._keys == []


@pytest.mark.parametrize("seed", range(30))
@virtual
async def test_faults_never_make_a_good_store_bad(seed: int) -> None:
    """A put that landed and then failed sees itself at the second try: the probe must not take that
    for an answer, nor for a breach.
    """

    inner = MemoryStore("good", virtual_sources())
    store = FaultyStore(
        inner, virtual_sources(seed), Faults(before=0.1, after=0.1, late=0.1, throttle=0.1, delay_s_max=0.5)
    )
    try:
        await probe_store(store, virtual_sources(seed))
    except Unavailable:
        assert store.calls["put_if_absent"] >= 5
    await store.settled()


@virtual
async def test_a_store_that_does_not_answer_is_unavailable() -> None:
    store = FaultyStore(MemoryStore("down", virtual_sources()), virtual_sources(), Faults(before=1.0))
    with pytest.raises(Unavailable, match="does not answer"):
        await probe_store(store, virtual_sources())


@virtual
async def test_it_leaves_nothing() -> None:
    store = MemoryStore("good", virtual_sources())
    await probe_store(store, virtual_sources())
    assert store._keys == []
