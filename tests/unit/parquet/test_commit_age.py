"""Files go once their commit is old, also where a bundle goes on without new Parquet files: the
checkpoint notes when a commit was seen.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from ledgermq.sources import Sources
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.garbage.topics.commit_age import finished_long_ago, note_finished, witness_move
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.keyed_runner import clean_bundle
from ledgermq_ledger.rounds.runner import compact_bundle
from ledgermq_ledger.topics.topic import METADATA, Topic, encode_topic_record, topic_key
from tests.unit.parquet.test_gc import Clock
from tests.worlds.keyed_topics import Written, put_pairs
from tests.worlds.ledgers import ledger_of
from tests.worlds.roots import Root, parquet_keys

MINUTE_US = 60_000_000


class _Busy:
    """A bundle whose user topics are quiet, while something is always committed in its internal
    partition.
    """

    def __init__(self, root: Root, clock: Clock, offsets: Topic) -> None:
        self.root = root
        self.clock = clock
        self._offsets = offsets

    @classmethod
    async def open(cls) -> _Busy:
        clock = Clock()
        sources = Sources(clock, random.Random(1))
        root = await Root.open(MemoryStore("busy", sources), sources)
        offsets = Topic(0, "__consumer_offsets", (1,), {}, created_ms=0)
        offset = await root.put_internal(METADATA, topic_key(offsets.name), encode_topic_record(offsets, creation=True))
        return cls(root, clock, replace(offsets, id=offset))

    async def goes_on(self, steps: int, step_us: int) -> None:
        """Commits and rounds, more often than Parquet files become old enough to go."""
        for step in range(steps):
            self.clock.now_us += step_us
            await self.root.put_internal(self._offsets, b"group/%d" % (step % 3), b"v")
            await self.round()

    async def round(self) -> None:
        await compact_bundle(self.compaction, 1, await self.root.catalog(), everything=True)

    async def clean(self) -> None:
        await clean_bundle(self.compaction, 1, await self.root.catalog(), everything=True)

    @property
    def compaction(self) -> Compaction:
        root = self.root
        return Compaction(root.store, root.cluster, root.sources, LocalEngine(root.sources, run_inline))


async def test_what_has_expired_goes_though_the_bundle_is_always_busy() -> None:
    busy = await _Busy.open()
    root, clock = busy.root, busy.clock
    await root.create_topic("t", retention_ms="60000")
    await root.produce("t", (0, [b"a"]), timestamp_ms=clock.now_us // 1000)
    await busy.round()
    await busy.goes_on(4, MINUTE_US // 4)
    assert len(await parquet_keys(root.store)) == 1, "it has not expired"
    await busy.goes_on(4, MINUTE_US // 4)
    assert await parquet_keys(root.store) == []


async def test_a_log_that_was_cleaned_goes_though_the_bundle_is_always_busy() -> None:
    busy = await _Busy.open()
    root, clock = busy.root, busy.clock
    topic = await root.create_topic("t", cleanup_policy="compact")
    await put_pairs(root, topic, Written(), [(b"a", b"1"), (b"a", b"2")], timestamp_ms=clock.now_us // 1000)
    await busy.round()
    await busy.clean()
    await busy.goes_on(4, MINUTE_US // 4)
    await busy.clean()
    assert await parquet_keys(root.store) == []


async def test_nothing_is_noted_where_nothing_waits() -> None:
    busy = await _Busy.open()
    root, clock = busy.root, busy.clock
    await root.create_topic("t")
    await root.produce("t", (0, [b"a"]), timestamp_ms=clock.now_us // 1000)
    await busy.round()
    await busy.goes_on(4, MINUTE_US)
    assert (await root.newest()).witnessed_plan == 0
    assert len(await parquet_keys(root.store)) == 1


class _CommitsMeanwhile(StoreWrapper):
    """While it is asked for the time, and before it answers, another finishes a plan."""

    def __init__(self, busy: _Busy) -> None:
        super().__init__(busy.root.store)
        self._busy = busy

    async def store_time_ms(self) -> int:
        found = await self.inner.store_time_ms()
        await self._busy.goes_on(1, MINUTE_US)
        return found


async def test_a_plan_that_was_finished_after_the_clock_was_read_is_not_noted_with_that_time() -> None:
    busy = await _Busy.open()
    root = busy.root
    await busy.goes_on(3, MINUTE_US)
    seen = await root.newest()
    seen_ms = await root.store.store_time_ms()
    await note_finished(
        ledger_of(_CommitsMeanwhile(busy), 1, cluster=root.cluster, sources=root.sources), seen.finished_plan
    )
    newest = await root.newest()
    assert newest.finished_plan == seen.finished_plan + 1
    assert (newest.witnessed_plan, newest.witnessed_ms) == (seen.finished_plan, seen_ms)


async def test_a_note_proves_its_age_to_the_millisecond() -> None:
    busy = await _Busy.open()
    root, clock = busy.root, busy.clock
    await busy.goes_on(3, MINUTE_US)
    noted = (await root.newest()).finished_plan
    await note_finished(ledger_of(root.store, 1, cluster=root.cluster, sources=root.sources), noted)
    await busy.goes_on(1, 19_999_000)
    assert await finished_long_ago(root.store, 1, 20_000) == 0
    clock.now_us += 1000
    assert await finished_long_ago(root.store, 1, 20_000) == noted


@pytest.mark.parametrize(
    ("plan", "seen_ms", "taken"),
    [
        (7, 10_000, False),  # it says nothing new
        (8, 29_999, False),  # who waits for the first note would wait forever if each took its place
        (8, 30_000, True),
        (6, 90_000, False),  # the process slept after the look
    ],
)
def test_a_note_is_replaced_by_a_later_plan_once_it_has_served(plan: int, seen_ms: int, taken: bool) -> None:
    draft = fmt.Checkpoint(bundle=1, finished_plan=9, witnessed_plan=7, witnessed_ms=10_000)
    assert witness_move(plan, seen_ms, 20_000)(draft) is taken
    assert (draft.witnessed_plan, draft.witnessed_ms) == ((plan, seen_ms) if taken else (7, 10_000))


def test_a_plan_that_is_not_finished_is_not_noted() -> None:
    with pytest.raises(AssertionError, match="plan 3"):
        witness_move(3, 10_000, 20_000)(fmt.Checkpoint(bundle=1, finished_plan=2))
