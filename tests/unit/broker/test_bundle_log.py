"""The log of a bundle's internal partitions: decisions share batches and are never split; a failure
ends the log, and is reported to every caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from crc32c import crc32c

from ledgermq.errors import LedgerMQError, NotOwner, ResourceExhausted, StoreFull
from ledgermq.protocol.batches.records import decode_batch
from ledgermq.sources import Sources
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.bundle.shared.context import BundleLimits
from ledgermq_broker.internal.bundle_log import GROUP_BYTES, BundleLog, Entry, batch_of, packed
from ledgermq_ledger import keys
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.log_record import LogRecord
from ledgermq_ledger.log.segments.segment import read_index
from ledgermq_ledger.object_store.contract import Buffer, ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from tests.stores.one_put import OnePut
from tests.virtual_time import virtual, virtual_sources
from tests.worlds.bundles import TOPIC, bundle_context, fetch_values, opened
from tests.worlds.ledgers import batch

PLACE = PartitionId(TOPIC.id, 0)


def records(first: int, count: int, size: int = 1) -> list[LogRecord]:
    return [LogRecord(b"%d" % (first + i), b"v" * size) for i in range(count)]


def decided(first: int, count: int, size: int = 1, partition: int = 0) -> dict[PartitionId, list[LogRecord]]:
    return {PartitionId(TOPIC.id, partition): records(first, count, size)}


async def batches(owner: BundleOwner, partition: int = 0) -> list[list[bytes]]:
    found = await owner.fetch(TOPIC, partition, 0, 1 << 26)
    return [decode_batch(batch.data).column("key").to_pylist() for batch in found.batches]


@pytest.fixture
def failures() -> list[LedgerMQError]:
    return []


async def test_decisions_of_one_turn_share_a_batch_and_later_ones_follow(
    sources: Sources, failures: list[LedgerMQError]
) -> None:
    async with opened(bundle_context(MemoryStore("log", sources), sources)) as owner:
        log = BundleLog(owner, sources, failures.append)
        await log.durable()
        for first in (0, 10, 20):
            log.append(decided(first, 2))
        log.append({PLACE: []})
        await asyncio.sleep(0)
        log.append(decided(30, 1))
        await log.durable()
        assert await batches(owner) == [[b"0", b"1", b"10", b"11", b"20", b"21"], [b"30"]]
        assert not failures


@pytest.mark.parametrize("values", [[b""], [b"v"], [None], [b"v", None, b""], [bytes(GROUP_BYTES)]])
@pytest.mark.parametrize("compresses", [False, True])
def test_a_batch_has_the_records_whatever_memory_their_values_are_in(
    values: list[bytes | None], compresses: bool
) -> None:
    given = [None if value is None else memoryview(b"<" + value + b">")[1:-1] for value in values]
    found = batch_of(PLACE, [LogRecord(b"k", value) for value in given], 5, compresses=compresses)
    rows = decode_batch(found.data)
    assert (rows.column("key").to_pylist(), rows.column("value").to_pylist()) == ([b"k"] * len(values), values)
    assert (found.record_count, found.timestamp_min_us, found.timestamp_max_us) == (len(values), 5, 5)
    assert found.crc == crc32c(found.data)
    assert (len(found.data) < GROUP_BYTES // 2) == (compresses or len(values[0] or b"") < GROUP_BYTES)


async def test_what_was_appended_before_is_durable_when_durable_returns(
    sources: Sources, failures: list[LedgerMQError]
) -> None:
    async with opened(bundle_context(MemoryStore("log", sources), sources)) as owner:
        log = BundleLog(owner, sources, failures.append)

        async def append(i: int) -> None:
            log.append(decided(i, 1))
            await log.durable()
            assert owner.durable_end(TOPIC, 0) >= 1
            assert any(b"%d" % i in stored for stored in await batches(owner))

        await asyncio.gather(*(append(i) for i in range(50)))
        waiting = asyncio.create_task(log.durable())
        log.append(decided(100, 1))
        giving_up = asyncio.create_task(log.durable())
        await asyncio.sleep(0)
        giving_up.cancel()
        await waiting
        await log.durable()
        assert owner.durable_end(TOPIC, 0) == 51, "a caller that goes away takes nothing with it"


def test_a_decision_is_never_split() -> None:
    decisions = [
        decided(0, 3, GROUP_BYTES // 4),
        decided(10, 3, GROUP_BYTES // 4),
        decided(20, 1),
        decided(30, 9, GROUP_BYTES),
        decided(40, 1),
    ]
    groups = packed([Entry(each) for each in decisions])
    found = [[int(record.key) for entry in group for record in entry.records[PLACE]] for group in groups]
    assert found == [[0, 1, 2], [10, 11, 12, 20], list(range(30, 39)), [40]]
    assert list(packed([])) == []


async def test_a_large_decision_is_compressed_and_readable(sources: Sources, failures: list[LedgerMQError]) -> None:
    async with opened(bundle_context(MemoryStore("log", sources), sources)) as owner:
        log = BundleLog(owner, sources, failures.append)
        log.append(decided(0, 5000, 100))
        await log.durable()
        [stored] = await batches(owner)
        assert stored == [b"%d" % i for i in range(5000)]
        assert len((await owner.fetch(TOPIC, 0, 0, 1 << 26)).batches[0].data) < 200_000


async def test_after_a_hole_nothing_follows(sources: Sources, failures: list[LedgerMQError]) -> None:
    """A decision that cannot be written, by a bug, ends the log: what was decided upon it must not
    be written either.
    """
    async with opened(bundle_context(MemoryStore("log", sources), sources)) as owner:
        log = BundleLog(owner, sources, failures.append)
        log.append(decided(0, 1))
        await log.durable()
        log.append({PLACE: [LogRecord(b"k", 5)]})  # type: ignore[arg-type]
        asyncio.get_running_loop().call_soon(log.append, decided(1, 1))
        await asyncio.sleep(0)
        log.append(decided(2, 1))
        with pytest.raises(NotOwner):
            await log.durable()
        await asyncio.sleep(0.05)
        assert await batches(owner) == [[b"0"]]
        assert len(failures) == 1


async def test_the_end_of_the_term_is_told_to_everybody_and_nothing_is_taken_any_more(
    sources: Sources, failures: list[LedgerMQError]
) -> None:
    async with opened(bundle_context(MemoryStore("log", sources), sources)) as owner:
        log = BundleLog(owner, sources, failures.append)
        log.append(decided(0, 1))
        waiting = [asyncio.create_task(log.durable()) for _ in range(3)]
        await owner.close()
        for task in waiting:
            with pytest.raises(NotOwner):
                await task
        log.append(decided(1, 1))
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
        log = BundleLog(owner, sources, failures.append)
        log.append(decided(0, 1))
        await log.durable()
        refusal = store.refusal = loop.create_future()

        def decide(i: int) -> None:
            log.append(decided(i, 1))
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


class HeldPuts(OnePut):
    """`held`: what the puts of segments wait for, by slot."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.held: dict[int, asyncio.Future[None]] = {}

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        if "/segments/" in key and keys.number(key) in self.held:
            await self.held[keys.number(key)]
        await super().put_if_absent(key, buffers)


