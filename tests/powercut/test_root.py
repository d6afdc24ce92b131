"""A whole root on a disk whose power is cut at any step: no acknowledged record is lost or doubled,
and life goes on.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ledgermq_broker.cluster.heartbeat import Heartbeat, decode_heartbeat, encode_heartbeat
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import read_cluster
from ledgermq_ledger.fsck.check import check_root
from ledgermq_ledger.fsck.problem import Severity
from ledgermq_ledger.garbage.sweep import tidy_bundle
from ledgermq_ledger.garbage.topics.retention import log_start_move
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.object_store.contract import ObjectMissing
from ledgermq_ledger.object_store.file.store import FileStore
from ledgermq_ledger.parquet.compacting.round import cut_open_plan_short
from tests.powercut.cutting import CUTS, check_cuts
from tests.powercut.disk_model import NEWEST, OLDEST, DiskModel, at_random
from tests.powercut.recording import Killed, Recording, Step
from tests.stores.backends import seeded_sources
from tests.stores.full import FullStore
from tests.worlds.ledgers import ledger_of
from tests.worlds.roots import Root, parquet_keys, read_rows

TOPICS = ("flights", "planes")
TURNS = 16


@dataclass(frozen=True)
class Acknowledged:
    """A topic that exists, or the values of one of its partitions, all that were acknowledged so
    far.
    """

    topic: str
    partition: int | None = None
    values: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Dropped:
    """Asked for from here on: records of a partition below an offset may go, or all of a topic."""

    topic: str
    partition: int | None = None
    below: int = 0


class Life:
    """Owners come and go; checkpoints, heartbeats, rounds of compaction, retention, a topic
    removed, deletion of what is compacted.
    """

    def __init__(self, root: Root, recording: Recording, rng: random.Random) -> None:
        self.root = root
        self.recording = recording
        self.rng = rng
        self.topics = list(TOPICS)

    async def live(self) -> None:
        for name in TOPICS:
            await self.root.create_topic(name, 2, 1)
            self.recording.note(Acknowledged(name))
        steps = [self.change_owner, self.checkpoint, self.compact, self.heartbeat, self.retain]
        order = [steps[turn % len(steps)] for turn in range(TURNS)]
        self.rng.shuffle(order)
        for turn, step in enumerate(order):
            name, partition = self.rng.choice(self.topics), self.rng.randrange(2)
            values = [b"%d-%d" % (turn, i) for i in range(self.rng.randrange(1, 4))]
            await self.root.produce(name, (partition, values))
            self.recording.note(Acknowledged(name, partition, tuple(self.root.produced[name, partition])))
            await step()
            if turn == TURNS // 2:
                await self.remove_topic()
                await self.retain(everything=True)
        await self.compact()

    async def change_owner(self) -> None:
        del self.root.writers[1]

    async def checkpoint(self) -> None:
        await advance_checkpoint(ledger_of(self.root.store, 1, cluster=self.root.cluster, sources=self.root.sources))

    async def heartbeat(self) -> None:
        beat = Heartbeat("b", "127.0.0.1:1", 1, "session", self.rng.randrange(1000))
        await self.root.store.put(keys.broker("b"), encode_heartbeat(beat))

    async def compact(self) -> None:
        """Then delete what is not needed any more, however young."""
        root = self.root
        await root.compact()
        cluster = replace(root.cluster, parquet_min_age_ms=0)
        await tidy_bundle(ledger_of(root.store, 1, cluster=cluster, sources=root.sources), await root.catalog())

    async def retain(self, *, everything: bool = False) -> None:
        name, partition = self.rng.choice(
            sorted(part for part in self.root.produced if part[0] in self.topics) or [("", 0)]
        )
        if name:
            end = len(self.root.produced[name, partition])
            below = end if everything else self.rng.randrange(1, end + 1)
            self.recording.note(Dropped(name, partition, below))
            move = log_start_move({PartitionId(self.root.topics[name].id, partition): below})
            await advance_checkpoint(
                ledger_of(self.root.store, 1, cluster=self.root.cluster, sources=self.root.sources), move
            )
        await self.compact()

    async def remove_topic(self) -> None:
        self.recording.note(Dropped(name := self.topics.pop()))
        await self.root.remove_topic(name)
        await self.compact()


async def check(events: Sequence[Any], left: Path) -> None:
    told = [event for event in events if isinstance(event, Acknowledged)]
    dropped = [event for event in events if isinstance(event, Dropped)]
    gone = {event.topic for event in dropped if event.partition is None}
    acknowledged = {(event.topic, event.partition): event.values for event in told if event.partition is not None}
    below = {(event.topic, event.partition): 0 for event in told}
    for event in dropped:
        below[event.topic, event.partition] = max(below.get((event.topic, event.partition), 0), event.below)
    async with FileStore(left / "root", seeded_sources(7)) as store:
        try:
            root = Root(store, seeded_sources(8), await read_cluster(store))
        except ObjectMissing:
            assert not told, "the cluster is gone"
            return
        found = await read_clean(root, {event.topic for event in told} - gone)
        for part, values in acknowledged.items():
            for offset, value in enumerate(values):
                kept = found.get(part, {}).get(offset)
                may_be_gone = part[0] in gone or offset < below.get(part, 0)
                assert kept == value or (kept is None and may_be_gone), (
                    f"{part}: {offset} was acknowledged as {value!r}, there is {kept!r}"
                )
        await check_heartbeats(store)
        await check_that_life_goes_on(root, found, below)


async def check_heartbeats(store: FileStore) -> None:
    """One that is there is whole."""
    async for info in store.list(keys.BROKERS):
        assert decode_heartbeat(await store.get(info.key)) is not None, info.key


async def check_that_life_goes_on(
    root: Root, found: dict[tuple[str, int], dict[int, bytes]], below: dict[tuple[str, int | None], int]
) -> None:
    """Records are added and compacted; of those that were there only such as were dropped may go."""
    names = sorted(root.topics)
    for name in names:
        await root.produce(name, (0, [b"after"]))
    await root.compact()
    after = await read_clean(root, set(names))
    for name in names:
        for partition in range(2):
            before, rows = found.get((name, partition), {}), after.get((name, partition), {})
            lost = {offset for offset in before if offset not in rows}
            assert all(offset < below.get((name, partition), 0) for offset in lost), (name, partition, before, rows)
            assert rows.items() <= before.items() | {(offset, b"after") for offset in rows.keys() - before.keys()}
            assert len(rows.keys() - before.keys()) == (1 if partition == 0 else 0), (name, partition, before, rows)


async def read_clean(root: Root, topics: set[str]) -> dict[tuple[str, int], dict[int, bytes]]:
    """All records of a root without damage; `topics` have to be among what it has."""
    damage = [
        problem
        for problem in (await check_root(root.store, root.cluster)).problems
        if problem.severity is Severity.DAMAGE
    ]
    assert not damage, damage
    root.topics = {topic.name: topic for topic in (await root.catalog()).living_topics() if not topic.internal}
    assert topics <= root.topics.keys()
    return await read_rows(root)


KINDS_OF_OBJECTS = {
    "cluster.json",
    "brokers/b.json",
    "ledgers/N/segments/N",
    "ledgers/N/checkpoints/N",
    "ledgers/N/compactions/N",
    "ledgers/N/files/N",
    "ledgers/N/snapshots/N",
    "parquet/topic=flights/partition=N/N-N-N-N.parquet",
    "parquet/_tmp/N-N-N/N",
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
async def test_a_power_cut_loses_nothing_that_was_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    top = tmp_path / "disk"
    top.mkdir()
    recording = Recording(top)
    recording.install(monkeypatch)
    async with FileStore(top / "root", seeded_sources(seed)) as store:
        await Life(await Root.open(store, seeded_sources(seed)), recording, random.Random(seed)).live()
    steps = {event.kind for event in recording.log if isinstance(event, Step)}
    named = {path.removeprefix("root/") for what, path in steps if what in ("link", "replace")}
    assert KINDS_OF_OBJECTS - {"parquet/_tmp/N-N-N/N"} <= named, "the power has to be cut around every kind of object"
    removed = {path.removeprefix("root/") for what, path in steps if what in ("unlink", "rmdir")}
    assert KINDS_OF_OBJECTS - {"cluster.json", "brokers/b.json"} <= removed, "and around each removal"
    assert ("rmdir", "root/parquet/_tmp/N-N-N") in steps
    await check_cuts(recording.log, top, tmp_path / "left", seed, CUTS, check)


async def test_a_plan_cut_short_names_no_file_that_a_power_cut_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task is killed just after it has given a file its name.

    Another process closes the fence, and commits what is there.
    """
    top = tmp_path / "disk"
    top.mkdir()
    recording = Recording(top)
    recording.install(monkeypatch)
    async with FileStore(top / "root", seeded_sources(1)) as store:
        root = await Root.open(store, seeded_sources(1))
        for name in TOPICS:
            await root.create_topic(name, 2, 1)
            recording.note(Acknowledged(name))
            await root.produce(name, (0, [b"x"]), (1, [b"y"]))
            recording.note(Acknowledged(name, 0, (b"x",)))
            recording.note(Acknowledged(name, 1, (b"y",)))
        killed = FileStore(top / "root", seeded_sources(2))
        recording.kill_at = lambda what, path: (
            what == "fsync" and path.name.startswith("partition=") and any(path.iterdir())
        )
        with suppress(BaseExceptionGroup, Killed):
            await root.compact(killed)
        with suppress(Killed):
            await killed.close()  # its other threads end too: none gives a file its name after this
        recording.kill_at = lambda what, path: False
        there = await parquet_keys(store)
        assert there
        await cut_open_plan_short(store, 1, root.topics["flights"].id)  # as where a topic is deleted
        await root.compact(FullStore(store))
        assert await parquet_keys(store) == there
        newest = await root.newest()
        assert newest.finished_plan
        assert sum(part.parquet_end for part in newest.partitions) == len(there), "the checkpoint names them"
    model = DiskModel(top)
    for event in recording.log:
        if isinstance(event, Step):
            event(model)
    for choose in (OLDEST, NEWEST, at_random(random.Random(1))):
        model.cut_power(tmp_path / "left", choose)
        await check(recording.log, tmp_path / "left")
