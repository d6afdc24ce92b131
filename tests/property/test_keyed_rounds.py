"""Random lives of a keyed partition against a dict; a plain reader looks whenever an object comes
or goes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgermq.protocol.batches.records import decode_batch
from ledgermq.sources import Sources
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.garbage.sweep import collect_garbage
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.object_store.contract import Buffer, ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.keyed_runner import clean_bundle
from ledgermq_ledger.rounds.runner import compact_bundle
from ledgermq_ledger.topics.topic import Topic
from ledgermq_ledger.view.following.followed_ledger import FollowedLedger
from ledgermq_ledger.view.ranges.range_read import OffsetRange, RangeReader, plan_ranges
from ledgermq_ledger.view.reader import LedgerReader
from tests.stores.dying import Crash, DyingStore
from tests.stores.one_put import OnePut
from tests.virtual_time import virtual
from tests.worlds.keyed_topics import Pair, Row, Written, fold, judge_plain, put_pairs
from tests.worlds.reading import opened_ledger
from tests.worlds.roots import Root

_pairs = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"c", b"dd", b""]), st.sampled_from([b"1", b"22", b"x" * 300, None])),
    min_size=1,
    max_size=6,
)
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), _pairs),
        st.tuples(st.just("put"), _pairs),
        st.tuples(st.just("compact"), st.none()),
        st.tuples(st.just("clean"), st.booleans()),
        st.tuples(st.just("clean"), st.just(True)),
        st.tuples(st.just("crash"), st.integers(1, 60)),
        st.tuples(st.just("wait"), st.sampled_from([1, 15, 30, 4000])),
        st.tuples(st.just("collect"), st.none()),
        st.tuples(st.just("plan"), st.none()),
        st.tuples(st.just("read"), st.none()),
    ),
    max_size=25,
)


@dataclass
class _Clock:
    now_us: int = 1_764_547_200_000_000

    def __call__(self) -> int:
        return self.now_us


class WatchedStore(OnePut):
    """A plain reader looks after every put and every single delete."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.looks = 0
        self.world: _World | None = None

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        await self.inner.put_if_absent(key, buffers)
        await self.look()

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            await self.inner.delete([key])
            await self.look()

    async def look(self) -> None:
        if self.world is not None:
            self.looks += 1
            await judge_plain(self.inner, self.world.topic, self.world.written)


@dataclass
class _World:
    root: Root
    topic: Topic
    store: WatchedStore
    clock: _Clock
    written: Written = field(default_factory=Written)
    ledger: FollowedLedger | None = None
    """Opened once, so that it learns of everything by itself."""
    planned: list[OffsetRange] = field(default_factory=list)
    """Ranges that were planned some time ago."""

    async def read(self) -> None:
        """As readers without a broker do: from the begin, and what was planned before."""
        if self.ledger is None:
            self.ledger = await opened_ledger(self.store)
        await self.ledger.refresh()
        key = PartitionId(self.topic.id, 0)
        self._judge_older(await _rows_by_reader(self.ledger.reader, key), self.ledger.reader.end(key))
        assert fold(await _rows_by_reader((await opened_ledger(self.store)).reader, key)) == self.written.table(
            len(self.written.rows)
        )
        ranges = RangeReader(self.store, run_inline)
        rows: list[Row] = []
        for each in self.planned:
            async for first, part in ranges.read(each):
                rows += [Row(first + i, *pair) for i, pair in enumerate(_pairs_of(part))]
        self._judge_older(rows, self.planned[-1].end if self.planned else 0)

    def _judge_older(self, rows: list[Row], end: int) -> None:
        """Read up to an end of some time ago: a record that a later one has replaced since then may
        be gone, nothing else.
        """
        offsets = [row.offset for row in rows]
        assert offsets == sorted(set(offsets))
        last, found = self.written.latest(len(self.written.rows)), fold(rows)
        for key, value in self.written.table(end).items():
            if last[key].offset < end:
                assert found[key] == value

    async def plan(self) -> None:
        reader = (await opened_ledger(self.store)).reader
        key = PartitionId(self.topic.id, 0)
        self.planned = (await plan_ranges(reader, {key: (0, reader.end(key))}))[key]

    async def compact(self, store: ObjectStore) -> None:
        catalog = await self.root.catalog()
        engine = LocalEngine(self.root.sources, run_inline)
        while await compact_bundle(
            Compaction(store, self.root.cluster, self.root.sources, engine), 1, catalog, everything=True
        ):
            pass

    async def clean(self, store: ObjectStore, everything: bool) -> None:
        catalog = await self.root.catalog()
        engine = LocalEngine(self.root.sources, run_inline)
        await clean_bundle(
            Compaction(store, self.root.cluster, self.root.sources, engine), 1, catalog, everything=everything
        )

    async def crash(self, dies_at: int) -> None:
        """A compactor that dies."""
        for work in (self.compact, lambda store: self.clean(store, True)):
            try:
                await work(DyingStore(self.store, dies_at, after_effect=dies_at % 2 == 0))
            except Crash:
                pass


@pytest.mark.parametrize("retention_ms", ["0", "20000", "86400000"])
@settings(max_examples=40, deadline=None)
@given(steps=_steps)
@virtual
async def test_a_plain_reader_sees_each_key_once_at_every_instant(
    retention_ms: str, steps: list[tuple[str, object]]
) -> None:
    clock = _Clock()
    sources = Sources(clock, random.Random(1))
    memory = MemoryStore("test", sources)
    store = WatchedStore(memory)
    root = await Root.open(store, sources)
    topic = await root.create_topic(
        "t", cleanup_policy="compact", parquet_target_bytes="4000", delete_retention_ms=retention_ms
    )
    world = _World(root, topic, store, clock)
    store.world = world
    for step, value in [
        *steps,
        ("compact", None),
        ("clean", True),
        ("wait", 4000),
        ("clean", True),
        ("collect", None),
        ("read", None),
    ]:
        await _do(world, step, value)
    assert await judge_plain(memory, topic, world.written) == len(world.written.rows)


async def _rows_by_reader(reader: LedgerReader, key: tuple[int, int]) -> list[Row]:
    rows: list[Row] = []
    offset = 0
    while batches := await reader.read(key, offset, 2000):
        for batch in batches:
            assert batch.end > offset
            offset = batch.end
            rows += [Row(batch.base_offset + i, *pair) for i, pair in enumerate(_pairs_of(decode_batch(batch.data)))]
    assert offset == reader.end(key)
    return rows


def _pairs_of(rows: pa.RecordBatch) -> list[Pair]:
    return list(zip(rows.column("key").to_pylist(), rows.column("value").to_pylist(), strict=True))


async def _do(world: _World, step: str, value: object) -> None:
    if step == "put":
        pairs: list[Pair] = value  # type: ignore[assignment]
        await put_pairs(world.root, world.topic, world.written, pairs, timestamp_ms=world.clock.now_us // 1000)
    elif step == "compact":
        await world.compact(world.store)
    elif step == "clean":
        await world.clean(world.store, bool(value))
    elif step == "crash":
        await world.crash(int(value))  # type: ignore[call-overload]
    elif step == "wait":
        world.clock.now_us += int(value) * 1_000_000  # type: ignore[call-overload]
    elif step == "plan":
        await world.plan()
    elif step == "read":
        await world.read()
    else:
        assert not (await collect_garbage(world.store, world.root.cluster)).failures