async def segment(store: ObjectStore, slot: int) -> list[tuple[int, int]]:
    """(partition, number of records) of each batch in a segment of bundle 1."""
    index = (await read_index(store, 1, slot)).index
    return [(entry.partition, entry.record_count) for entry in index.batches]


async def test_a_decision_of_several_partitions_and_its_data_is_one_segment_whatever_its_limits(
    sources: Sources, failures: list[LedgerMQError]
) -> None:
    store = MemoryStore("log", sources)
    limits = BundleLimits(background_compaction=False, flush_batches=1, puts_in_flight_max=1)
    async with opened(bundle_context(store, sources, limits)) as owner:
        log = BundleLog(owner, sources, failures.append)
        first = owner.opened_slot()
        data = [batch(b"a", b"b", partition=2), batch(b"c", partition=2)]
        log.append(decided(0, 1, partition=0) | decided(0, 2, partition=1), data)
        log.append(decided(10, 1, partition=1))
        log.append({}, [batch(b"d", partition=2)])
        await log.durable()
        assert await segment(store, first) == [(0, 1), (1, 3), (2, 2), (2, 1), (2, 1)]
        assert await batches(owner, 1) == [[b"0", b"1", b"10"]]
        assert await fetch_values(owner, 2) == [b"a", b"b", b"c", b"d"]


