"""One term of a bundle's internal partitions: what is loaded together, what is refused alone, and
what is loaded again; in virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from ledgermq.errors import DataDamaged, LedgerMQError, NotOwner, StoreFull, Unavailable
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.bundle.shared.context import BundleContext
from ledgermq_broker.internal.core import CoreKind, Opening
from ledgermq_broker.internal.term import InternalTerm, TermParts
from ledgermq_ledger import keys
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.log_record import LogRecord
from ledgermq_ledger.log.segments.segment import read_index
from ledgermq_ledger.object_store.contract import Buffer
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.topics.topic import Topic
from tests.stores.one_put import OnePut
from tests.virtual_time import virtual_in, virtual_sources
from tests.waiting import until
from tests.worlds.bundles import bundle_context

ONE, TWO = Topic(50, "__one", (1, 1, 2)), Topic(60, "__two", (1,))


@dataclass
class Register:
    """A core that holds the latest value of each key."""

    values: dict[bytes, bytes] = field(default_factory=dict)

    def apply(self, key: bytes, value: bytes | None) -> None:
        if value == b"bad":
            raise DataDamaged("a value that is not allowed")
        if value == b"bug":
            raise RuntimeError("a bug")
        if value is None:
            self.values.pop(key, None)
        else:
            self.values[key] = value


@dataclass
class Served:
    core: Register
    opening: Opening
    lost: LedgerMQError | None = None
    ticks: int = 0

    def tick(self) -> None:
        self.ticks += 1

    def close(self, error: LedgerMQError) -> None:
        self.lost = self.lost or error

    def set(self, **values: str) -> list[LogRecord]:
        """Change the state; return the records of the change."""
        records = [LogRecord(key.encode(), value.encode()) for key, value in values.items()]
        for record in records:
            self.core.values[record.key] = record.value or b""
        return records

    async def write(self, **values: str) -> None:
        self.opening.log.append({self.opening.place: self.set(**values)})
        await self.opening.log.durable()


class Disk(OnePut):
    """A store that refuses segments while it is full; puts of segments wait for `held`."""

    is_full = False
    held: asyncio.Future[None] | None = None

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        if "/segments/" in key and self.held is not None:
            await self.held
        if self.is_full and ("/segments/" in key or key.startswith(".probe")):
            raise StoreFull("the disk is full")
        await super().put_if_absent(key, buffers)


@dataclass
class World:
    store: Disk
    context: BundleContext
    owner: BundleOwner
    term: InternalTerm

    async def served(self, topic: Topic, partition: int) -> Served:
        found = await self.term.loaded(topic.name, partition)
        assert isinstance(found, Served)
        return found

    def know(self, *topics: Topic) -> None:
        know(self.context, *topics)
        self.term.tick()

    async def reopen(self) -> None:
        await self.term.close()
        await self.owner.close()
        self.owner = await BundleOwner.open(1, self.context)
        self.term = term_of(self.context, self.owner)


def know(context: BundleContext, *topics: Topic) -> None:
    for topic in topics:
        context.catalog().topics_by_name[topic.name] = context.catalog().topics_by_id[topic.id] = topic


def term_of(context: BundleContext, owner: BundleOwner) -> InternalTerm:
    kinds = [CoreKind(topic.name, lambda partition: Register(), Served) for topic in (ONE, TWO)]
    return InternalTerm(owner, kinds, TermParts(context.catalog, context.sources, lambda: 30.0))


@asynccontextmanager
async def world_of() -> AsyncIterator[World]:
    sources = virtual_sources()
    store = Disk(MemoryStore("t", sources))
    context = bundle_context(store, sources)
    know(context, ONE)
    owner = await BundleOwner.open(1, context)
    world = World(store, context, owner, term_of(context, owner))
    yield world
    await world.term.close()
    await world.owner.close()


in_world = virtual_in(world_of, "world")


@in_world
async def test_all_topics_of_a_bundle_are_served_with_what_was_written(world: World) -> None:
    world.know(TWO)
    for number, (topic, partition) in enumerate([(ONE, 0), (ONE, 1), (TWO, 0)]):
        await (await world.served(topic, partition)).write(k=str(number))
    await world.reopen()
    assert [(await world.served(t, p)).core.values for t, p in ((ONE, 0), (ONE, 1), (TWO, 0))] == [
        {b"k": b"0"},
        {b"k": b"1"},
        {b"k": b"2"},
    ]
    assert world.term.ready.keys() == {("__one", 0), ("__one", 1), ("__two", 0)}, "the others are in other bundles"


@in_world
async def test_a_topic_that_is_created_later_is_loaded_then_and_the_others_stay(world: World) -> None:
    first = await world.served(ONE, 0)
    with pytest.raises(Unavailable, match="partition 0 of __two"):
        first.opening.hosted(TWO.name, 0)
    world.know(TWO)
    assert first.ticks == 1
    new = await world.served(TWO, 0)
    assert new.opening.place == PartitionId(TWO.id, 0)
    assert await world.served(ONE, 0) is first
    assert first.opening.hosted(TWO.name, 0) is new
    assert new.opening.hosted(ONE.name, 0) is first
    assert first.opening.log is new.opening.log


@in_world
async def test_a_decision_of_two_topics_is_there_as_a_whole_after_a_restart(world: World) -> None:
    world.know(TWO)
    one, two = await world.served(ONE, 0), await world.served(TWO, 0)
    slot = world.owner.opened_slot()
    one.opening.log.append({one.opening.place: one.set(a="1"), two.opening.place: two.set(b="1")})
    await two.opening.log.durable()
    places = [(entry.topic_id, entry.partition) for entry in (await read_index(world.store, 1, slot)).index.batches]
    assert places == [(ONE.id, 0), (TWO.id, 0)]
    await world.reopen()
    assert (await world.served(ONE, 0)).core.values == {b"a": b"1"}
    assert (await world.served(TWO, 0)).core.values == {b"b": b"1"}


@in_world
async def test_a_damaged_partition_is_refused_alone_and_tried_again(world: World) -> None:
    world.know(TWO)
    slot = world.owner.opened_slot()
    await (await world.served(ONE, 1)).write(k="bad")
    await (await world.served(TWO, 0)).write(k="1")
    await world.reopen()
    assert (await world.served(TWO, 0)).core.values == {b"k": b"1"}
    for _ in range(2):
        with pytest.raises(DataDamaged) as error:
            await world.served(ONE, 1)
        assert error.value.object_key == keys.segment(1, slot)
        with pytest.raises(DataDamaged):
            world.term.hosted(ONE.name, 1)
    assert world.term.refused.keys() == {("__one", 1)}
    healthy = world.term.hosted(ONE.name, 0)
    loads = []
    real = world.owner.internal_state

    async def counted(wanted):  # type: ignore[no-untyped-def]
        loads.append([(topic.name, list(partitions)) for topic, partitions in wanted])
        return await real(wanted)

    world.owner.internal_state = counted  # type: ignore[method-assign]
    world.term.tick()  # a change of the catalog is no reason to read it again
    world.term.resume()
    await asyncio.sleep(20)
    assert loads == []
    await asyncio.sleep(20)
    assert loads == [[("__one", [1])]]
    assert world.term.hosted(ONE.name, 0) is healthy


@in_world
async def test_a_bug_in_one_partition_keeps_no_other_from_being_served(world: World) -> None:
    world.know(TWO)
    await (await world.served(ONE, 0)).write(k="bug")
    await (await world.served(TWO, 0)).write(k="1")
    await world.reopen()
    assert (await world.served(ONE, 1)).core.values == {}
    assert (await world.served(TWO, 0)).core.values == {b"k": b"1"}
    with pytest.raises(Unavailable):
        await world.served(ONE, 0)


@in_world
async def test_a_partition_that_fails_is_loaded_again_alone_after_what_it_had_under_way(world: World) -> None:
    broken, other = await world.served(ONE, 0), await world.served(ONE, 1)
    world.store.held = held = asyncio.get_running_loop().create_future()
    broken.opening.log.append({broken.opening.place: broken.set(k="1")})
    await asyncio.sleep(0.1)
    broken.set(k="never written")
    broken.close(NotOwner("a bug"))
    broken.opening.on_failed()
    with pytest.raises(Unavailable):
        await world.served(ONE, 0)
    with pytest.raises(Unavailable):
        other.opening.hosted(ONE.name, 0)
    held.set_result(None)
    again = await world.served(ONE, 0)
    assert again is not broken
    assert again.core.values == {b"k": b"1"}
    assert await world.served(ONE, 1) is other
    assert other.lost is None
    assert again.opening.log is other.opening.log


@in_world
async def test_a_log_that_fails_ends_all_partitions_which_are_loaded_with_a_new_one(world: World) -> None:
    before = [await world.served(ONE, partition) for partition in (0, 1)]
    await before[0].write(k="1")
    world.store.is_full = True
    with pytest.raises(StoreFull):
        await before[1].write(k="never written")
    assert [isinstance(each.lost, StoreFull) for each in before] == [True, True]
    world.store.is_full = False
    gate = asyncio.create_task(world.context.write_gate.run(0))
    after = [await world.served(ONE, partition) for partition in (0, 1)]
    assert [each.core.values for each in after] == [{b"k": b"1"}, {}]
    assert after[0].opening.log is after[1].opening.log is not before[0].opening.log
    await until(lambda: world.context.write_gate.refusal is None)
    await after[1].write(k="2")
    gate.cancel()
    await world.reopen()
    assert (await world.served(ONE, 1)).core.values == {b"k": b"2"}


@in_world
async def test_a_log_that_fails_while_a_partition_is_loaded_serves_none_with_it(world: World) -> None:
    before = await world.served(ONE, 0)
    real, reading = world.owner.internal_state, asyncio.Event()

    async def slow(wanted):  # type: ignore[no-untyped-def]
        reading.set()
        found = await real(wanted)
        await asyncio.sleep(0.5)
        return found

    world.owner.internal_state = slow  # type: ignore[method-assign]
    world.know(TWO)
    await reading.wait()
    world.owner.internal_state = real  # type: ignore[method-assign]
    world.store.is_full = True
    with pytest.raises(StoreFull):
        await before.write(k="never written")
    world.store.is_full = False
    served = [await world.served(*place) for place in ((ONE, 0), (ONE, 1), (TWO, 0))]
    assert [each.core.values for each in served] == [{}, {}, {}]
    assert all(each.opening.log is served[0].opening.log for each in served)
    assert served[0].opening.log.failed is None


@in_world
async def test_while_a_bundle_is_handed_over_its_partitions_name_the_successor_and_may_go_on_after_all(
    world: World,
) -> None:
    before = await world.served(ONE, 0)
    world.owner._commit._draining = NotOwner("is being handed over", owner="b:1")
    with pytest.raises(NotOwner):
        await before.write(k="never written")
    assert await world.served(ONE, 0) is before
    with pytest.raises(NotOwner) as error:
        world.term.hosted(ONE.name, 0)
    assert error.value.owner == "b:1"
    world.owner._commit.resume()
    world.term.resume()
    after = await world.served(ONE, 0)
    assert after.core.values == {}
    await after.write(k="1")


@in_world
async def test_the_end_of_the_bundle_closes_everything(world: World) -> None:
    served = await world.served(ONE, 0)
    await world.owner.close()
    await until(lambda: served.lost is not None)
    world.know(TWO)
    with pytest.raises(NotOwner):
        await world.served(TWO, 0)
    with pytest.raises(NotOwner):
        world.term.hosted(ONE.name, 0)
