"""A whole root on a disk whose power is cut at any step: no acknowledged record is lost or doubled, and life goes on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ledger.catalog import read_catalog
from ledger.cluster import read_cluster
from ledger.fsck.check import check_root
from ledger.fsck.problem import Severity
from ledger.object_store.contract import ObjectMissing
from ledger.object_store.file import FileStore
from ledger.parquet.delete import tidy_bundle
from ledger.recovery import advance_checkpoint
from tests.powercut.cutting import CUTS, check_cuts
from tests.powercut.recording import Recording
from tests.roots import Root, read_everything
from tests.stores import seeded_sources

TOPICS = ("flights", "planes")


@dataclass(frozen=True)
class Acknowledged:
    """A topic that exists, or the values of one of its partitions, all that were acknowledged so far."""

    topic: str
    partition: int | None = None
    values: tuple[bytes, ...] = ()


async def live(root: Root, recording: Recording, rng: random.Random) -> None:
    """Owners come and go; checkpoints, rounds of compaction, deletion of what is compacted."""
    for name in TOPICS:
        await root.create_topic(name, 2, 1)
        recording.note(Acknowledged(name))
    for turn in range(8):
        name, partition = rng.choice(TOPICS), rng.randrange(2)
        values = [b"%d-%d" % (turn, i) for i in range(rng.randrange(1, 4))]
        await root.produce(name, (partition, values))
        recording.note(Acknowledged(name, partition, tuple(root.produced[name, partition])))
        match rng.randrange(4):
            case 0:
                del root.writers[1]
            case 1:
                await advance_checkpoint(root.store, 1, root.sources, root.cluster.producer_states_max)
            case 2:
                await root.compact()
                catalog = await read_catalog(root.store, root.cluster.producer_states_max)
                await tidy_bundle(root.store, 1, root.cluster, catalog, root.sources)


async def check(events: Sequence[Any], left: Path) -> None:
    told = [event for event in events if isinstance(event, Acknowledged)]
    acknowledged = {(event.topic, event.partition): event.values for event in told if event.partition is not None}
    async with FileStore(left / "root", seeded_sources(7)) as store:
        try:
            root = Root(store, seeded_sources(8), await read_cluster(store))
        except ObjectMissing:
            assert not told, "the cluster is gone"
            return
        found = await read_clean(root, {event.topic for event in told})
        for key, values in acknowledged.items():
            kept = tuple(found.get(key, ()))
            assert kept[: len(values)] == values, f"{key}: acknowledged were {values}, there are {kept}"
        for name, partition in acknowledged:
            await root.produce(name, (partition, [b"after"]))
        await root.compact()
        after = await read_clean(root, set(root.topics))
        assert after == {key: [*values, b"after"] if key in acknowledged else values for key, values in found.items()}


async def read_clean(root: Root, topics: set[str]) -> dict[tuple[str, int], list[bytes]]:
    """All values of a root without damage; `topics` have to be among what it has."""
    damage = [problem for problem in (await check_root(root.store, root.cluster)).problems if problem.severity is Severity.DAMAGE]
    assert not damage, damage
    catalog = await read_catalog(root.store, root.cluster.producer_states_max)
    root.topics = {topic.name: topic for topic in catalog.living_topics() if not topic.internal}
    assert topics <= root.topics.keys()
    return await read_everything(root)


@pytest.mark.parametrize("seed", range(2))
async def test_a_power_cut_loses_nothing_that_was_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    top = tmp_path / "disk"
    top.mkdir()
    recording = Recording(top)
    recording.install(monkeypatch)
    async with FileStore(top / "root", seeded_sources(seed)) as store:
        await live(await Root.open(store, seeded_sources(seed)), recording, random.Random(seed))
    await check_cuts(recording.log, top, tmp_path / "left", seed, CUTS, check)
