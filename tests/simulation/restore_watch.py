"""Restore a cut of the level *cuts* into an empty root, and judge what came: another cluster with the same records, of
all topics or of some, which `fsck` finds clean, and no group ahead of data. The first attempt dies at some operation:
what it leaves must not look like a cluster. When it is done, a repetition changes nothing.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from ledgermq.errors import InvalidConfig, LedgerMQError, Unavailable
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.cluster import ClusterSettings, open_cluster, read_cluster, read_note
from ledgermq_ledger.cuts.reading.restore import CutCopy, restore_cut
from ledgermq_ledger.fsck.check import check_root
from ledgermq_ledger.fsck.problem import Severity
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from ledgermq_ledger.topics.catalog import read_catalog
from ledgermq_ledger.view.following.followed_ledger import FollowedLedger
from ledgermq_tools.ledger.restore.command import only_topics
from ledgermq_tools.ledger.restore.group_offsets import end_with_their_partitions
from tests.judges.violation import Violation
from tests.simulation.history import Partition
from tests.simulation.racing_commits import ahead_of_data
from tests.simulation.world import World
from tests.worlds.reading import read_to_end

T = TypeVar("T")
OPERATIONS = 120
"""The first attempt dies at one of the first so many operations on the new root, if it has as many."""
ATTEMPTS = 3
Rows = dict[Partition, dict[int, bytes]]
FIRST_SEED_OF_SOME = 20
"""Seeds below it were recorded for mutants before copies had some topics only; they stay as they were."""


def leaves_out(seed: int) -> bool:
    """Return whether the restored root has some of the topics only."""
    return seed >= FIRST_SEED_OF_SOME and random.Random(f"some topics {seed}").random() < 0.4


class _Died(Exception):
    pass


class _Dying(StoreWrapper):
    def __init__(self, inner: ObjectStore, left: int) -> None:
        super().__init__(inner)
        self._left = left

    async def run(self, operation: str, what: str, bytes_known: int, step: Callable[[], Awaitable[T]]) -> T:
        self._left -= 1
        if self._left < 0:
            raise _Died
        return await step()


async def judge_restored(world: World, cut: str, expected: Rows, topics: Sequence[str]) -> None:
    """`expected`: what the cut has of these topics."""
    if leaves_out(world.seed):
        topics = topics[:1]
        expected = {place: rows for place, rows in expected.items() if place[0] in topics}
    pattern = topics[0] if leaves_out(world.seed) else None
    draw = random.Random(f"restore {world.seed}")
    source, target = world.line("last"), MemoryStore("restored", world.sources("new root"))
    try:
        await _restore(world, source, cut, _Dying(target, draw.randrange(OPERATIONS)), pattern, "restore")
    except* _Died:
        world.coverage.saw("a restore died")
    is_cluster = keys.CLUSTER in [info.key async for info in target.list(keys.CLUSTER)]
    if is_cluster:
        await judge_copy(world, cut, target, expected, topics)
    elif not await _is_refused_to_brokers(world, cut, target):
        return
    await _restore(world, source, cut, target, pattern, "second restore")
    await judge_copy(world, cut, target, expected, topics)
    world.coverage.saw("a cut was restored")
    await _repeat(world, source, cut, target, pattern, draw)


async def _is_refused_to_brokers(world: World, cut: str, target: ObjectStore) -> bool:
    """A broker starts on what an attempt left, if that is more than nothing (I16)."""
    if await read_note(target) is None:
        return True
    try:
        await open_cluster(target, world.sources("early broker"))
    except InvalidConfig:
        world.coverage.saw("a broker refused a root that was being restored")
        return True
    world.violations.append(Violation("two clusters in one root", f"a broker has begun one beside cut {cut}"))
    return False


async def _repeat(
    world: World, source: ObjectStore, cut: str, target: ObjectStore, pattern: str | None, draw: random.Random
) -> None:
    """Brokers of the new cluster have deleted something; the same command comes again (I17)."""
    listed = [info.key async for info in target.list("") if info.key not in (keys.CLUSTER, keys.RESTORE)]
    await target.delete([draw.choice(listed)])
    before = [info.key async for info in target.list("")]
    await _restore(world, source, cut, target, pattern, "third restore")
    if [info.key async for info in target.list("")] != before:
        text = f"cut {cut} was restored again over a cluster that was there"
        world.violations.append(Violation("what was deleted came back", text))


async def _restore(
    world: World, source: ObjectStore, cut: str, target: ObjectStore, pattern: str | None, process: str
) -> None:
    """`process`: each draws other ids."""
    cluster, sources = await read_cluster(source), world.sources(process)
    only = only_topics(pattern)
    for attempt in range(ATTEMPTS):
        try:
            await restore_cut(CutCopy(source, cluster, cut, target, sources, end_with_their_partitions, only))
            return
        except Unavailable:  # it asks for another call
            world.coverage.saw("a restore was to be repeated")
            if attempt + 1 == ATTEMPTS:
                raise


async def judge_copy(world: World, cut: str, target: MemoryStore, expected: Rows, topics: Sequence[str]) -> None:
    def report(kind: str, text: str) -> None:
        world.violations.append(Violation(kind, f"restored from cut {cut}: {text}"))

    cluster = await read_cluster(target)
    if cluster.cluster_id == (await read_cluster(world.line("last"))).cluster_id:
        report("two clusters have one id", cluster.cluster_id)
    try:
        checked = await check_root(target, cluster, run_blocking=run_inline)
        rows = await _read(world, cluster, target, topics)
        ahead = await ahead_of_data(world, target, cluster)
    except LedgerMQError as error:
        report("a restored root is not whole", f"{type(error).__name__} {error.message}")
        return
    if checked.worst is Severity.DAMAGE:
        report("a restored root is not whole", str(checked.problems[:3]))
    if ahead:
        report("a group is ahead of data", str(ahead[:3]))
    if rows != expected:
        different = [place for place in expected if rows.get(place) != expected[place]]
        report("a restored root has other records", str(different[:3]))


async def _read(world: World, cluster: ClusterSettings, target: ObjectStore, topics: Sequence[str]) -> Rows:
    sources, found = world.sources("reader of restored"), Rows()
    catalog = await read_catalog(LedgerRef(target, keys.METADATA_BUNDLE, cluster, sources))
    for topic in (catalog.topics_by_name[each] for each in topics):
        for number, bundle in enumerate(topic.bundles):
            key = PartitionId(topic.id, number)
            ledger = FollowedLedger(LedgerRef(target, bundle, cluster, sources), run_blocking=run_inline)
            await ledger.open()
            start, end = ledger.reader.log_start(key), ledger.reader.end(key)
            found[topic.name, number] = await read_to_end(ledger.reader, key, start) if end > start else {}
    return found
