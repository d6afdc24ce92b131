"""Random histories of a bundle with a topic of users or a hidden one: producing, staging for
transactions, rounds, crashes, retention, time.

After every step readers see each kept record exactly once, and every staged batch that is not
resolved is in a segment.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from ledgermq.protocol.batches.records import decode_batch
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.garbage.sweep import collect_garbage, tidy_bundle
from ledgermq_ledger.garbage.topics.retention import log_start_move, move_internal_log_starts
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import partition_of
from ledgermq_ledger.log.history import read_history
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.parquet.files.stored_file import list_files
from ledgermq_ledger.parquet.pages import PageReader
from ledgermq_ledger.rounds.runner import compact_bundle
from tests.stores.backends import seeded_sources
from tests.stores.dying import Crash, DyingStore
from tests.virtual_time import virtual
from tests.worlds.ledgers import append_and_wait, batch, ledger_of
from tests.worlds.roots import Root, parquet_keys, read_parquet_rows, read_segments

PARTITIONS = 3
STAGED = keys.STAGED_TOPIC

_produce = st.tuples(
    st.just("produce"),
    st.lists(
        st.tuples(st.integers(0, PARTITIONS - 1), st.integers(1, 4), st.sampled_from([1, 300, 2000])),
        min_size=1,
        max_size=4,
    ),
)
Step = tuple[str, object]


def steps() -> st.SearchStrategy[Step]:
    return st.one_of(
        _produce,
        _produce,
        st.tuples(st.just("round"), st.booleans()),
        st.tuples(st.just("crash"), st.integers(1, 60)),
        st.tuples(st.just("log start"), st.tuples(st.integers(0, PARTITIONS - 1), st.integers(1, 12))),
        st.tuples(st.just("stage"), st.tuples(st.integers(1, 4), st.booleans())),
        st.tuples(st.just("resolve"), st.integers(1, 6)),
        st.tuples(st.just("new owner"), st.none()),
        st.tuples(st.just("wait"), st.sampled_from([1, 15, 30, 4000])),
        st.tuples(st.just("tidy"), st.none()),
    )


@dataclass
class WorldClock:
    now_us: int = 1_764_547_200_000_000

    def __call__(self) -> int:
        return self.now_us


@dataclass
class World:
    root: Root
    clock: WorldClock
    name: str
    """Of the topic whose records become Parquet."""
    folder: str
    """Where its files lie, and nothing else."""
    log_starts: dict[int, int] = field(default_factory=dict)
    numbers: int = 0
    resolved: int = 0
    """Staged batches below this offset are needed no longer."""

    @classmethod
    async def open(cls, clock: WorldClock, sources: Sources, *, hidden: bool) -> World:
        root = await Root.open(MemoryStore("test", sources), sources)
        name, kind = (keys.DELAYED_FAR_TOPIC, {"internal_kind": "hidden"}) if hidden else ("t", {})
        sizes = {"parquet_target_bytes": "2048", "parquet_max_lag_ms": "20000"}
        await root.create_topic(name, partitions=PARTITIONS, **sizes, **kind)
        await root.create_topic(STAGED, internal_kind="staged")
        return cls(root, clock, name, keys.HIDDEN if hidden else keys.PARQUET)

    async def step(self, what: str, detail: object) -> None:
        root = self.root
        if what == "produce":
            assert isinstance(detail, list)
            batches = [(p, [self._value(size) for _ in range(count)]) for p, count, size in detail]
            await root.produce(self.name, *batches, timestamp_ms=self.clock.now_us // 1000)
        elif what == "round":
            await self._round(everything=bool(detail), store=root.store)
        elif what == "crash":
            assert isinstance(detail, int)
            try:
                await self._round(everything=True, store=DyingStore(root.store, detail, after_effect=detail % 2 == 0))
            except Crash:
                pass
        elif what == "log start":
            assert isinstance(detail, tuple)
            await self._move_log_start(*detail)
        elif what == "stage":
            assert isinstance(detail, tuple)
            await self._stage(*detail)
        elif what == "resolve":
            assert isinstance(detail, int)
            self.resolved = min(len(root.produced.get((STAGED, 0), [])), self.resolved + detail)
            ledger = ledger_of(root.store, 1, cluster=root.cluster, sources=root.sources)
            await move_internal_log_starts(ledger, {PartitionId(root.topics[STAGED].id, 0): self.resolved})
        elif what == "new owner":
            root.writers.pop(1, None)
        elif what == "wait":
            assert isinstance(detail, int)
            self.clock.now_us += detail * 1_000_000
        else:
            await tidy_bundle(
                ledger_of(root.store, 1, cluster=root.cluster, sources=root.sources), await root.catalog()
            )
            assert not (await collect_garbage(root.store, root.cluster)).failures

    def _value(self, size: int) -> bytes:
        self.numbers += 1
        return b"%d" % self.numbers + b"x" * size

    async def _round(self, *, everything: bool, store: object) -> None:
        root = self.root
        engine = LocalEngine(root.sources, run_inline, 1)
        await compact_bundle(
            Compaction(store, root.cluster, root.sources, engine), 1, await root.catalog(), everything=everything
        )  # type: ignore[arg-type]

    async def _stage(self, count: int, beside_users: bool) -> None:
        """Stage one batch, alone in its segment or beside a record of a user's partition."""
        root, writer = self.root, await self.root.writer(1)
        values = [self._value(300) for _ in range(count)]
        batches = [batch(*values, topic_id=root.topics[STAGED].id)]
        root.produced.setdefault((STAGED, 0), []).extend(values)
        if beside_users:
            value, now_ms = self._value(1), self.clock.now_us // 1000
            batches.append(batch(value, topic_id=root.topics[self.name].id, timestamp_ms=now_ms))
            root.produced.setdefault((self.name, 0), []).append(value)
        await append_and_wait(writer, *batches)

    async def _move_log_start(self, partition: int, by: int) -> None:
        """Somewhere in the kept records, in Parquet or behind it."""
        end = len(self.root.produced.get((self.name, partition), []))
        start = min(end, self.log_starts.get(partition, 0) + by)
        move = log_start_move({PartitionId(self.root.topics[self.name].id, partition): start})
        if await advance_checkpoint(
            ledger_of(self.root.store, 1, cluster=self.root.cluster, sources=self.root.sources), move
        ):
            self.log_starts[partition] = start

    async def check(self) -> None:
        root = self.root
        topic = root.topics[self.name]
        parquet = await read_parquet_rows(root.store, self.folder)  # asserts: once each, no gap
        history = await read_history(ledger_of(root.store, 1, cluster=root.cluster))
        pages = PageReader(root.store, 1)
        for partition in range(PARTITIONS):
            produced = root.produced.get((self.name, partition), [])
            counters = partition_of(history.checkpoint, topic.id, partition)
            rows = parquet.get((self.name, partition), {})
            for offset, value in rows.items():
                assert produced[offset] == value
            listed = [file.key for file in await pages.files_from(counters, 0)]
            stored = [key for key in await parquet_keys(root.store, self.folder) if f"/partition={partition}/" in key]
            assert set(listed) <= set(stored) or counters.parquet_start < counters.log_start, (
                "no live file is ever missing"
            )
            live = {o: v for o, v in rows.items() if o < counters.parquet_end}
            for slot in history.segments:
                for entry in slot.index.batches:
                    if entry.partition == partition and entry.topic_id == topic.id:
                        data = await root.store.get_range(
                            keys.segment(1, slot.index.slot), entry.position, entry.length
                        )
                        for i, value in enumerate(decode_batch(data).column("value").to_pylist()):
                            assert live.setdefault(entry.base_offset + i, value) == value
            kept = range(counters.log_start, len(produced))
            assert [live.get(offset) for offset in kept] == produced[counters.log_start :]
        staged = (await read_segments(root, STAGED)).get((STAGED, 0), {})
        wanted = root.produced.get((STAGED, 0), [])
        assert [staged.get(offset) for offset in range(self.resolved, len(wanted))] == wanted[self.resolved :]
        assert all(topic == self.name for topic, _ in parquet)
        assert len(await list_all(root.store)) == len(await parquet_keys(root.store, self.folder))
        assert history.checkpoint.snapshot_plan == 0


async def list_all(store: ObjectStore) -> list[str]:
    return [info.key async for info in list_files(store)]


@settings(max_examples=60, deadline=None)
@given(drawn=st.lists(steps(), max_size=25), seed=st.integers(0, 2**32), hidden=st.booleans())
@virtual
async def test_each_kept_record_is_there_exactly_once(drawn: list[Step], seed: int, hidden: bool) -> None:
    clock = WorldClock()
    sources = Sources(clock, seeded_sources(seed).random)
    world = await World.open(clock, sources, hidden=hidden)
    root = world.root
    for what, detail in drawn:
        await world.step(what, detail)
        await world.check()
    await world.step("round", True)
    report = await root.compact()
    assert not report.failures
    await world.check()
    checkpoint = await root.newest()
    for partition in range(PARTITIONS):
        counters = partition_of(checkpoint, root.topics[world.name].id, partition)
        assert counters.parquet_end == len(root.produced.get((world.name, partition), []))
    await world.step("resolve", len(root.produced.get((STAGED, 0), [])))
    assert not (await root.compact()).failures
    history = await read_history(ledger_of(root.store, 1, cluster=root.cluster))
    assert not any(slot.index.batches for slot in history.segments), "nothing holds a segment any more"
