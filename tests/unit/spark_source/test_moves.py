"""Batch queries of partitions that move between bundles, and what a stream follows meanwhile. Mostly in virtual
time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import pytest

from ledgermq.errors import DeadlineExceeded
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.object_store.contract import ObjectInfo, ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from ledgermq_ledger.parquet.archiving.archive import Archives
from ledgermq_ledger.parquet.archiving.reading import ArchiveReader
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.runner import compact_root
from ledgermq_ledger.view.ranges.range_read import RangeReader
from ledgermq_spark.source.options import parse_options
from ledgermq_spark.source.ranges import planning
from ledgermq_spark.source.ranges.move_wait import MoveWait
from ledgermq_spark.source.ranges.planning import TopicRange, plan_query
from ledgermq_spark.source.streaming.followed import FollowedTopics
from tests.virtual_time import virtual
from tests.worlds.ledgers import ledger_of
from tests.worlds.roots import Root, parquet_keys

OLD, NEW = 1, 2
Steps = Callable[[Root], Awaitable[None]]


async def opened_root(sources: Sources) -> Root:
    """Topic t: twelve records of partition 0, the first six in Parquet, and one of partition 1."""
    root = await Root.open(MemoryStore("moves", sources), sources, bundles=4)
    await root.create_topic("t", 2, OLD)
    for number in range(4):
        await produce(root, f"at first {number}")
        if number == 1:
            await root.compact()
    await root.produce("t", (1, [b"beside"]))
    return root


async def produce(root: Root, text: str) -> None:
    await root.produce("t", (0, [f"{text}, {number}".encode() for number in range(3)]))


async def plan(
    root: Root, store: ObjectStore | None = None, *, room: int = planning.INDEX_BATCHES_MAX, **options: str
) -> list[TopicRange]:
    """`room`: batches of a bundle in the index."""
    given = parse_options({"root": "memory://moves", "topic": "t", "partitions": "0", **options})
    tasks = await plan_query(store or root.store, given, index_batches_max=room)
    return [each for task in tasks for each in task]


async def read(root: Root, ranges: list[TopicRange]) -> list[bytes]:
    """As a task does. Asserts that no offset is left out or there twice."""
    archives = Archives(root.store, root.sources)
    reader = RangeReader(root.store, run_inline, ArchiveReader(root.store, archives.store, run_inline))
    found: list[bytes] = []
    for each in ranges:
        async for first, rows in reader.read(each.range):
            assert first == ranges[0].range.first + len(found)
            found += rows.column("value").to_pylist()
    return found


async def seal(root: Root) -> None:
    await root.decide_move("t", 0, NEW)
    await root.seal("t", 0)


async def move(root: Root) -> None:
    await seal(root)
    await root.open_moved("t", 0)
    await produce(root, "at the new bundle")
    await root.hand_over("t", 0)
    await root.end_move("t", 0)


async def move_there_and_back(root: Root) -> None:
    await move(root)
    await root.move("t", 0, OLD)
    await produce(root, "at the old bundle again")


async def move_on(root: Root) -> None:
    """To a third bundle."""
    await move(root)
    await root.move("t", 0, 3)
    await produce(root, "at the third bundle")


@pytest.mark.parametrize("steps", [move, move_there_and_back, move_on])
@virtual
async def test_a_partition_that_has_moved_is_read_where_it_is(sources: Sources, steps: Steps) -> None:
    root = await opened_root(sources)
    await steps(root)
    assert await read(root, await plan(root)) == root.produced["t", 0]


@pytest.mark.parametrize("steps_done", range(1, 5), ids=["decided", "sealed", "open", "forgotten"])
@virtual
async def test_the_end_of_a_move_is_waited_for(
    sources: Sources, steps_done: int, caplog: pytest.LogCaptureFixture
) -> None:
    root = await opened_root(sources)
    await root.decide_move("t", 0, NEW)
    steps = [root.seal, root.open_moved, root.hand_over, root.end_move]
    for step in steps[: steps_done - 1]:
        await step("t", 0)
    query = asyncio.create_task(plan(root))
    await asyncio.sleep(100)
    assert not query.done()
    move_id = root.topics["t"].moves[0].id
    assert [record.message for record in caplog.records if record.name == "ledgermq.spark"] == [
        (
            "a partition is read again when its move has ended; the query waits at most 300 s for each:"
            f" t/0 moves from bundle 1 to 2 (move {move_id})"
        )
    ]
    for step in steps[steps_done - 1 : -1]:
        await step("t", 0)
    await produce(root, "before the end is known")
    await root.end_move("t", 0)
    assert await read(root, await query) == root.produced["t", 0]


@virtual
async def test_a_move_that_does_not_end_fails_the_query(sources: Sources) -> None:
    root = await opened_root(sources)
    await seal(root)
    began_s = asyncio.get_running_loop().time()
    with pytest.raises(DeadlineExceeded, match=r"waited 60 s .*t/0 moves from bundle 1 to 2 .*moveTimeoutS") as error:
        await plan(root, moveTimeoutS="60")
    assert error.value.retriable
    assert 60 <= asyncio.get_running_loop().time() - began_s < 65
    await root.open_moved("t", 0)
    await root.hand_over("t", 0)
    await root.end_move("t", 0)
    assert await read(root, await plan(root)) == root.produced["t", 0]


@virtual
async def test_other_partitions_are_read_while_one_moves(sources: Sources) -> None:
    root = await opened_root(sources)
    await seal(root)
    began_s = asyncio.get_running_loop().time()
    assert await read(root, await plan(root, partitions="1")) == [b"beside"]
    assert asyncio.get_running_loop().time() - began_s < 1


@virtual
async def test_partitions_that_move_in_turns_are_each_waited_for_once(sources: Sources) -> None:
    """There is no moment at which none of them is on its way."""
    root = await opened_root(sources)
    await seal(root)
    query = asyncio.create_task(plan_query(root.store, parse_options({"root": "memory://moves", "topic": "t"})))
    await asyncio.sleep(5)
    await root.decide_move("t", 1, NEW)
    await root.seal("t", 1)
    for step in (root.open_moved, root.hand_over, root.end_move):
        await step("t", 0)
    ranges = [each for task in await query for each in task]
    for step in (root.open_moved, root.hand_over, root.end_move):
        await step("t", 1)
    for partition in (0, 1):
        own = [each for each in ranges if each.range.key.partition == partition]
        assert await read(root, own) == root.produced["t", partition]


@virtual
async def test_each_move_may_last_as_long_as_a_query_waits() -> None:
    wait = MoveWait(10)
    for second in range(40):
        wait.put_off([f"t/{second // 8} moves"])
        await asyncio.sleep(1)
    wait.put_off(["a", "b", "c", "d"])
    await asyncio.sleep(10)
    with pytest.raises(DeadlineExceeded, match=r"waited 10 s .*: a, b, c and 1 more\. "):
        wait.put_off(["a", "b", "c", "d", "e"])


class Meanwhile(StoreWrapper):
    """Takes some steps before the checkpoints of the old bundle are listed for the nth time: three are for
    opening its ledger.
    """

    def __init__(self, inner: ObjectStore, listing: int, steps: Callable[[], Awaitable[None]]) -> None:
        super().__init__(inner)
        self._left = listing
        self._steps = steps

    @property
    def done(self) -> bool:
        return self._left <= 0

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        if prefix == keys.checkpoints(OLD):
            self._left -= 1
            if self._left == 0:
                await self._steps()
        async for info in super().list(prefix, start_after):
            yield info


@pytest.mark.parametrize("steps", [move, move_there_and_back, move_on])
@virtual
async def test_a_move_after_the_catalog_was_read_is_followed(sources: Sources, steps: Steps) -> None:
    root = await opened_root(sources)
    store = Meanwhile(root.store, 1, partial(steps, root))
    ranges = await plan(root, store)
    assert store.done
    assert await read(root, ranges) == root.produced["t", 0]


@virtual
async def test_a_seal_after_the_catalog_was_read_is_no_end(sources: Sources) -> None:
    root = await opened_root(sources)
    query = asyncio.create_task(plan(root, Meanwhile(root.store, 1, partial(seal, root))))
    await asyncio.sleep(20)
    assert not query.done()
    await root.open_moved("t", 0)
    await produce(root, "at the new bundle")
    await root.hand_over("t", 0)
    await root.end_move("t", 0)
    assert await read(root, await query) == root.produced["t", 0]


@pytest.mark.parametrize("steps", [move, move_there_and_back, move_on])
@pytest.mark.parametrize(
    "options", [{}, {"startingTimestamp": "1970-01-01T00:00:00.001Z"}], ids=["by offset", "by time"]
)
@pytest.mark.parametrize("listing", range(2, 5))
async def test_a_move_while_the_query_is_planned_is_followed(
    sources: Sources, steps: Steps, options: dict[str, str], listing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index has no room, so the ledger is read again once the ends are known. Files are searched in threads,
    which virtual time does not have.
    """
    monkeypatch.setattr(planning, "PAUSE_S", 0.0)
    root = await opened_root(sources)
    store = Meanwhile(root.store, listing, partial(steps, root))
    ranges = await plan(root, store, room=1, **options)
    assert store.done
    assert await read(root, ranges) == root.produced["t", 0]