async def test_decisions_that_are_too_large_for_one_group_go_in_order(
    sources: Sources, failures: list[LedgerMQError]
) -> None:
    store = MemoryStore("log", sources)
    async with opened(bundle_context(store, sources)) as owner:
        log = BundleLog(owner, sources, failures.append)
        for first in range(6):
            data = batch(b"%d" % first * (GROUP_BYTES // 4), partition=2)
            log.append(decided(first, 1, partition=first % 2), [data])
        await log.durable()
        assert await batches(owner, 0) == [[b"0", b"2"], [b"4"]]
        assert await batches(owner, 1) == [[b"1"], [b"3", b"5"]]
        stored = await fetch_values(owner, 2, bytes_max=1 << 26)
        assert [value[:1] for value in stored] == [b"%d" % i for i in range(6)]


@virtual
async def test_without_room_decisions_wait_in_order_and_new_ones_are_refused() -> None:
    sources, failures = virtual_sources(), list[LedgerMQError]()
    store = HeldPuts(MemoryStore("log", sources))
    limits = BundleLimits(background_compaction=False, produce_memory_bytes_max=4 * GROUP_BYTES, puts_in_flight_max=1)
    context = bundle_context(store, sources, limits)
    async with opened(context) as owner:
        log = BundleLog(owner, sources, failures.append)
        store.held[owner.opened_slot()] = held = asyncio.get_running_loop().create_future()
        for first in range(5):
            log.append(decided(first, 1), [batch(b"x" * GROUP_BYTES, partition=2)])
        waiting = asyncio.create_task(log.durable())
        await asyncio.sleep(0.1)
        assert not log.has_room
        assert context.produce_memory.taken > GROUP_BYTES, "the first groups are admitted"
        with pytest.raises(ResourceExhausted):
            log.check_room()
        log.append(decided(10, 1))  # a decision that checked nothing waits too
        held.set_result(None)
        await waiting
        await log.durable()
        log.check_room(GROUP_BYTES)
        assert log.has_room
        assert [key for stored in await batches(owner) for key in stored] == [b"0", b"1", b"2", b"3", b"4", b"10"]
        assert not failures
    assert context.produce_memory.taken == 0


@virtual
async def test_the_failure_of_a_group_is_noticed_while_the_rest_waits_for_room() -> None:
    sources, failures = virtual_sources(), list[LedgerMQError]()
    store = HeldPuts(MemoryStore("log", sources))
    limits = BundleLimits(background_compaction=False, produce_memory_bytes_max=4 * GROUP_BYTES, puts_in_flight_max=1)
    async with opened(bundle_context(store, sources, limits)) as owner:
        log = BundleLog(owner, sources, failures.append)
        store.held[owner.opened_slot()] = held = asyncio.get_running_loop().create_future()
        for first in range(5):
            log.append(decided(first, 1), [batch(b"x" * GROUP_BYTES, partition=2)])
        await asyncio.sleep(0.1)
        assert not log.has_room
        held.set_exception(StoreFull("the disk is full"))
        with pytest.raises(LedgerMQError):
            await log.durable()
        assert len(failures) == 1
        await log.settled()
        await asyncio.sleep(10)
        assert await batches(owner) == []
        with pytest.raises(LedgerMQError):
            log.check_room()


async def test_room_for_data_counts_what_was_appended_in_this_turn(
    sources: Sources, failures: list[LedgerMQError]
) -> None:
    limits = BundleLimits(background_compaction=False, produce_memory_bytes_max=1_000_000)
    async with opened(bundle_context(MemoryStore("log", sources), sources, limits)) as owner:
        log = BundleLog(owner, sources, failures.append)
        written = batch(b"x" * 200_000, partition=2)
        log.append({}, [written])
        log.check_room(400_000)
        log.append(decided(0, 1), [written, written])
        await asyncio.sleep(0)
        log.check_room()  # without data there is room
        with pytest.raises(ResourceExhausted):
            log.check_room(400_000)
        await log.durable()
        log.check_room(400_000)
        assert log.has_room
        await owner.close()
        with pytest.raises(NotOwner):
            log.check_room(1)


@virtual
async def test_a_log_is_settled_when_all_its_puts_have_an_outcome_not_only_the_refused_one() -> None:
    """A put that is refused ends the log while an earlier one is still under way; who reads the
    state must see what that one stores.
    """
    sources, failures = virtual_sources(), list[LedgerMQError]()
    store = HeldPuts(MemoryStore("log", sources))
    async with opened(bundle_context(store, sources)) as owner:
        log = BundleLog(owner, sources, failures.append)
        loop, slot = asyncio.get_running_loop(), owner.opened_slot()
        slow, refused = loop.create_future(), loop.create_future()
        store.held |= {slot: slow, slot + 1: refused}
        log.append(decided(0, 1))
        first = asyncio.create_task(log.durable())
        await asyncio.sleep(1)
        log.append(decided(1, 1))
        await asyncio.sleep(1)
        refused.set_exception(StoreFull("the disk is full"))
        await asyncio.sleep(1)
        assert len(failures) == 1
        settled = asyncio.create_task(log.settled())
        await asyncio.sleep(1)
        assert not settled.done()
        slow.set_result(None)
        await settled
        await first
        assert await batches(owner) == [[b"0"]]
