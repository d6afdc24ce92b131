"""The log of a coordinator: decisions share batches and are never split; a failure is told to
everybody, once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from ledger.object_store.contract import Buffer
from ledger.object_store.memory import MemoryStore
from ledgermq.errors import LedgerMQError, NotOwner, ResourceExhausted
from ledgermq.protocol.records import decode_batch
from ledgermq.sources import Sources
from offsets.records import LogRecord
from stateless_broker.bundle.owner import BundleOwner
from stateless_broker.groups.append_log import BATCH_BYTES, AppendLog, packed
from tests.stores.one_put import OnePut
from tests.worlds.bundles import TOPIC, bundle_context, opened


def records(first: int, count: int, size: int = 1) -> list[LogRecord]:
    return [LogRecord(b"%d" % (first + i), b"v" * size) for i in range(count)]


async def batches(owner: BundleOwner) -> list[list[bytes]]:
    found = await owner.fetch(TOPIC, 0, 0, 1 << 26)
    return [decode_batch(batch.data).column("key").to_pylist() for batch in found.batches]


@pytest.fixture
def failures() -> list[LedgerMQError]:
    return []


async def test_decisions_of_one_turn_share_a_batch_and_later_ones_follow(
    sources: Sources, failures: list[LedgerMQError]
) -> None:
    async with opened(bundle_context(MemoryStore("log", sources), sources)) as owner:
        log = AppendLog(owner, TOPIC.id, 0, sources, failures.append)
        await log.durable()
        for first in (0, 10, 20):
            log.append(records(first, 2))
        log.append([])
        await asyncio.sleep(0)
        log.append(records(30, 1))
        await log.durable()
        assert await batches(owner) == [[b"0", b"1", b"10", b"11", b"20", b"21"], [b"30"]]
        assert not failures


async def test_what_was_appended_before_is_durable_when_durable_returns(
    sources: Sources, failures: list[LedgerMQError]
) -> None:
    async with opened(bundle_context(MemoryStore("log", sources), sources)) as owner:
        log = AppendLog(owner, TOPIC.id, 0, sources, failures.append)

        async def append(i: int) -> None:
            log.append(records(i, 1))
            await log.durable()
            assert owner.durable_end(TOPIC, 0) >= 1
            assert any(b"%d" % i in keys for keys in await batches(owner))

        await asyncio.gather(*(append(i) for i in range(50)))
        waiting = asyncio.create_task(log.durable())
        log.append(records(100, 1))
        giving_up = asyncio.create_task(log.durable())
        await asyncio.sleep(0)
        giving_up.cancel()
        await waiting
        await log.durable()
        assert owner.durable_end(TOPIC, 0) == 51, "a caller that goes away takes nothing with it"


def test_a_decision_is_never_split() -> None:
    decisions = [
        records(0, 3, BATCH_BYTES // 4),
        records(10, 3, BATCH_BYTES // 4),
        records(20, 1),
        records(30, 9, BATCH_BYTES),
    ]
    found = [[int(record.key) for record in batch] for batch in packed(decisions)]
    assert found == [[0, 1, 2], [10, 11, 12, 20], list(range(30, 39))]
    assert list(packed([])) == []


async def test_a_large_decision_is_compressed_and_readable(sources: Sources, failures: list[LedgerMQError]) -> None:
    async with opened(bundle_context(MemoryStore("log", sources), sources)) as owner:
        log = AppendLog(owner, TOPIC.id, 0, sources, failures.append)
        log.append(records(0, 5000, 100))
        await log.durable()
        [keys] = await batches(owner)
        assert keys == [b"%d" % i for i in range(5000)]
        assert len((await owner.fetch(TOPIC, 0, 0, 1 << 26)).batches[0].data) < 200_000


async def test_after_a_hole_nothing_follows(sources: Sources, failures: list[LedgerMQError]) -> None:
    """A decision that cannot be written, by a bug, ends the log: what was decided upon it must not
    be written either.
    """
    async with opened(bundle_context(MemoryStore("log", sources), sources)) as owner:
        log = AppendLog(owner, TOPIC.id, 0, sources, failures.append)
        log.append(records(0, 1))
        await log.durable()
        log.append([LogRecord(b"k", 5)])  # type: ignore[arg-type]
        asyncio.get_running_loop().call_soon(log.append, records(1, 1))
        await asyncio.sleep(0)
        log.append(records(2, 1))
        with pytest.raises(NotOwner):
            await log.durable()
        await asyncio.sleep(0.05)
        assert await batches(owner) == [[b"0"]]
        assert len(failures) == 1


async def test_the_end_of_the_term_is_told_to_everybody_and_nothing_is_taken_any_more(
    sources: Sources, failures: list[LedgerMQError]
) -> None:
    async with opened(bundle_context(MemoryStore("log", sources), sources)) as owner:
        log = AppendLog(owner, TOPIC.id, 0, sources, failures.append)
        log.append(records(0, 1))
        waiting = [asyncio.create_task(log.durable()) for _ in range(3)]
        await owner.close()
        for task in waiting:
            with pytest.raises(NotOwner):
                await task
        log.append(records(1, 1))
        with pytest.raises(NotOwner):
            await log.durable()
        await log.settled()
        assert len(failures) == 1


async def test_what_was_decided_upon_a_refused_append_is_not_stored_without_it(
    sources: Sources, failures: list[LedgerMQError]
) -> None:
    """Decisions are made in each turn of the event loop, so one is on its way to the owner when the
    put before it is refused.
    """

    class Busy(OnePut):
        refusal: asyncio.Future[None] | None = None

        async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
            if self.refusal is not None:
                await self.refusal
            await super().put_if_absent(key, buffers)

    store = Busy(MemoryStore("log", sources))
    loop = asyncio.get_running_loop()
    async with opened(bundle_context(store, sources)) as owner:
        log = AppendLog(owner, TOPIC.id, 0, sources, failures.append)
        log.append(records(0, 1))
        await log.durable()
        refusal = store.refusal = loop.create_future()

        def decide(i: int) -> None:
            log.append(records(i, 1))
            if i < 200 and not failures:
                loop.call_soon(decide, i + 1)
            if i == 100:
                store.refusal = None
                refusal.set_exception(ResourceExhausted("too many requests wait for the object store"))

        decide(1)
        for _ in range(1000):
            await asyncio.sleep(0)
        with pytest.raises(ResourceExhausted):
            await log.durable()
        await asyncio.sleep(0.05)
        assert await batches(owner) == [[b"0"]]
        assert len(failures) == 1
        assert owner.lost is None