async def archive_first_file(root: Root) -> None:
    """As retention does."""
    key = PartitionId(root.topics["t"].id, 0)
    await root.alter_topic("t", delete_action="archive")

    def delete(draft: fmt.Checkpoint) -> bool:
        part = next(part for part in draft.partitions if (part.topic_id, part.partition) == key)
        part.log_start = part.parquet_start = 6
        return True

    assert await advance_checkpoint(ledger_of(root.store, OLD, sources=root.sources), delete)
    [file] = await parquet_keys(root.store)
    await root.store.put(keys.archived(file), await root.store.get(file))
    await root.store.delete([file])


@pytest.mark.parametrize("steps", [move, move_there_and_back, move_on])
@pytest.mark.parametrize("listing", range(1, 5))
@virtual
async def test_an_archive_is_read_to_its_begin_although_the_partition_moves(
    sources: Sources, steps: Steps, listing: int
) -> None:
    root = await opened_root(sources)
    await archive_first_file(root)
    store = Meanwhile(root.store, listing, partial(steps, root))
    ranges = await plan(root, store, includeArchive="true")
    assert store.done
    assert await read(root, ranges) == root.produced["t", 0]


# What a stream follows


async def followed_topics(root: Root) -> FollowedTopics:
    followed = FollowedTopics(root.store, root.cluster, parse_options({"root": "memory://moves", "topic": "t"}))
    await followed.open()
    return followed


def end(followed: FollowedTopics) -> int:
    topic = followed.topics["t"]
    return followed.reader(topic, 0).end(PartitionId(topic.id, 0))


@virtual
async def test_a_ledger_that_is_followed_already_is_read_anew_for_what_came(sources: Sources) -> None:
    """Else the query would wait for the next look at its checkpoint, which comes ever more rarely."""
    root = await opened_root(sources)
    await root.move("t", 1, NEW)
    followed = await followed_topics(root)
    for _ in range(100):
        await followed.refresh(at_once=True)
        await asyncio.sleep(1)
    await move(root)
    began_s = asyncio.get_running_loop().time()
    await followed.refresh(at_once=True)
    assert not followed.away
    assert asyncio.get_running_loop().time() - began_s < 0.1
    assert end(followed) == len(root.produced["t", 0])


@virtual
async def test_a_seal_that_is_seen_before_its_move_is_no_end(sources: Sources) -> None:
    """The record of the move has left the segments of `__metadata`, so the follower of that ledger misses it at
    first.
    """
    root = await opened_root(sources)
    followed = await followed_topics(root)
    await seal(root)
    await root.open_moved("t", 0)
    await produce(root, "at the new bundle")
    await compact_root(root.store, root.sources, LocalEngine(root.sources, run_inline), bundles=[keys.METADATA_BUNDLE])
    await followed.refresh(at_once=True)
    assert [*followed.away] == [(root.topics["t"].id, 0)]
    arrived = asyncio.create_task(followed.here(followed.every))
    await asyncio.sleep(20)
    assert not arrived.done()
    await root.hand_over("t", 0)
    await root.end_move("t", 0)
    await arrived
    assert end(followed) == len(root.produced["t", 0])
